"""RemoteBackup: the primary's view of one backup, as a state machine.

``JOINING`` is the table of its states and moves; docs/replication.md shows it as a diagram. `RemoteBackup` alone writes its own
fields: the primary and its parts tell it what has happened, and read.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from understudy.broker.core.state import BrokerState
from understudy.broker.log.log import Log
from understudy.broker.state_table import StateTable
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.leading.queue_guard import QueueGuard
from understudy.ha.leading.tx_tracker import TxTrackers
from understudy.ha.status import BrokerStatus
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.sending.catch_up import CatchUp
from understudy.replicator.sending.log_sender import LogSender
from understudy.replicator.tx_queue import tx_queue_name

OUTSIZE_BYTES_PER_MS: Final = 16 << 10
"""16 MiB a second: a backup that takes a batch of `OUTSIZE_BYTES` more slowly, its disk included, does not get on."""


class BackupState(Enum):
    """Of one backup, as its primary sees it."""

    ABSENT = "neither listed nor linked"
    SYNCING = "a joiner whose SYNC is being judged"
    COMPARING = "a joiner whose ids are awaited"
    CATCHING_UP = "a joiner whose catch-up is under way"
    FOLLOWING = "a joiner that follows the log"
    GUARDED = "a guarded joiner"
    UNSETTLED = "a guarded joiner without a link"
    AWAITED = "listed without a link"
    RETURNING = "listed, and its SYNC is being judged"
    IN_SYNC = "listed, and follows the log"


class BackupEvent(Enum):
    """A change of one backup's state."""

    LINK = "links"
    RESUME = "resumes"
    COMPARE = "is asked for its ids"
    CATCH_UP = "sends its ids"
    CAUGHT_UP = "holds all pieces"
    GUARD = "is guarded"
    LIST = "is listed"
    EXPEL = "is expelled"
    UNLINK = "loses its link"


_S, _E = BackupState, BackupEvent
LISTED: Final = frozenset((_S.AWAITED, _S.RETURNING, _S.IN_SYNC))
"""The states of a backup that is in the stored in-sync set, or may be (an add whose answer is lost)."""
JOINING: Final = StateTable(
    {
        (_S.ABSENT, _E.LINK): _S.SYNCING,
        (_S.SYNCING, _E.RESUME): _S.FOLLOWING,
        (_S.SYNCING, _E.COMPARE): _S.COMPARING,
        (_S.COMPARING, _E.CATCH_UP): _S.CATCHING_UP,
        (_S.CATCHING_UP, _E.CAUGHT_UP): _S.FOLLOWING,
        (_S.FOLLOWING, _E.GUARD): _S.GUARDED,
        (_S.GUARDED, _E.LIST): _S.IN_SYNC,
        (_S.GUARDED, _E.UNLINK): _S.UNSETTLED,
        (_S.UNSETTLED, _E.LIST): _S.AWAITED,
        (_S.AWAITED, _E.LINK): _S.RETURNING,
        (_S.RETURNING, _E.RESUME): _S.IN_SYNC,
        (_S.IN_SYNC, _E.LINK): _S.RETURNING,
        **{(state, _E.UNLINK): _S.AWAITED for state in (_S.AWAITED, _S.RETURNING, _S.IN_SYNC)},
        **{(state, _E.EXPEL): _S.ABSENT for state in (_S.AWAITED, _S.IN_SYNC)},
        **{
            (state, _E.UNLINK): _S.ABSENT
            for state in (_S.ABSENT, _S.SYNCING, _S.COMPARING, _S.CATCHING_UP, _S.FOLLOWING)
        },
        (_S.UNSETTLED, _E.UNLINK): _S.UNSETTLED,
        **{
            (state, _E.LINK): _S.SYNCING
            for state in (_S.COMPARING, _S.CATCHING_UP, _S.FOLLOWING, _S.GUARDED, _S.UNSETTLED)
        },
        (_S.ABSENT, _E.LIST): _S.AWAITED,
    }
)
"""A catch-up never touches a listed backup, and only a guarded joiner is listed: no row says otherwise."""
BEGINS: Final = {_S.ABSENT: "it links", _S.AWAITED: "the store lists it"}
"""The states of a backup that the primary did not know."""


class RemoteBackup:
    """One backup, listed or joining.

    Everything here but ``broker`` and ``listed`` belongs to one link. A new link begins anew: nothing that the backup held before
    counts as acknowledged.

    Attributes:
        state: where it stands in `JOINING`.
        listed: ``state in LISTED``: completions wait for it.
        acked: the log offset up to which it has acknowledged on this link.
        most_acked: the same on any link, as long as it is listed.
        progress_ms: monotonic time at which it got on: for a listed one, acknowledged what it had never acknowledged before.
        guard: of a joiner that has been sent everything: completions wait for it from there on.
        must_leave: why it cannot stay in the set, whatever it does ("" if it can).
        leaving: why it is to be expelled as things stand; silence is a reason that may pass.
        resumed_at: where the primary's log ended when it resumed on this link; 0 if it did not.
        newest_record_format: the newest that it reads, as it has said on this link; 0 without one.
        lost_data: it is listed and lacks stable records: its disk was lost or replaced.
        since_ms: monotonic time of its present link, or of losing it; without either, of this primary's beginning to know it.
        told: what the last STATUS on this link has said.
        low_disk: why it is not to be listed, and had better be expelled if it is ("" if its disk has room).
    """

    def __init__(self, broker: str, listed: bool, now_ms: int) -> None:
        self.broker = broker
        self.state = BackupState.AWAITED if listed else BackupState.ABSENT
        self.listed = listed
        self.link: Link | None = None
        self.sender: LogSender | None = None
        self.catch_up: CatchUp | None = None
        self.acked = self.most_acked = 0
        self.guard: QueueGuard | None = None
        self._sent_first = -1
        self.trackers = TxTrackers()
        self.must_leave = ""
        self.leaving = ""
        self.lost_data = False
        self.low_disk = ""
        self.told = ""
        self.newest_record_format = 0
        self.resumed_at = 0
        self.progress_ms = now_ms
        self.since_ms = now_ms
        self.ever_linked = False

    def __str__(self) -> str:
        return f"backup {self.broker}"

    def _move(self, event: BackupEvent) -> None:
        """Go on to the state that `JOINING` has after ``event``.

        Raises:
            IllegalMoveError: there is none; nothing has changed.
        """
        self.state = state = JOINING.after(self.state, event, self)
        self.listed = state in LISTED

    # -- its link -----------------------------------------------------------------------------------------------------

    def linked(self, link: Link, now_ms: int) -> None:
        """Take a new link, on which a SYNC has come: all that belonged to the old one is forgotten."""
        self._move(BackupEvent.LINK)
        self._forget_link(now_ms)
        if not self.listed:
            self.guard = None
        self.link = link
        self.newest_record_format = link.newest_record_format
        self.since_ms = now_ms
        # Completions wait for a listed backup, and a link by itself brings them nothing (decision 0025).
        if not (self.listed and self.ever_linked):
            self.progress_ms = now_ms
        self.ever_linked = True

    def unlinked(self, now_ms: int) -> None:
        """Note that the link is gone. A listed backup stays listed, and holds what it has acknowledged."""
        self._move(BackupEvent.UNLINK)
        self._forget_link(now_ms)

    def _forget_link(self, now_ms: int) -> None:
        if self.link is not None:  # else it was lost before, and is not lost again now
            self.since_ms = now_ms
        self.link = None
        self.sender = None
        self.catch_up = None
        self._sent_first = -1
        self.trackers = TxTrackers()
        self.low_disk = self.told = ""
        self.newest_record_format = 0
        self.resumed_at = 0
        if not self.listed:
            self.acked = 0

    def dropped(self, reason: str, now_ms: int) -> None:
        """End the link, if there is one: the backup is told ``reason``."""
        if self.link is not None:
            self.link.close(reason)
        self.unlinked(now_ms)

    def tell(self, status: str) -> None:
        """Say READY to a listed backup, and to another what is between it and that, for its own status page."""
        if self.link is not None and self.told != status:
            self.told = status
            self.link.send(wire.encode_status(status))

    def reports_disk(self, low_disk: str) -> None:
        """Note why the disk of the backup has too little room, "" if it has enough."""
        self.low_disk = low_disk

    # -- how it is brought onto the log -------------------------------------------------------------------------------

    def resumed(self, log_end: int, sender: LogSender, refill: CatchUp | None) -> None:
        """Begin to send the log behind what the backup holds, and what is transient if its process is new (``refill``)."""
        self._move(BackupEvent.RESUME)
        self.acked = 0
        self.resumed_at = log_end
        self.catch_up = refill
        self.sender = sender

    def cannot_resume(self, reason: str, common: int, *, lost_data: bool) -> None:
        """Note that the listed backup lacks what it must hold: it has to leave the set before it can be caught up.

        Args:
            reason: for people.
            common: what it acknowledged beyond this offset, and has lost, is on no disk.
            lost_data: records that it lacks are stable.
        """
        self.must_leave = reason
        self.lost_data = lost_data
        self.acked = min(self.acked, common)

    def asked_for_ids(self) -> None:
        """Note that CATCH_UP is sent: the backup answers with the ids that it holds."""
        self._move(BackupEvent.COMPARE)

    @property
    def awaiting_ids(self) -> bool:
        """True between CATCH_UP and the answer to it."""
        return self.state is BackupState.COMPARING

    def catch_up_begins(self, catch_up: CatchUp, sender: LogSender) -> None:
        """Begin the catch-up that brings the backup what it lacks; ``sender`` sends the log behind its base."""
        self._move(BackupEvent.CATCH_UP)
        self.catch_up = catch_up
        self.sender = sender

    def log_opens(self, sender: LogSender) -> None:
        """Note that all that comes before the log is sent: ``sender`` begins behind the base, which may have moved on."""
        self.sender = sender

    def refill_ends(self) -> None:
        """Forget the refill, which is finished: nothing asks for it any more."""
        self.catch_up = None

    def pieces_acknowledged(self, count: int, now_ms: int) -> list[int]:
        """Note that the first ``count`` pieces of the catch-up are held. Returns the transactions whose trackers that clears."""
        if self.catch_up is None:
            return []
        if not self.listed:  # a refill's come with every link
            self.progress_ms = now_ms
        whole = self.catch_up.acknowledged(count)
        if self.state is BackupState.CATCHING_UP and self.catch_up.finished:
            self._move(BackupEvent.CAUGHT_UP)
        return [tx_id for tx_id in whole if self.trackers.clear(tx_id)]

    def tx_closes(self, tx: TxBuffer) -> bool:
        """Make trackers of ``tx``, which closes now, if the backup does not hold all of it. Returns True if so."""
        if self.catch_up is None or not self.catch_up.lacks(tx.tx_id):
            return False
        self.trackers.track(tx, self.catch_up.ids_held(tx.tx_id))
        return True

    # -- the in-sync set ----------------------------------------------------------------------------------------------

    def guard_from(self, offset: int) -> None:
        """Let completions beyond ``offset`` wait for the joiner."""
        self._move(BackupEvent.GUARD)
        self.guard = QueueGuard(offset)

    def enters_set(self, now_ms: int) -> None:
        """Note that the store lists the backup: it waits no more behind its guard, and is told READY."""
        self.counts_as_listed(now_ms)
        self.tell(BrokerStatus.READY.value)

    def counts_as_listed(self, now_ms: int) -> None:
        """Note that the store lists the backup, or may: completions wait for it as for a member."""
        self._move(BackupEvent.LIST)
        self.guard = None
        self.progress_ms = now_ms

    def to_leave(self, reason: str) -> None:
        """Note why the backup is to be expelled as things stand, "" if it is not."""
        self.leaving = reason

    def cannot_stay(self, reason: str) -> None:
        """Note why the backup is to be expelled whatever it does from now on."""
        self.must_leave = reason

    def expelled(self, reason: str, now_ms: int) -> None:
        """Note that the store has the set without the backup: its link ends, and nothing waits for it any more."""
        self._move(BackupEvent.EXPEL)
        if self.link is not None:
            self.link.close(reason)
        self.must_leave = self.leaving = ""
        self.lost_data = False
        self._forget_link(now_ms)

    @property
    def holds_back_from(self) -> int | None:
        """Completions beyond this offset wait for this backup; None if they do not."""
        if self.listed:
            return self.acked
        if self.guard is not None:
            return max(self.guard.position, self.acked)
        return None

    def acknowledged(self, offset: int, now_ms: int) -> None:
        """Note that the backup is durable up to ``offset``."""
        if offset > self.acked:
            self.acked = offset
            if offset > self.most_acked or not self.listed:
                self.most_acked = offset
                self.progress_ms = now_ms
        if self.sender is not None:
            self.sender.acknowledged(offset)

    def silent_for(self, log: Log, now_ms: int) -> int:
        """Milliseconds without progress while something was outstanding."""
        if self.acked >= log.closed_end and (self.link is None or self.caught_up):
            self.progress_ms = now_ms
        return now_ms - self.progress_ms

    @property
    def allowance_ms(self) -> int:
        """So much longer than others it may be silent: a batch of 64 MiB or more is on its way, and is acknowledged as a whole."""
        return self.sender.outsize_bytes // OUTSIZE_BYTES_PER_MS if self.sender is not None else 0

    @property
    def opening(self) -> bool:
        """The log does not flow yet: what comes before it is on its way."""
        return self.catch_up is not None and not self.catch_up.opened

    @property
    def caught_up(self) -> bool:
        """No catch-up is under way. A refill brings nothing that readiness asks for."""
        return not self.lacks_pieces

    @property
    def lacks_pieces(self) -> bool:
        """Pieces of a catch-up are still to come to it, or to be acknowledged."""
        return self.catch_up is not None and not self.catch_up.refill and not self.catch_up.finished

    def may_be_guarded(self) -> bool:
        """Everything closed has been sent to it in full, undecided transactions included."""
        return self.sender is not None and self.caught_up and self.sender.at_end

    def keeps_up(self, closed_end: int) -> bool:
        """True if the backup has acknowledged all that the log held when it was first sent everything, on this link.

        A backup whose disk hangs takes all that it is sent. A primary that waited for it would wait until it is dropped, and
        again with every link that it makes.
        """
        if self._sent_first < 0:
            self._sent_first = closed_end
        return self.acked >= self._sent_first

    def may_be_listed(self) -> bool:
        """The guard is passed and the trackers are clear."""
        return (
            self.guard is not None
            and self.sender is not None
            and self.caught_up
            and self.guard.passed_by(self.acked)
            and self.trackers.all_clear
            and not self.low_disk
        )

    def readiness(self, state: BrokerState) -> BackupReadiness:
        """The readiness of this backup, with all that blocks it; ``state`` is the primary's."""
        catching_up = self.catch_up is not None and not self.catch_up.finished
        queues = state.queues

        def name(queue_id: int) -> str:
            return queues[queue_id].name if queue_id in queues else tx_id_text(queue_id)

        catch_up = self.catch_up if catching_up else None
        trackers = [(tx_id_text(each.tx_id), name(each.queue_id), each.left) for each in self.trackers.blockers()]
        sending = catch_up.open_transactions() if catch_up is not None else []
        return BackupReadiness(
            broker=self.broker,
            listed=self.listed,
            linked=self.link is not None,
            ever_linked=self.ever_linked,
            catching_up=catching_up or self.awaiting_ids,
            guarded=self.guard is not None,
            lag_records=max(0, state.log.closed_end - self.acked),
            lag_bytes=self.sender.lag_bytes if self.sender is not None else None,
            queues=tuple(catch_up.blockers()) if catch_up is not None else (),
            transactions=tuple(trackers),
            tx_queues=tuple((tx_id_text(tx), tx_queue_name(tx), left) for tx, left in sending),
            since_ms=self.since_ms,
            leaving=self.must_leave or self.leaving or self.low_disk,
        )
