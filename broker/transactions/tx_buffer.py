"""TxBuffer: one transaction, its content and its state, the same object on every broker.

``LIFE`` is the table of its states and moves; docs/replication.md shows it as a diagram. `TxBuffer` alone writes its own fields.

On the broker that leads a channel fills it; on others the tx-queue's records do. Its events stand in the order in which the
client made them. Digest and counts are what PREPARE states and other brokers check: they chain over the heads of the event
records, so two buffers with the same digest hold the same events for the same queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from understudy.broker.message import MESSAGE_BYTES, Message
from understudy.broker.octets.checksum import crc32
from understudy.broker.state_table import StateTable
from understudy.broker.transactions.body_parts import BodyParts
from understudy.broker.transactions.dtx_branch import DtxBranch, Owner

if TYPE_CHECKING:
    from understudy.broker.log.record import Group, Prepare


_NO_QUEUES: Final[set[int]] = set()
"""Of a transaction that concerns none: nothing is put into it."""


class TxState(Enum):
    """State of a transaction in one broker's log. The log may cut away what is not applied."""

    __hash__ = object.__hash__  # members are one object each, and that of Enum is slow

    OPEN = "open"
    PREPARED = "prepared"
    CLOSED = "closed"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling-back"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


class TxEvent(Enum):
    """A change of a transaction's state."""

    __hash__ = object.__hash__

    DTX_PREPARE = "DTX_PREPARE stands"
    PREPARE = "PREPARE stands"
    COMMIT = "COMMIT stands"
    ROLLBACK = "ROLLBACK or EPOCH stands"
    APPLIED = "its outcome is applied"
    FORGOTTEN = "it ends, and the log knows nothing of it"
    CUT_TO_OPEN = "the log is cut before its close"
    CUT_TO_PREPARED = "the log is cut behind DTX_PREPARE"
    CUT_TO_CLOSED = "the log is cut behind PREPARE"


_S, _E = TxState, TxEvent
LIFE: Final = StateTable(
    {
        (_S.OPEN, _E.DTX_PREPARE): _S.PREPARED,
        (_S.OPEN, _E.PREPARE): _S.CLOSED,
        (_S.PREPARED, _E.PREPARE): _S.CLOSED,
        (_S.CLOSED, _E.COMMIT): _S.COMMITTING,
        **{(state, _E.ROLLBACK): _S.ROLLING_BACK for state in (_S.OPEN, _S.PREPARED, _S.CLOSED)},
        (_S.COMMITTING, _E.APPLIED): _S.COMMITTED,
        (_S.ROLLING_BACK, _E.APPLIED): _S.ROLLED_BACK,
        (_S.OPEN, _E.FORGOTTEN): _S.ROLLED_BACK,
        **{(state, _E.CUT_TO_OPEN): _S.OPEN for state in (_S.PREPARED, _S.CLOSED, _S.COMMITTING, _S.ROLLING_BACK)},
        **{(state, _E.CUT_TO_PREPARED): _S.PREPARED for state in (_S.CLOSED, _S.COMMITTING, _S.ROLLING_BACK)},
        **{(state, _E.CUT_TO_CLOSED): _S.CLOSED for state in (_S.COMMITTING, _S.ROLLING_BACK)},
    }
)
"""An outcome is never changed, and what is applied is never cut: no row says otherwise."""
BEGINS: Final = {_S.OPEN: "its first event"}
_NEXT: Final = LIFE.moves
_PREPARE, _COMMIT, _APPLIED = TxEvent.PREPARE, TxEvent.COMMIT, TxEvent.APPLIED
"""The moves of each commit: as `TxBuffer._move`, without a call (a name of an Enum costs as much as one)."""


Event = tuple[int, Message | None, Any]
"""(offset, message, targets) for an enqueue; (offset, None, groups) for a dequeue; (offset, None, ()) for a part of a body.
Offset 0: never logged, because it concerns only queues whose messages are not in the log."""

_Mark = tuple[int, int, int, tuple[int, int] | None, list[bytes]]
"""What stands up to an offset: offset, number of events, digest, those two of the durable ones or None, and the heads of the events
that this mark has added, if :meth:`TxBuffer.add_all` has made it."""
_NO_HEADS: Final[list[bytes]] = []


class TxBuffer:
    """One transaction's events, its PREPARE if it has one, and its outcome.

    ``decided`` is called once, with the outcome, when that has been applied (leading: the channel that waits).
    ``outcome_offset`` is the offset of the COMMIT, ROLLBACK or EPOCH that decides it in this log, 0 for none: a cut may take it
    away again. ``transient_at`` holds the offsets of transient events: whether an event is one is judged once, when it is recorded,
    by the queues that are there then. ``unlogged_queues`` are those outside the log to which it brings something. ``branch`` is
    there from its DTX_PREPARE on, if it has one; ``owner`` is who says commit. ``timed``: it had an event of the kind
    TX_ENQUEUE_TIMED. ``own``: it is a message that was published outside of transactions, and nothing else. ``parts`` is there if
    it has had a part of a body. ``ids`` are those of messages that are to come once (leading; ``core/moving/deduplicating.py``).
    """

    __slots__ = (
        "_counts",
        "_durable",
        "_marks",
        "branch",
        "decided",
        "digest",
        "events",
        "first_offset",
        "ids",
        "logged_events",
        "name",
        "observer",
        "opened_ms",
        "outcome_offset",
        "own",
        "owner",
        "parts",
        "prepare",
        "prepare_offset",
        "reason",
        "size_bytes",
        "state",
        "timed",
        "transient_at",
        "tx_id",
        "unlogged_queues",
    )

    def __init__(
        self, tx_id: int, name: str = "", may_be_cut: bool = False, *, opened_ms: int = 0, own: bool = False
    ) -> None:
        """``may_be_cut``: of a broker that follows; it keeps what :meth:`cut` needs to go back to any event."""
        self.tx_id = tx_id
        self.name = name
        self.state = TxState.OPEN
        self.events: list[Event] = []
        self.first_offset = 0
        self.logged_events = 0
        self.digest = 0
        self.transient_at: set[int] = set()
        self.size_bytes = 0
        self.opened_ms = opened_ms
        self.prepare: Prepare | None = None
        self.prepare_offset = 0
        self.branch: DtxBranch | None = None
        self.owner = Owner.LOCAL
        self.outcome_offset = 0
        self.reason = ""
        self.observer: Any = None
        self.decided: Callable[[TxBuffer], None] | None = None
        self.unlogged_queues = _NO_QUEUES
        self.timed = False
        self.own = own
        self.parts: BodyParts | None = None
        self.ids: dict[tuple[Any, bytes], None] | None = None
        self._counts: dict[int, int] = {}
        self._durable: tuple[int, int] | None = (
            None  # (events, digest) of the durable ones, from the first transient one on
        )
        self._marks: list[_Mark] | None = [] if may_be_cut else None

    def __str__(self) -> str:
        return f"transaction {self.tx_id}"

    # -- its life -------------------------------------------------------------------------------------------------

    def _move(self, event: TxEvent) -> None:
        """Go on to the state that `LIFE` has after ``event``.

        Raises:
            IllegalMoveError: there is none; nothing has changed.
        """
        self.state = LIFE.after(self.state, event, self)

    def prepared(self, branch: DtxBranch) -> None:
        """Note the DTX_PREPARE at ``branch.offset``."""
        self._move(TxEvent.DTX_PREPARE)
        self.branch = branch

    def closed(self, prepare: Prepare, offset: int) -> None:
        """Note the PREPARE at ``offset``."""
        self.state = _NEXT.get((self.state, _PREPARE)) or LIFE.after(self.state, _PREPARE, self)
        self.prepare = prepare
        self.prepare_offset = offset
        self.name = prepare.name

    def commits_at(self, offset: int) -> None:
        """Note the COMMIT at ``offset``."""
        self.state = _NEXT.get((self.state, _COMMIT)) or LIFE.after(self.state, _COMMIT, self)
        self.outcome_offset = offset

    def rolls_back_at(self, offset: int, reason: str) -> None:
        """Note the ROLLBACK, or the EPOCH that ends it, at ``offset``."""
        self._move(TxEvent.ROLLBACK)
        self.outcome_offset = offset
        self.reason = reason

    def applied(self) -> None:
        """Note that the outcome is applied."""
        self.state = _NEXT.get((self.state, _APPLIED)) or LIFE.after(self.state, _APPLIED, self)

    def forgotten(self, reason: str) -> None:
        """Note that the transaction ends, rolled back, and that the log knows nothing of it."""
        self._move(TxEvent.FORGOTTEN)
        self.reason = reason

    # -- whom it concerns on a broker that leads ------------------------------------------------------------------

    def observed_by(self, observer: Any) -> None:
        """Let ``observer`` see the transaction; None ends that."""
        self.observer = observer

    def asks_commit(self, decided: Callable[[TxBuffer], None]) -> None:
        """Note that the client waits for the decision: ``decided`` tells it."""
        self.decided = decided

    def withdrawn(self) -> None:
        """Forget the channel that waited for the decision."""
        self.decided = None

    def release_listeners(self) -> Callable[[TxBuffer], None] | None:
        """Let go of client and observer, since the decision is told now. Returns what tells the client.

        Channel, observer and transaction point at each other: what is decided must not need a garbage collector to go.
        """
        decided, self.decided, self.observer = self.decided, None, None
        return decided

    def named(self, name: str) -> None:
        """Note the name that its client has given it, "" to take that away."""
        self.name = name

    def decided_by(self, owner: Owner) -> None:
        """Note the owner of the decision, before PREPARE states it."""
        self.owner = owner

    def message_ids(self) -> dict[tuple[Any, bytes], None]:
        """The ids of its messages that are to come once, to be added to."""
        if self.ids is None:
            self.ids = {}
        return self.ids

    def forget_ids(self) -> None:
        """Note that nothing waits for its messages any more."""
        self.ids = None

    # -- filling --------------------------------------------------------------------------------------------------

    def place(self, queue_id: int) -> int:
        """The place within this transaction of the next enqueue to that queue: 0, 1, 2, ..."""
        count = self._counts.get(queue_id, 0)
        self._counts[queue_id] = count + 1
        return count

    def add(self, offset: int, message: Message | None, content: Any, head: bytes, transient: bool) -> None:
        """Append a logged event; ``head`` is what the digest covers."""
        if not self.first_offset:
            self.first_offset = offset
        self.events.append((offset, message, content))
        self.logged_events += 1
        before = self.digest
        self.digest = crc32(head, before)
        if transient:
            if self._durable is None:
                self._durable = (self.logged_events - 1, before)
            self.transient_at.add(offset)
        elif self._durable is not None:
            self._durable = (self._durable[0] + 1, crc32(head, self._durable[1]))
        if self._marks is not None:
            self._marks.append((offset, self.logged_events, self.digest, self._durable, _NO_HEADS))
        if message is not None:
            self.size_bytes += message.size + len(message.properties)

    def add_all(self, events: Sequence[Event], heads: list[bytes], size_bytes: int) -> None:
        """Append logged events that stand one behind the other in the log; as :meth:`add` for each of them.

        Args:
            events: of messages, none of them transient. At least one.
            heads: of the same records.
            size_bytes: of all properties and bodies.
        """
        offset = events[-1][0]
        if not self.first_offset:
            self.first_offset = events[0][0]
        self.events += events
        self.size_bytes += size_bytes
        self._add_heads(offset, heads)

    def _add_heads(self, offset: int, heads: list[bytes]) -> None:
        """Count events, none of them transient, the last of which stands at ``offset``."""
        count = len(heads)
        joined = b"".join(heads)
        self.logged_events += count
        self.digest = crc32(joined, self.digest)
        if self._durable is not None:
            self._durable = (self._durable[0] + count, crc32(joined, self._durable[1]))
        if self._marks is not None:
            self._marks.append((offset, self.logged_events, self.digest, self._durable, heads))

    def add_unlogged(self, message: Message | None, content: Any) -> None:
        """Append an event that concerns only queues whose messages are outside the log."""
        self.events.append((0, message, content))
        if message is not None:
            if self.unlogged_queues is _NO_QUEUES:
                self.unlogged_queues = set()
            self.unlogged_queues.update(target[0] for target in content)
        if message is not None and not message.offset:  # otherwise it is counted with its record
            self.size_bytes += message.size + len(message.properties)

    def note_timed(self) -> None:
        """Note an event of the kind TX_ENQUEUE_TIMED."""
        self.timed = True

    def note_own(self, own: bool) -> None:
        """Note whether it is a message that was published outside of transactions."""
        self.own = own

    def forget_bodies(self) -> None:
        """Let go of its bodies in parts: another core has the same."""
        self.parts = BodyParts()

    def bodies(self) -> BodyParts:
        """Its bodies in parts; from now on it has had one."""
        if self.parts is None:
            self.parts = BodyParts()
        return self.parts

    def cut(self, offset: int) -> list[Event]:
        """Drop what stands in the log after ``offset``; returns the events that went."""
        self._cut_decision(offset)
        kept = [event for event in self.events if event[0] <= offset]
        gone = self.events[len(kept) :]
        if gone:
            self.events = kept
            self.transient_at = {at for at in self.transient_at if at <= offset}
            if self.parts is not None:
                self.parts.drop(gone)
            self._cut_marks(offset)
            self._counts = {}
            self.size_bytes = sum(m.size + len(m.properties) for _, m, _ in kept if m is not None)
        return gone

    def _cut_marks(self, offset: int) -> None:
        """Go back to count and digest of the events up to ``offset``."""
        marks = self._marks or []
        last, heads = 0, _NO_HEADS
        while marks and marks[-1][0] > offset:
            last, _, _, _, heads = marks.pop()
        _, self.logged_events, self.digest, self._durable, _ = marks[-1] if marks else (0, 0, 0, None, _NO_HEADS)
        kept = len(heads) - (last - offset)  # offsets of one mark follow one another
        if kept > 0:
            self._add_heads(offset, heads[:kept])

    def _cut_decision(self, offset: int) -> None:
        """Forget the records of its close and its outcome that stand behind ``offset``."""
        newest = self.outcome_offset or self.prepare_offset or self.closing_offset
        if newest <= offset:
            return
        keeps_branch = self.branch is not None and self.branch.offset <= offset
        if 0 < self.prepare_offset <= offset:
            self._move(TxEvent.CUT_TO_CLOSED)
        else:
            self._move(TxEvent.CUT_TO_PREPARED if keeps_branch else TxEvent.CUT_TO_OPEN)
            self.prepare = None
            self.prepare_offset = 0
        self.outcome_offset = 0
        if not keeps_branch:
            self.branch = None

    def continued(self, end: int) -> TxBuffer:
        """The same transaction in another core, as the log has it up to ``end``, at or behind the last event of the log.

        What only this broker knew of it ends: its channel, its name before PREPARE, what concerns queues outside the log.
        """
        tx = TxBuffer(self.tx_id, may_be_cut=True)
        tx.events = [event for event in self.events if 0 < event[0] <= end]
        tx.first_offset = self.first_offset
        tx.logged_events, tx.digest = self.logged_events, self.digest
        tx._durable = self._durable
        tx.transient_at = set(self.transient_at)
        tx.size_bytes = sum(m.size + len(m.properties) for _, m, _ in tx.events if m is not None)
        tx.timed = self.timed
        tx.own = self.own and any(message is not None for _, message, _ in tx.events)
        if self.parts is not None:
            tx.parts = self.parts.continued(tx.events)
        if self.branch is not None and self.branch.offset <= end:
            tx.prepared(self.branch)
        assert not 0 < self.prepare_offset <= end, f"transaction {self.tx_id} is decided where PREPARE is applied"
        if tx.events and tx._marks is not None:  # further back it is never cut
            last = tx.events[-1][0]
            tx._marks.append((last, tx.logged_events, tx.digest, tx._durable, _NO_HEADS))
        return tx

    # -- asking ---------------------------------------------------------------------------------------------------

    @property
    def durable_events(self) -> int:
        """The number of logged events that a journal keeps."""
        return self.logged_events if self._durable is None else self._durable[0]

    @property
    def durable_digest(self) -> int:
        """The digest of the same events."""
        return self.digest if self._durable is None else self._durable[1]

    @property
    def held_bytes(self) -> int:
        """About what it takes of the memory, or would take if no body was spilled."""
        return self.size_bytes + len(self.events) * MESSAGE_BYTES

    @property
    def closing(self) -> DtxBranch | Prepare | None:
        """The record that says what it holds, and members vote on: DTX_PREPARE of a branch, else PREPARE; None while it is open."""
        return self.branch if self.branch is not None else self.prepare

    @property
    def closing_offset(self) -> int:
        """Where :attr:`closing` stands, 0 if it does not."""
        return self.branch.offset if self.branch is not None else self.prepare_offset

    @property
    def closed_undecided(self) -> bool:
        """PREPARE or DTX_PREPARE stands, no outcome record follows it in this log."""
        return self.state is TxState.CLOSED or self.state is TxState.PREPARED

    @property
    def in_doubt(self) -> bool:
        """A prepared branch that nobody has decided in this log."""
        return self.state is TxState.PREPARED

    @property
    def commits(self) -> bool:
        """COMMIT stands in this log, applied or not."""
        return self.state is TxState.COMMITTING or self.state is TxState.COMMITTED

    @property
    def rolls_back(self) -> bool:
        """The transaction is rolled back in this log, applied or not."""
        return self.state is TxState.ROLLING_BACK or self.state is TxState.ROLLED_BACK

    def enqueue_counts(self) -> dict[int, int]:
        """Queue id to the number of enqueues, queues in order of first use."""
        return self._counts if self._counts or self._marks is None else self._stated_counts()

    def _stated_counts(self) -> dict[int, int]:
        """The counts of a broker that follows, where records state the places. They are asked for a few times at most."""
        counts: dict[int, int] = {}
        for offset, message, content in self.events:
            if offset and message is not None:
                for queue_id, place, _ in content:
                    counts[queue_id] = max(counts.get(queue_id, 0), place + 1)
        return counts

    def missing_for(self, prepare: DtxBranch | Prepare, may_lack_transients: bool) -> str:
        """Why this buffer is not the transaction that ``prepare`` closes; "" if it is (the vote is yes).

        A broker that restarted in the middle may lack transient events (they were never journaled); it is then held to
        the durable ones only.
        """
        if self.logged_events == prepare.events and self.digest == prepare.digest:
            return ""
        if may_lack_transients:
            if self.durable_events == prepare.durable_events and self.durable_digest == prepare.durable_digest:
                return ""
            held, stated = self.durable_events, prepare.durable_events
        else:
            held, stated = self.logged_events, prepare.events
        if held != stated:
            return f"holds {held} of {stated} events"
        return f"digest differs: holds {self.digest:08x}, prepare states {prepare.digest:08x}"

    def drop_transients(self, offset: int) -> list[Event]:
        """Drop the transient events that stand in the log before ``offset``, where they end; returns them."""
        gone = [event for event in self.events if event[0] in self.transient_at and event[0] < offset]
        if gone:
            self._counts = self.enqueue_counts()
            self.events = [event for event in self.events if event[0] not in self.transient_at or event[0] >= offset]
            self.transient_at = {at for at in self.transient_at if at >= offset}
            if self.parts is not None:
                self.parts.drop(gone)
            self.size_bytes -= sum(m.size + len(m.properties) for _, m, _ in gone if m is not None)
        return gone

    @property
    def lost_transients(self) -> bool:
        """True if it holds less than it counts: an EPOCH has ended its transient events (:meth:`drop_transients`)."""
        return sum(event[0] > 0 for event in self.events) < self.logged_events

    def dequeues(self) -> list[tuple[int, int]]:
        """(queue id, replication id) of everything that it takes away."""
        groups = [group for _, message, content in self.events if message is None for group in content]
        return [(queue_id, entry_id) for queue_id, ids in groups for entry_id in ids]

    def messages(self) -> list[Message]:
        """The messages of its enqueue events."""
        return [message for _, message, _ in self.events if message is not None]


def groups_of(dequeues: list[tuple[int, int]]) -> list[Group]:
    """(queue id, replication id) pairs as one group a queue, queues in order of first use."""
    by_queue: dict[int, list[int]] = {}
    for queue_id, entry_id in dequeues:
        ids = by_queue.get(queue_id)
        if ids is None:
            by_queue[queue_id] = [entry_id]
        else:
            ids.append(entry_id)
    return [(queue_id, tuple(ids)) for queue_id, ids in by_queue.items()]
