"""RemoteBackup: the primary's view of one backup."""

from __future__ import annotations

from typing import Final

from understudy.broker.core.state import BrokerState
from understudy.broker.log.log import Log
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.leading.queue_guard import QueueGuard
from understudy.ha.leading.tx_tracker import TxTrackers
from understudy.replicator import wire
from understudy.replicator.catch_up import CatchUp
from understudy.replicator.fabric import Link
from understudy.replicator.log_sender import LogSender
from understudy.replicator.tx_queue import tx_queue_name

OUTSIZE_BYTES_PER_MS: Final = 16 << 10
"""16 MiB a second: a backup that takes a batch of `OUTSIZE_BYTES` more slowly, its disk included, does not get on."""


class RemoteBackup:
    """One backup, listed or joining.

    Everything here but ``broker`` and ``listed`` belongs to one link: whoever links again starts anew, and nothing it held
    before counts as acknowledged.

    Attributes:
        listed: it is in the stored in-sync set, or may be (an add whose answer is lost): completions wait for it.
        acked: the log offset up to which it has acknowledged on this link.
        most_acked: the same on any link, as long as it is listed.
        progress_ms: monotonic time at which it got on: for a listed one, acknowledged what it had never acknowledged before.
        guard: set on a joiner that has been sent everything: completions wait for it from there on.
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
        self.listed = listed
        self.link: Link | None = None
        self.sender: LogSender | None = None
        self.catch_up: CatchUp | None = None
        self.awaiting_ids = False
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

    def linked(self, link: Link, now_ms: int) -> None:
        """A new link: all that belonged to the old one is forgotten."""
        self.unlinked(now_ms)
        self.link = link
        self.newest_record_format = link.newest_record_format
        self.since_ms = now_ms
        # Completions wait for a listed backup, and a link by itself brings them nothing (decision 0025).
        if not (self.listed and self.ever_linked):
            self.progress_ms = now_ms
        self.ever_linked = True

    def tell(self, status: str) -> None:
        """Say READY to a listed backup, and to another what is between it and that, for its own status page."""
        if self.link is not None and self.told != status:
            self.told = status
            self.link.send(wire.encode_status(status))

    def unlinked(self, now_ms: int) -> None:
        """The link is gone. A listed backup stays listed, and what it has acknowledged stays acknowledged: it holds it."""
        if self.link is not None:  # else it was lost before, and is not lost again now
            self.since_ms = now_ms
        self.link = None
        self.sender = None
        self.catch_up = None
        self.awaiting_ids = False
        self._sent_first = -1
        self.trackers = TxTrackers()
        self.low_disk = self.told = ""
        self.newest_record_format = 0
        self.resumed_at = 0
        if not self.listed:
            self.acked = 0

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

    def pieces_acknowledged(self, count: int, now_ms: int) -> list[int]:
        """Note that the first ``count`` pieces of the catch-up are held. Returns the transactions whose trackers that clears."""
        if self.catch_up is None:
            return []
        if not self.listed:  # a refill's come with every link
            self.progress_ms = now_ms
        return [tx_id for tx_id in self.catch_up.acknowledged(count) if self.trackers.clear(tx_id)]

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
