"""Bugs that reviews have found in this core, and no sweep before. The campaign does not hold the ordinary sweep to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.clients.channel import Channel
from understudy.broker.core.queues.entry import DEQUEUING
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state.state_topology import StateTopology
from understudy.broker.core.topology.registry import TopologyImage, is_another_exchange
from understudy.broker.log import record
from understudy.broker.log.log import Log
from understudy.broker.log.pending import Change
from understudy.broker.transactions.tx_buffer import Event, TxBuffer
from understudy.ha.following.backup import Backup
from understudy.ha.leading.admission import Admission
from understudy.ha.leading.primary import Primary
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.refill import Refill
from understudy.replicator.sending.catch_up import CatchUp


@mutation("G1", "G2", "G3")
def brought_without_is_not_told(bug: Bug) -> None:
    """Who was brought up by a log without transient records, and leads, does not say in its EPOCH that they are lost."""
    real: Any = BrokerReplicator.lacks_transients

    def lacks_transients(self: BrokerReplicator) -> bool:
        restarted = self.fresh and self._state.log.end > 0
        if real.fget(self) and not restarted:
            bug.strike()
        return restarted

    bug.replace(BrokerReplicator, "lacks_transients", property(lacks_transients))


@mutation("liveness")
def what_nobody_has_is_asked_for(bug: Bug) -> None:
    """A joiner is held to transient events that its primary has lost: it refuses the transaction."""
    real = CatchUp._lacks_transients

    def lacks_transients(self: CatchUp) -> bool:
        if real(self):
            bug.strike()
        return False

    bug.replace(CatchUp, "_lacks_transients", lacks_transients)


@mutation("liveness")
def holes_outlive_a_cut(bug: Bug) -> None:
    """A place of the log is taken for a hole after what stood there was cut away."""
    real = Log.cut

    def cut(self: Log, offset: int) -> None:
        before = self._last_hole
        real(self, offset)
        if before > offset:
            bug.strike()
            self._last_hole = before

    bug.replace(Log, "cut", cut)


@mutation("liveness")
def joiners_no_to_a_rollback_ends_its_link(bug: Bug) -> None:
    """A joiner that refuses a transaction which was rolled back already is sent away, and so on."""
    real = Primary._refused

    def refused(self: Primary, backup: RemoteBackup, tx_id: int, prepare_offset: int, reason: str) -> None:
        if not backup.listed and self._was_rolled_back(tx_id):
            bug.strike()
            self._drop_link(backup, f"a no to transaction {tx_id} counts only from a listed broker; rejoin by catch-up")
            return
        real(self, backup, tx_id, prepare_offset, reason)

    bug.replace(Primary, "_refused", refused)


@mutation("liveness")
def credit_keeps_rollback_back(bug: Bug) -> None:
    """Who refuses a transaction acknowledges nothing behind PREPARE, and so much may be unacknowledged: ROLLBACK is not sent."""

    def owe_rollback(self: Primary, backup: RemoteBackup, tx_id: int) -> None:
        sender = backup.sender
        if sender is not None and sender._unacknowledged_bytes >= sender._credit_bytes:
            bug.strike()

    bug.replace(Primary, "_owe_rollback", owe_rollback)


@mutation("G4")
def lost_copy_counts_until_it_is_removed(bug: Bug) -> None:
    """What a listed broker acknowledged counts on, though it has come back without it, until the store has it out."""
    real = Admission.synchronize

    def synchronize(self: Admission, link: Link, sync: wire.Sync) -> None:
        backup = self._backups.get(link.peer)
        before = backup.acked if backup is not None else 0
        real(self, link, sync)
        if backup is not None and backup.lost_data and backup.acked < before:
            bug.strike()
            backup.acked = before

    bug.replace(Admission, "synchronize", synchronize)


@mutation("liveness")
def room_again_is_not_heard(bug: Bug) -> None:
    """A joiner does not say that its disk has room again, nor does a primary hear it before EPOCH is on its disk."""
    real = Backup.disk_low

    def disk_low(self: Backup, reason: str, room: int) -> None:
        if self.link is not None and not self.listed and not reason:
            bug.strike()
            self.disk.looked(reason, room)
            return
        real(self, reason, room)

    def passed_over(self: Primary, link: Link, low_disk: str) -> None:
        bug.strike()

    bug.replace(Backup, "disk_low", disk_low)
    bug.replace(Primary, "_low_disk_of_waiting", passed_over)


@mutation("G4", "G5", "G7")
def base_on_no_disk_is_acknowledged(bug: Bug) -> None:
    """What a catch-up on an earlier link has brought counts as durable on the next, whether it is on the disk or not."""
    real = BrokerReplicator.acknowledge

    def acknowledge(self: BrokerReplicator) -> None:
        if self._pieces_synced < self._synced_first:
            bug.strike()
            self._synced_first = 0
        real(self)

    bug.replace(BrokerReplicator, "acknowledge", acknowledge)


@mutation("G1", "G2", "G9", "liveness")
def refill_of_the_running_only_adds(bug: Bug) -> None:
    """Who is refilled and has not restarted keeps what is not durable: what was deleted unseen stays."""

    def forget_transients(self: BrokerReplicator) -> None:
        if not self.fresh:
            bug.strike()
            self.fresh = True

    bug.replace(BrokerReplicator, "_forget_transients", forget_transients)


@mutation("G2")
def a_refill_is_ahead_of_the_log(bug: Bug) -> None:
    """Exchanges and bindings of a refill are there at once: what the log does to older ones of their names is done to them."""
    real = Refill.declare

    def declare(self: Refill, topology: Iterable[bytes], epoch: int, upto: int, message_ids: bytes = b"") -> None:
        log = self._state.log
        if upto > log.applied and any(change is Change.TOPOLOGY for _, change, _ in log.pending):
            bug.strike()
        real(self, topology, epoch, 0, message_ids)

    bug.replace(Refill, "declare", declare)


@mutation("G2")
def waiting_declarations_outlive_a_refill(bug: Bug) -> None:
    """What is not durable, was received and is not applied stays before a refill, though its deletion may be a hole."""
    real = StateTopology.forget_transients

    def forget_transients(self: StateTopology) -> None:
        before = list(self.log.pending)
        real(self)
        if len(self.log.pending) < len(before):
            bug.strike()
            self.log.pending.clear()
            self.log.pending.extend(before)
            self.rebuild_registry()

    bug.replace(StateTopology, "forget_transients", forget_transients)


@mutation("G2")
def the_first_declaration_of_an_exchange_stays(bug: Bug) -> None:
    """An exchange that is declared anew, and differs, is taken for the one that a hole has deleted."""
    real = TopologyImage.apply

    def apply(self: TopologyImage, kind: int, raw: bytes) -> None:
        if kind == record.EXCHANGE_DECLARE:
            name = record.decode_exchange_declare(raw, 5, len(raw))[:2]
            if is_another_exchange(self.exchanges.get(name, raw), raw):
                bug.strike()
                return
        real(self, kind, raw)

    bug.replace(TopologyImage, "apply", apply)


@mutation("G4")
def unknown_branches_are_answered_at_once(bug: Bug) -> None:
    """Who asks for a branch that is not there is told so by a primary that may have been replaced."""

    def answer(self: Channel, key: int, say: Callable[[], None]) -> None:
        bug.strike()
        self.awaiting = key
        self.answered(say, self.abandoned)

    bug.replace(Channel, "answer_when_acknowledged", answer)


@mutation("G1", "G2")
def a_branch_keeps_what_is_transient(bug: Bug) -> None:
    """Who has not restarted commits transient messages that the new primary has lost."""
    real = TxBuffer.drop_transients

    def drop_transients(self: TxBuffer, offset: int) -> list[Event]:
        if self._marks is None or not self.transient_at:
            return real(self, offset)
        bug.strike()
        return []

    bug.replace(TxBuffer, "drop_transients", drop_transients)


@mutation("G1", "G2", "G9")
def a_refill_brings_what_an_epoch_has_ended(bug: Bug) -> None:
    """A primary refills a restarted broker with what is transient in a branch, though an EPOCH in both logs ends that."""
    real = Log.transients_end

    def transients_end(self: Log, upto: int) -> int:
        if real(self, upto):
            bug.strike()
        return 0

    bug.replace(Log, "transients_end", transients_end)


@mutation("G1", "G2")
def what_was_not_sent_outlives_a_hand_over(bug: Bug) -> None:
    """The new core of a former primary lacks what was acknowledged in the batch that was not closed."""
    real = Queue.continue_from

    def continue_from(self: Queue, ended: Queue) -> None:
        real(self, ended)
        for entry in ended.entries.values():
            if entry.state == DEQUEUING:
                bug.strike()
                self.remove(entry.id)

    bug.replace(Queue, "continue_from", continue_from)
