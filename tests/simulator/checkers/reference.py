"""The reference: what the chosen log says that queues hold, after each of its records.

A broker applies the log and nothing else, so what it holds is a function of how far it has applied. This is that function,
written a second time and as plainly as can be: sets of messages, changed record by record, without an open batch, a
journal, a link or a client. After each record it notes two digests, of what a journal keeps (persistent messages in durable
queues) and of everything; a broker at that offset must have the same (`replicas`).

The log says everything but one thing: whether a PREPARE that a primary takes for stable commits now, or waits for a ROLLBACK
that the primary has written behind it. So the reference stops at a PREPARE until that primary, or a record, decides.

A digest is the exclusive or of one number a message, so that it can be kept up on a broker at the cost of one operation a
message, whatever the length of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, cast
from zlib import crc32

import attrs

from tests.simulator.checkers.declared import Declared, whole
from tests.simulator.ledger import Violation, stamp_of
from understudy.broker.amqp.field_table import decode_table
from understudy.broker.amqp.properties import expiration, header
from understudy.broker.log import record
from understudy.broker.log.move_record import Move, decode_move
from understudy.broker.log.record import Prepare
from understudy.broker.log.return_record import NEVER, Returned, ReturnGroup, decode_return
from understudy.broker.message import DelayedMessage, Message
from understudy.broker.transactions.dtx_branch import BranchName, DtxBranch, Owner


def number_of(
    queue_id: int,
    entry_id: int,
    message: Message,
    deadline_ms: int,
    returned: Returned | None = None,
    body: int | None = None,
) -> int:
    """The share of one message at one place in a digest, with the knowledge of its queue. ``body``: its checksum, if known."""
    whole = crc32(message.content()) if body is None else body, crc32(message.properties)
    number = hash((queue_id, entry_id, deadline_ms, whole, message.exchange, message.routing_key))
    return number if returned is None else number ^ number_of_return(queue_id, entry_id, returned)


def number_of_return(queue_id: int, entry_id: int, returned: Returned) -> int:
    """The share of a queue's knowledge of one message in a digest."""
    return hash((queue_id, entry_id, *returned)) if returned != NEVER else 0


def doubt_of(name: BranchName, committed: bool | None = None) -> int:
    """The part of a digest for a branch in doubt, or for one that an operator has committed or rolled back."""
    return hash((name[0], name[1].encode(), committed))


def _delay_of(message: Message) -> int:
    """The delay that a message asks for, which it says with another sign; 0 if it is not delayed."""
    delay_ms = header(message.properties, "x-delay") if isinstance(message, DelayedMessage) else 0
    assert isinstance(delay_ms, int), f"a message is delayed, and its header says {delay_ms!r}"
    return -delay_ms


class Fate(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Held(NamedTuple):
    """One message in one queue of the reference."""

    message: Message
    number: int
    kept: bool
    stamp: str
    offset: int
    deadline_ms: int
    returned: Returned = NEVER


@attrs.define(kw_only=True)
class ReferenceQueue:
    """A queue of the reference.

    Attributes:
        logged: its messages are in the log; else it has none here.
        ttl_ms: of its messages; None for no end.
        arguments: those with which it was declared.
        entries: in id order.
    """

    id: int
    vhost: str
    name: str
    durable: bool
    logged: bool = True
    ttl_ms: int | None = None
    arguments: dict[str, Any] = attrs.field(factory=dict)
    entries: dict[int, Held] = attrs.field(factory=dict)
    newest_id: int = 0

    @property
    def limit(self) -> int | None:
        """How often a message may fail; None for any number."""
        limit = self.arguments.get("x-delivery-limit", -1)
        return None if limit < 0 else int(limit)

    @property
    def counts(self) -> bool:
        """True if records may say of messages that they came back."""
        return (
            "x-delivery-limit" in self.arguments or self.arguments.get("x-delayed-retry-type", "disabled") != "disabled"
        )


@attrs.define
class ReferenceTransaction:
    """A transaction: (offset, message or None, targets or groups) in log order; ``branch`` from its DTX_PREPARE on.

    ``bodies``: in parts, whose message has not come, by number.
    """

    tx_id: int
    events: list[tuple[int, Message | None, list[tuple[int, ...]]]] = attrs.field(factory=list)
    bodies: dict[int, bytes] = attrs.field(factory=dict)
    prepare: Prepare | None = None
    branch: DtxBranch | None = None

    @property
    def name(self) -> BranchName:
        assert self.branch is not None
        return self.branch.vhost, self.branch.xid

    def dequeues(self) -> list[tuple[int, int]]:
        """(queue id, entry id) of what it takes away."""
        groups = [group for _, message, parts in self.events if message is None for group in parts]
        return [(queue_id, entry_id) for queue_id, ids in groups for entry_id in ids]  # type: ignore[attr-defined]


class Departed(NamedTuple):
    """How a message left its queue: at which offset, and why (a reason of DEQUEUE; 0: by a transaction)."""

    offset: int
    reason: int
    stamp: str
    came_at: int


BY_TRANSACTION = 0
BY_DELETION = -1
BY_RESTART = -2


class Reference:
    """The state that the chosen log describes.

    Attributes:
        end: chosen up to here.
        applied: and applied up to here; behind ``end`` only while a PREPARE waits for its decision.
        kept, all: digests by offset; in ``all`` None stands where a restarted primary chose records that its journal had
            not kept, so that brokers may differ in transient messages until the EPOCH that ends them.
        doubts: by offset, a digest of the branches that are in doubt and of those that an operator has completed.
        branches: those that are in doubt, by name: their transaction's id.
        branch_fates: what became of a branch that was prepared, the last of its name.
        completions: what an operator has committed (True) or rolled back, and nobody has forgotten.
        locked: (queue id, entry id) of what a branch in doubt takes away, and that transaction's id.
        fates, names: of transactions that are decided, by id and by client-made name.
        committed_at, named_at: where an outcome stands, by id (of commits alone) and by name.
        trimmed: outcomes up to here may be forgotten, and of ids up to ``low_water``.
        departed: (queue id, entry id) of every message that was there once.
        gone: stamps that have left, and how.
        here: stamp and queue id of every message that is there.
        ever: stamp to the offset at which it became visible.
        lost_at: offsets of the EPOCHs with which all transient messages ended.
        transient: offsets of records that journals do not keep.
        holes: offsets at which such a record stood that whoever chose the log had not kept.
        declared: queues, exchanges and bindings.
        newest_csn: of the transaction that was closed last.
        times: by epoch, the latest time of day that its primary may have gone by when it wrote to its log: nothing expires before
            its time (`fair_time`).
    """

    def __init__(self) -> None:
        self.end = 0
        self.applied = 0
        self.kept: list[int] = [0]
        self.all: list[int | None] = [0]
        self.doubts: list[int] = [0]
        self.branches: dict[BranchName, int] = {}
        self.branch_fates: dict[BranchName, Fate] = {}
        self.completions: dict[BranchName, bool] = {}
        self.locked: dict[tuple[int, int], int] = {}
        self.queues: dict[int, ReferenceQueue] = {}
        self.transactions: dict[int, ReferenceTransaction] = {}
        self.fates: dict[int, Fate] = {}
        self.names: dict[str, Fate] = {}
        self.committed_at: dict[int, int] = {}
        self.named_at: dict[str, int] = {}
        self.trimmed = 0
        self.low_water = 0
        self.epoch = 0
        self.departed: dict[tuple[int, int], Departed] = {}
        self.gone: dict[str, list[tuple[str, Departed]]] = {}
        self.here: set[tuple[str, int]] = set()
        self.ever: dict[str, int] = {}
        self.transient: set[int] = set()
        self.holes: set[int] = set()
        self.lost_at: list[int] = []
        self.declared = Declared()
        self.newest_csn = 0
        self.times: dict[int, int] = {}
        self.on_commit: Callable[[ReferenceTransaction], None] | None = None
        self.on_put: Callable[[str, str], None] | None = None
        self._kept = 0
        self._all = 0
        self._doubt = 0
        self._holes = False
        self._pending: deque[tuple[int, Callable[[int, Any], None], Any]] = deque()
        self._rollbacks: set[int] = set()
        self._takers: dict[int, tuple[Callable[[bytes, int, int], Any], Callable[[int, Any], None]]] = {
            record.EPOCH: (lambda b, at, end: record.decode_epoch(b, at), self._epoch),
            record.QUEUE_DECLARE: (whole, self._declare),
            record.QUEUE_DELETE: (lambda b, at, end: record.decode_queue_delete(b, at), self._delete),
            record.ENQUEUE: (record.decode_enqueue, self._enqueue),
            record.DEQUEUE: (lambda b, at, end: record.decode_dequeue(b, at), self._dequeue),
            record.MOVE: (decode_move, self._move),
            record.RETURN: (lambda b, at, end: decode_return(b, at), self._return),
            record.TX_ENQUEUE: (record.decode_tx_enqueue, self._tx_enqueue),
            record.TX_ENQUEUE_TIMED: (record.decode_tx_enqueue, self._tx_enqueue),
            record.TX_DEQUEUE: (lambda b, at, end: record.decode_tx_dequeue(b, at), self._tx_dequeue),
            record.TX_BODY_PART: (record.decode_body_part, self._body_part),
            record.TX_ENQUEUE_PARTED: (record.decode_tx_enqueue_parted, self._tx_enqueue_parted),
            record.COMMIT: (lambda b, at, end: record.decode_commit(b, at), self._commit),
            record.ROLLBACK: (lambda b, at, end: record.decode_rollback(b, at), self._rollback),
            record.OUTCOME: (lambda b, at, end: record.decode_outcome(b, at), self._outcome),
            record.OUTCOMES_TRIMMED: (lambda b, at, end: record.decode_outcomes_trimmed(b, at), self._trim),
            record.DTX_PREPARE: (lambda b, at, end: record.decode_dtx_prepare(b, at, 0), self._dtx_prepare),
            record.DTX_ROLLBACK: (lambda b, at, end: record.decode_dtx_rollback(b, at), self._dtx_rollback),
            record.DTX_FORGET: (lambda b, at, end: record.decode_dtx_forget(b, at), self._dtx_forget),
            **self.declared.takers(),
        }

    def writes_at(self, epoch: int, time_ms: int) -> None:
        """The primary of ``epoch`` closes a batch of its log; expiry there goes by no later time of day than ``time_ms``."""
        self.times[epoch] = max(self.times.get(epoch, 0), time_ms)

    # -- the chosen log grows -------------------------------------------------------------------------------------

    def choose(self, buf: bytes, at: int, end: int) -> None:
        """The next record (or run of holes) is chosen."""
        kind = buf[at]
        if kind == record.HOLE:
            for _ in range(int.from_bytes(buf[at + 5 : at + 9], "big")):
                self.end += 1
                self._pending.append((self.end, self._hole, None))
            return
        self.end += 1
        if kind & record.TRANSIENT:
            self.transient.add(self.end)
            kind &= 0x7F
        if kind == record.PREPARE:
            self._pending.append((self.end, self._prepare, record.decode_prepare(buf, at + 5)))
            return
        decode, apply = self._takers.get(kind, (None, self._nothing))
        content = decode(buf, at + 5, end) if decode is not None else None
        if kind == record.ROLLBACK:
            self._rollbacks.add(record.decode_rollback(buf, at + 5)[0])
        self._pending.append((self.end, apply, content))

    def advance(self, decided_up_to: int, waits: Callable[[int], bool]) -> None:
        """Apply what is chosen.

        Args:
            decided_up_to: a deciding primary takes the log for stable up to here.
            waits: whether that primary has a ROLLBACK of a transaction in its log.
        """
        pending = self._pending
        while pending:
            offset, apply, content = pending[0]
            if isinstance(content, Prepare) and not self._decides(content, offset, decided_up_to, waits):
                return
            pending.popleft()
            apply(offset, content)
            self.applied = offset
            self.kept.append(self._kept)
            self.all.append(None if self._holes else self._all)
            self.doubts.append(self._doubt)

    def _decides(self, prepare: Prepare, offset: int, upto: int, waits: Callable[[int], bool]) -> bool:
        """Note the PREPARE; whether its outcome is known."""
        tx = self.transactions.setdefault(prepare.tx_id, ReferenceTransaction(prepare.tx_id))
        tx.prepare = prepare
        return prepare.tx_id in self._rollbacks or (offset <= upto and not waits(prepare.tx_id))

    # -- messages -------------------------------------------------------------------------------------------------

    def _put(self, offset: int, queue_id: int, entry_id: int, message: Message, deadline_ms: int) -> None:
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        if not queue.logged:
            raise Violation(
                "levels", f"record {offset} puts {message.content()[:40]!r} into {queue.name}, which is not in the log"
            )
        if entry_id <= queue.newest_id:
            raise Violation("G9", f"record {offset} gives id {entry_id} of {queue.name} after {queue.newest_id}")
        queue.newest_id = entry_id
        self._has_its_deadline(offset, queue, message, deadline_ms)
        stamp = stamp_of(message.content())
        if stamp:
            if (stamp, queue_id) in self.here or (not message.moved and self._left_in(stamp, queue.name)):
                raise Violation("G1", f"{stamp} comes to {queue.name} twice, the second time by record {offset}")
            if self.on_put is not None:
                self.on_put(queue.name, stamp)
            self.here.add((stamp, queue_id))
            if message.moved:
                self.ever.setdefault(stamp, offset)
            else:
                self.ever[stamp] = offset
        returned = self._due(offset, queue, message)
        number = number_of(queue_id, entry_id, message, deadline_ms, returned)
        held = Held(message, number, message.persistent and queue.durable, stamp, offset, deadline_ms, returned)
        queue.entries[entry_id] = held
        self._flip(held)

    def _due(self, offset: int, queue: ReferenceQueue, message: Message) -> Returned:
        """The due time of a message that comes to ``queue``: its delay after a time that has been."""
        if not isinstance(message, DelayedMessage):
            return NEVER
        if not (message.everywhere or queue.arguments.get("x-delayed-publish") is True):
            return NEVER
        latest_ms = max(self.times.values()) + _delay_of(message)
        if not 0 < message.due_ms <= latest_ms:
            raise Violation(
                "due",
                f"record {offset} delays a message to {queue.name} until {message.due_ms}, later than {latest_ms}",
            )
        return Returned(due_ms=message.due_ms)

    def _has_its_deadline(self, offset: int, queue: ReferenceQueue, message: Message, deadline_ms: int) -> None:
        """There is one if its queue or the message asks for it; it is as early as both ask for."""
        own = expiration(message.properties)
        if own is None and queue.ttl_ms is None and not deadline_ms:
            return
        ttl_ms = None if queue.ttl_ms is None else queue.ttl_ms + _delay_of(message)
        spans = [span for span in (ttl_ms, None if own is None else int(own)) if span is not None]
        latest_ms = max(self.times.values())  # a branch may have been prepared under an earlier primary
        if not spans or not 0 < deadline_ms <= latest_ms + min(spans):
            raise Violation(
                "expiry",
                f"record {offset} puts a message into {queue.name} that expires at {deadline_ms}; asked for are {spans} ms, no"
                f" primary has written later than {latest_ms}",
            )

    def _left_in(self, stamp: str, queue: str) -> bool:
        return any(name == queue for name, _ in self.gone.get(stamp, ()))

    def _take(self, offset: int, queue_id: int, entry_id: int, reason: int) -> None:
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        held = queue.entries.pop(entry_id, None)
        if held is None:
            before = self.departed.get((queue_id, entry_id))
            raise Violation(
                "G1", f"record {offset} takes id {entry_id} of {queue.name}, which is not there; it left {before}"
            )
        if reason == record.EXPIRED and not 0 < held.deadline_ms <= self.times[self.epoch]:
            raise Violation(
                "expiry",
                f"record {offset} takes id {entry_id} of {queue.name} as expired at {held.deadline_ms}; the primary of epoch"
                f" {self.epoch} has written nothing later than {self.times[self.epoch]}",
            )
        if reason == record.DELIVERY_LIMIT and held.returned.failures != queue.limit:
            raise Violation(
                "returns",
                f"record {offset} takes id {entry_id} of {queue.name} for its limit of {queue.limit}; it has failed"
                f" {held.returned.failures} times before",
            )
        self._depart(offset, queue, entry_id, held, reason)

    def _depart(self, offset: int, queue: ReferenceQueue, entry_id: int, held: Held, reason: int) -> None:
        departed = self.departed[(queue.id, entry_id)] = Departed(offset, reason, held.stamp, held.offset)
        if held.stamp:
            self.here.discard((held.stamp, queue.id))
            self.gone.setdefault(held.stamp, []).append((queue.name, departed))
        self._flip(held)

    def _flip(self, held: Held) -> None:
        self._all ^= held.number
        if held.kept:
            self._kept ^= held.number

    # -- records --------------------------------------------------------------------------------------------------

    def _nothing(self, offset: int, content: Any) -> None:
        pass

    def _hole(self, offset: int, content: Any) -> None:
        self.holes.add(offset)
        self._holes = True

    def _epoch(self, offset: int, content: Any) -> None:
        epoch, _, lost, _ = content
        if epoch <= self.epoch:
            raise Violation("G6", f"epoch {epoch} is chosen after epoch {self.epoch}")
        self.epoch = epoch
        for tx in [tx for tx in self.transactions.values() if tx.prepare is None and tx.branch is None]:
            self._end(tx.tx_id, Fate.ROLLED_BACK)
        if lost:
            self.lost_at.append(offset)
            for tx in self.transactions.values():
                tx.events = [event for event in tx.events if event[0] not in self.transient]
            for queue in list(self.queues.values()):
                for entry_id in [i for i, held in queue.entries.items() if not held.kept]:
                    self._depart(offset, queue, entry_id, queue.entries.pop(entry_id), BY_RESTART)
                if not queue.durable:
                    del self.queues[queue.id]
                    self.declared.queue_gone(queue.id)
            self.declared.transients_lost(offset)
            self._holes = False

    def _declare(self, offset: int, content: Any) -> None:
        queue_id, vhost, name, flags, arguments = record.decode_queue_declare(content, 5, len(content))
        self.declared.queue(queue_id, content)
        if queue_id not in self.queues:
            table = cast("dict[str, Any]", decode_table(arguments, 0)[0])
            self.queues[queue_id] = ReferenceQueue(
                id=queue_id,
                vhost=vhost,
                name=name,
                durable=bool(flags & record.DURABLE),
                logged=not flags & record.DEFINITION_ONLY,
                ttl_ms=table.get("x-message-ttl"),
                arguments=table,
            )

    def _delete(self, offset: int, content: Any) -> None:
        self.declared.queue_gone(content)
        queue = self.queues.pop(content, None)
        if queue is not None:
            for entry_id, held in queue.entries.items():
                self._depart(offset, queue, entry_id, held, BY_DELETION)

    def _enqueue(self, offset: int, content: Any) -> None:
        targets, message = content
        for queue_id, entry_id, deadline_ms in targets:
            self._put(offset, queue_id, entry_id, message, deadline_ms)

    def _dequeue(self, offset: int, content: Any) -> None:
        reason, groups = content
        for queue_id, ids in groups:
            for entry_id in ids:
                self._take(offset, queue_id, entry_id, reason)

    def _move(self, offset: int, content: Any) -> None:
        """A message leaves one queue, and enters others, whose message says in its headers what the log says of it."""
        move: Move = content
        source = self.queues.get(move.queue_id)
        held = source.entries.get(move.entry_id) if source is not None else None
        if held is not None and source is not None:
            self._is_the_same(offset, source, held, move)
            self._take(offset, move.queue_id, move.entry_id, move.reason)
        elif source is not None and move.queue_id and not self._holes:
            self._take(offset, move.queue_id, move.entry_id, move.reason)  # which says that it is not there
        if not move.has_body:
            if held is None:
                return
            move.message.give_body(held.message.content(), 0)
        for queue_id, entry_id, deadline_ms in move.targets:
            self._put(offset, queue_id, entry_id, move.message, deadline_ms)

    def _is_the_same(self, offset: int, source: ReferenceQueue, held: Held, move: Move) -> None:
        """The last death of what moves is that of its source, for the reason of the record; the body is that which it has there."""
        deaths = header(move.message.properties, "x-death")
        last = deaths[0] if isinstance(deaths, list) and deaths else {}
        says = (last.get("queue"), last.get("reason")) if isinstance(last, dict) else ()
        if says != (source.name, record.REASON_NAMES[move.reason]):
            raise Violation(
                "G1", f"record {offset} moves {held.stamp} out of {source.name} and its headers say {says} of that"
            )
        if move.has_body and move.message.content() != held.message.content():
            raise Violation("G1", f"record {offset} moves {held.stamp} with another body")

    def _return(self, offset: int, content: Any) -> None:
        """Messages come back: each count is one more than before, or a failure less; nothing fails more often than it may."""
        groups: list[ReturnGroup] = content
        for queue_id, entries in groups:
            queue = self.queues.get(queue_id)
            for entry_id, returned in entries if queue is not None else ():
                assert queue is not None
                held = queue.entries.get(entry_id)
                if held is None:
                    if self._holes:
                        continue
                    raise Violation(
                        "returns", f"record {offset} returns id {entry_id} of {queue.name}, which is not there"
                    )
                self._counts_on(offset, queue, entry_id, held.returned, returned)
                number = number_of(queue_id, entry_id, held.message, held.deadline_ms, returned)
                self._flip(held)
                held = queue.entries[entry_id] = held._replace(returned=returned, number=number)
                self._flip(held)

    def _counts_on(
        self, offset: int, queue: ReferenceQueue, entry_id: int, before: Returned, returned: Returned
    ) -> None:
        said = f"record {offset} says of id {entry_id} of {queue.name} {returned}, of which {before} was known"
        if not queue.counts:
            raise Violation("returns", f"{said}; the queue counts nothing")
        failed = returned.failures - before.failures
        if failed not in (0, 1) or returned.hand_outs != before.hand_outs + 1:
            raise Violation("returns", f"{said}; a count goes back, or too far")
        if queue.limit is not None and returned.failures > queue.limit:
            raise Violation("returns", f"{said}; its limit is {queue.limit}")
        self._is_due_in_time(said, queue, returned, failed == 1)

    def _is_due_in_time(self, said: str, queue: ReferenceQueue, returned: Returned, failed: bool) -> None:
        """Check that a message is due after the delay that its queue asks for, and after no longer one."""
        arguments = queue.arguments
        kind = arguments.get("x-delayed-retry-type", "disabled")
        if kind not in ("all", "failed" if failed else "returned"):
            if returned.due_ms:
                raise Violation("due", f"{said}; the queue delays no such message")
            return
        least_ms, jitter = arguments["x-delayed-retry-min"], arguments.get("x-delayed-retry-jitter", 0)
        delay_ms = min(least_ms * max(1, returned.failures), arguments.get("x-delayed-retry-max", least_ms))
        latest_ms = self.times[self.epoch] + delay_ms
        if not 0 < returned.due_ms <= latest_ms:
            raise Violation(
                "due", f"{said}; the delay is {delay_ms} ms less {jitter:.0%}, so {latest_ms} is the latest time"
            )

    def _transaction(self, tx_id: int) -> ReferenceTransaction:
        return self.transactions.setdefault(tx_id, ReferenceTransaction(tx_id))

    def _tx_enqueue(self, offset: int, content: Any) -> None:
        tx_id, targets, message, _ = content
        self._transaction(tx_id).events.append((offset, message, targets))

    def _body_part(self, offset: int, content: Any) -> None:
        tx_id, number, start, octets, _ = content
        tx = self._transaction(tx_id)
        parts = b"" if not start else tx.bodies[number]
        assert len(parts) == start, (
            f"record {offset} goes on with a body at {start}, {len(parts)} octets stand before it"
        )
        tx.bodies[number] = parts + bytes(octets)
        tx.events.append((offset, None, []))

    def _tx_enqueue_parted(self, offset: int, content: Any) -> None:
        tx_id, targets, message, number, size, _, _ = content
        tx = self._transaction(tx_id)
        body = tx.bodies.pop(number)
        assert len(body) == size, f"record {offset} is of a message of {size} octets, {len(body)} stand before it"
        message.give_body(body, 0)
        tx.events.append((offset, message, targets))

    def _tx_dequeue(self, offset: int, content: Any) -> None:
        tx_id, groups = content
        self._transaction(tx_id).events.append((offset, None, groups))

    def _prepare(self, offset: int, content: Any) -> None:
        """The place of the decision; `_decides` has seen to it that there is one."""
        assert isinstance(content, Prepare)
        if content.csn <= self.newest_csn:
            raise Violation("G9", f"the PREPARE at {offset} has CSN {content.csn} after {self.newest_csn}")
        self.newest_csn = content.csn
        if content.tx_id in self._rollbacks:
            return  # its ROLLBACK ends it, at its own place
        tx = self.transactions[content.tx_id]
        if (tx.branch is None) is not (content.kind == Owner.LOCAL):
            raise Violation(
                "K-02",
                f"the PREPARE at {offset} of {tx.branch or 'a local transaction'} is by {Owner(content.kind).name}",
            )
        self._apply_events(offset, tx, content)
        self._end(tx.tx_id, Fate.COMMITTED)
        if content.kind == Owner.OPERATOR:
            self._complete(tx.name, True)
        self.committed_at[tx.tx_id] = offset
        if content.name:
            self.named_at.setdefault(content.name, offset)
            self._name(content.name, Fate.COMMITTED)
        if self.on_commit is not None:
            self.on_commit(tx)

    def _apply_events(self, offset: int, tx: ReferenceTransaction, prepare: Prepare) -> None:
        for _, message, parts in tx.events:
            if message is None:
                for queue_id, ids in parts:
                    for entry_id in ids:  # type: ignore[attr-defined]  # the two kinds of content, told apart by message
                        self._take(offset, queue_id, entry_id, BY_TRANSACTION)
                continue
            if isinstance(message, DelayedMessage) and message.due_ms >> 63:
                message.due_ms += prepare.time_ms - (1 << 63)
            for queue_id, place, limit_ms in parts:
                first = prepare.first_ids.get(queue_id)
                if first is not None:
                    deadline_ms = limit_ms
                    if limit_ms >> 63:
                        deadline_ms = self._from_commit(offset, queue_id, message, limit_ms, prepare.time_ms)
                    self._put(offset, queue_id, first[0] + place, message, deadline_ms)

    def _from_commit(self, offset: int, queue_id: int, message: Message, limit_ms: int, commit_ms: int) -> int:
        """Its time to live begins with the commit: as long as queue and message ask for, whatever the transaction took."""
        queue = self.queues.get(queue_id)
        ttl_ms = limit_ms & ~(1 << 63)
        if queue is not None:
            own = expiration(message.properties)
            spans = [span for span in (queue.ttl_ms, None if own is None else int(own)) if span is not None]
            if ttl_ms != min(spans, default=-1):
                raise Violation(
                    "expiry",
                    f"the commit at {offset} puts a message into {queue.name} for {ttl_ms} ms; asked for are {spans}",
                )
        return max(1, commit_ms + ttl_ms)

    def _commit(self, offset: int, content: Any) -> None:
        tx_id = content[0]
        if self.fates.get(tx_id, Fate.COMMITTED) is not Fate.COMMITTED:
            raise Violation("G2", f"COMMIT of transaction {tx_id} is chosen at {offset}; it was rolled back")

    def _rollback(self, offset: int, content: Any) -> None:
        tx_id, _, name, reason = content
        if self.fates.get(tx_id) is Fate.COMMITTED:
            raise Violation("G2", f"ROLLBACK of transaction {tx_id} is chosen at {offset} ({reason}); it was committed")
        self._end(tx_id, Fate.ROLLED_BACK)
        if name and self.names.get(name) is not Fate.COMMITTED:
            self.named_at.setdefault(name, offset)
            self.names[name] = Fate.ROLLED_BACK

    def _outcome(self, offset: int, content: Any) -> None:
        name = content[0]
        self.named_at.setdefault(name, offset)
        self.names.setdefault(name, Fate.ROLLED_BACK)

    def _trim(self, offset: int, content: Any) -> None:
        upto, low_water = content
        self.trimmed = max(self.trimmed, upto)
        self.low_water = max(self.low_water, low_water)

    def _end(self, tx_id: int, fate: Fate) -> None:
        self.fates[tx_id] = fate
        tx = self.transactions.pop(tx_id, None)
        if tx is not None and tx.branch is not None:
            del self.branches[tx.name]
            self.branch_fates[tx.name] = fate
            self._doubt ^= doubt_of(tx.name)
            self.locked = {key: each for key, each in self.locked.items() if each != tx_id}

    # -- branches -------------------------------------------------------------------------------------------------

    def _dtx_prepare(self, offset: int, content: Any) -> None:
        tx_id, branch = content
        tx = self._transaction(tx_id)
        if tx.prepare is not None or tx.branch is not None:
            raise Violation("G2", f"transaction {tx_id} is prepared at {offset}, and was closed before")
        tx.branch = branch
        if tx.name in self.branches or tx.name in self.completions:
            raise Violation("G2", f"branch {branch.xid} is prepared at {offset}, and is prepared or completed")
        self.branches[tx.name] = tx_id
        self.locked.update(dict.fromkeys(tx.dequeues(), tx_id))
        self._doubt ^= doubt_of(tx.name)

    def _dtx_rollback(self, offset: int, content: Any) -> None:
        tx_id, _, name = content
        if self.branches.get(name) != tx_id:
            raise Violation("G2", f"DTX_ROLLBACK of {name} is chosen at {offset}, which is not in doubt")
        self._end(tx_id, Fate.ROLLED_BACK)
        self._complete(name, False)

    def _complete(self, name: BranchName, committed: bool) -> None:
        self.completions[name] = committed
        self._doubt ^= doubt_of(name, committed)

    def _dtx_forget(self, offset: int, name: BranchName) -> None:
        committed = self.completions.pop(name, None)
        if committed is not None:
            self._doubt ^= doubt_of(name, committed)

    def _name(self, name: str, fate: Fate) -> None:
        if self.names.setdefault(name, fate) is not fate:
            raise Violation("G8", f"transaction {name!r} is {fate.value} after its name was barred or rolled back")

    # -- asking ---------------------------------------------------------------------------------------------------

    def ids_at(self, offset: int) -> dict[int, set[int]]:
        """Queue id to the ids that were there at ``offset``. Walks over everything that ever was: for messages to people."""
        found = {
            queue.id: {entry_id for entry_id, held in queue.entries.items() if held.offset <= offset}
            for queue in self.queues.values()
        }
        for (queue_id, entry_id), departed in self.departed.items():
            if departed.came_at <= offset < departed.offset:
                found.setdefault(queue_id, set()).add(entry_id)
        return found

    def queue_named(self, name: str) -> ReferenceQueue | None:
        """The queue of that name that is there now."""
        for queue in self.queues.values():
            if queue.name == name:
                return queue
        return None
