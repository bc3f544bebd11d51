"""Bugs of epochs and of rejoining: who is believed, what is cut, what a catch-up brings."""

from __future__ import annotations

from typing import Any

import attrs

from tests.simulator.checkers.declared import ALWAYS_THERE
from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.state_topology import ALL_EPOCHS, StateTopology
from understudy.broker.log import record
from understudy.broker.message import Message
from understudy.broker.state_table import StateTable
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.following.low_disk import LowDisk
from understudy.ha.leading import remote_backup
from understudy.ha.leading.admission import Admission
from understudy.ha.leading.remote_backup import JOINING, BackupEvent, BackupState, RemoteBackup
from understudy.replicator import snapshot, wire
from understudy.replicator.fabric import Link
from understudy.replicator.id_set import IdSet, IdsLeft
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.queue_replicator import QueueReplicator
from understudy.replicator.receiving.transaction_replicator import TransactionReplicator
from understudy.replicator.sending.log_sender import LogSender
from understudy.replicator.sending.replicating_subscription import ReplicatingSubscription


@mutation("liveness")
def epoch_seen_is_not_durable(bug: Bug) -> None:
    """A backup acts under a new epoch before that epoch is on its disk.

    No promise is broken: every process reads the store before it links, and learns of the epoch there (the model shows it as
    ``epoch-known-by-the-store``). But the backup's journal then lacks an epoch that its row in the store has, so the broker
    counts as damaged, though its disk has lost nothing.
    """

    def note_epoch(self: BrokerReplicator, epoch: int) -> None:
        if epoch > self.epoch_seen:
            bug.strike()
            if self.founding != self.group_founding:  # that it belongs to the group is known for good
                self.note_group(0)
            self.epoch_seen = epoch

    bug.replace(BrokerReplicator, "note_epoch", note_epoch)


@mutation("G6", "G4", "G1")
def tail_compared_by_length(bug: Bug) -> None:
    """A rejoining broker keeps its tail: logs are compared by their lengths, not by the epochs that wrote them."""
    real = Admission.synchronize

    def synchronize(self: Admission, link: Link, sync: wire.Sync) -> None:
        log = self._log
        common = log.epochs.common_offset(log.closed_end, list(sync.starts), sync.end)
        if common < min(sync.end, log.closed_end):
            bug.strike()
        starts = tuple(start for start in log.epochs.starts() if start[1] <= sync.end)
        real(self, link, attrs.evolve(sync, starts=starts))

    bug.replace(Admission, "synchronize", synchronize)


@mutation("G2", "G6", "G4", "G5")
def cut_is_not_durable(bug: Bug) -> None:
    """A rejoining broker cuts its tail in memory, and not on the disk."""

    def cut(self: BrokerReplicator, offset: int) -> None:
        if offset < self._state.log.end:
            bug.strike()
            self._state.taking.cut(offset)
            self._drop_fallen_no_votes()

    bug.replace(BrokerReplicator, "cut", cut)


@mutation("G7")
def listed_broker_is_caught_up(bug: Bug) -> None:
    """A catch-up touches a broker that is in the in-sync set."""
    real: Any = Admission.synchronize
    asks: Any = RemoteBackup.awaiting_ids

    def synchronize(self: Admission, link: Link, sync: wire.Sync) -> None:
        backup = self._backups.get(link.peer)
        if backup is None or not backup.listed or self._in_sync.busy:
            real(self, link, sync)
            return
        log = self._log
        common = log.epochs.common_offset(log.closed_end, list(sync.starts), sync.end)
        reaches = common >= max(sync.log_start, log.stable) and log.kept.reaches(common, log.closed_end)
        if reaches and not sync.part:
            real(self, link, sync)
            return
        bug.strike()
        backup.linked(link, self._broker.clock.now_ms)
        link.send(wire.encode_catch_up(self._epoch))

    def awaiting_ids(self: RemoteBackup) -> bool:
        return bool(asks.fget(self)) or self.state is BackupState.RETURNING

    moves = JOINING.moves | {(BackupState.RETURNING, BackupEvent.CATCH_UP): BackupState.IN_SYNC}
    bug.replace(remote_backup, "JOINING", StateTable(moves))
    bug.replace(RemoteBackup, "awaiting_ids", property(awaiting_ids))
    bug.replace(Admission, "synchronize", synchronize)


@mutation("G1", "G7")
def skip_set_is_a_range(bug: Bug) -> None:
    """A catch-up skips everything up to the newest id that the joiner holds, whatever it lacks below that."""
    real = ReplicatingSubscription.__init__

    def init(
        self: ReplicatingSubscription,
        queue: Queue,
        skip: IdSet,
        transient_only: bool = False,
        none_yet: bool = False,
    ) -> None:
        real(self, queue, skip, transient_only, none_yet)
        newest = max(skip, default=0)
        left = [entry_id for entry_id in self._ids if entry_id >= newest]
        bug.strikes += self._ids.count - len(left)
        self._ids = IdsLeft(IdSet(left))

    bug.replace(ReplicatingSubscription, "__init__", init)


@mutation("G1")
def nothing_is_dropped(bug: Bug) -> None:
    """A joiner keeps messages that the primary does not have any more."""

    def drop(self: QueueReplicator, ids: IdSet) -> None:
        bug.strikes += sum(entry_id in ids for entry_id in self.queue.entries)

    bug.replace(QueueReplicator, "drop", drop)


@mutation("G1")
def caught_up_in_memory(bug: Bug) -> None:
    """A joiner does not journal what a catch-up brings of its queues."""
    real = BrokerReplicator._piece

    def piece(self: BrokerReplicator, message: bytes) -> None:
        if message[0] == wire.QUEUE:
            bug.strike()
            self._pieces += 1
            self._take_piece(message)
            self._pieces_durable(self._pieces)
        else:
            real(self, message)

    bug.replace(BrokerReplicator, "_piece", piece)


@mutation(
    *("G2", "G1", "G4"),
    harmless="what a backup was told to be stable decides nothing when it is promoted: its tail becomes stable anew",
    model="stable-told-ahead",
)
def stable_told_ahead(bug: Bug) -> None:
    """An old batch tells the newest stable position, which rests on records that follow it."""
    real = LogSender.messages

    def messages(self: LogSender, tell_stable: bool) -> list[bytes]:
        told = []
        for message in real(self, tell_stable):
            stable = wire.decode_number(message) if message[0] == wire.BATCH else self._log.stable
            if stable < self._log.stable:
                bug.strike()
                told.append(wire.encode_batch(self._log.stable, message[9:]))
            else:
                told.append(message)
        return told

    bug.replace(LogSender, "messages", messages)


@mutation("G1", "G2", "G3")
def lost_transients_are_not_told(bug: Bug) -> None:
    """Who has restarted and leads does not say in its EPOCH that transient messages are lost: the others keep theirs."""
    real: Any = BrokerReplicator.lacks_transients

    def lacks_transients(self: BrokerReplicator) -> bool:
        if real.fget(self):
            bug.strike()
        return False

    bug.replace(BrokerReplicator, "lacks_transients", property(lacks_transients))


@mutation("G2")
def lost_transients_take_durable_exchanges_along(bug: Bug) -> None:
    """An EPOCH that ends what is transient ends durable exchanges, too, on every broker alike."""
    drop, unregister = StateTopology._drop_transients, StateTopology.unregister_transients

    def drop_transients(self: StateTopology, epoch: int, before: int) -> None:
        drop(self, epoch, before)
        if epoch == ALL_EPOCHS:  # a recovery
            return
        for key in list(self.image.exchanges):
            bug.strike()
            self.image.apply(record.EXCHANGE_DELETE, record.encode_exchange_delete(*key, True))

    def unregister_transients(self: StateTopology, epoch: int) -> None:
        unregister(self, epoch)
        for vhost in self.registry.vhosts.values():
            for name in [name for name in vhost.exchanges if name and name not in ALWAYS_THERE]:
                bug.strike()
                self.registry.remove_exchange(vhost.name, name)

    bug.replace(StateTopology, "_drop_transients", drop_transients)
    bug.replace(StateTopology, "unregister_transients", unregister_transients)


@mutation("G1")
def a_catch_up_takes_the_routing_key_for_the_exchange(bug: Bug) -> None:
    """What a message was published to comes out of a catch-up the wrong way round."""
    real = snapshot.encode_message

    def encode_message(message: Message, body: bytes) -> list[bytes]:
        if message.exchange != message.routing_key:
            bug.strike()
        turned = Message(message.routing_key, message.exchange, message.properties, body, message.persistent)
        return real(turned, body)

    bug.replace(snapshot, "encode_message", encode_message)


@mutation("G1")
def a_catch_up_forgets_deadlines(bug: Bug) -> None:
    """Messages that a catch-up has brought live for ever."""
    real = QueueReplicator.take

    def take(self: QueueReplicator, entries: list[snapshot.Brought], transient: bool) -> None:
        bug.strikes += sum(each.deadline_ms > 0 for each in entries)
        real(self, [each._replace(deadline_ms=0) for each in entries], transient)

    bug.replace(QueueReplicator, "take", take)


@mutation("counts")
def a_joiner_ends_a_transaction_twice(bug: Bug) -> None:
    """Who joined in the midst of a transaction ends it with its record, and again when its tx-queue goes (QPID-5132)."""
    real_take = TransactionReplicator.take_records
    real_commit = Applying._commit
    real_discard = Applying.discard
    brought: set[tuple[Applying, int]] = set()

    def take_records(self: TransactionReplicator, records: list[tuple[int, bytes]]) -> None:
        real_take(self, records)
        brought.add((self._state.applying, self.tx_id))

    def ended(self: Applying, tx: TxBuffer) -> None:
        if (self, tx.tx_id) in brought:
            brought.remove((self, tx.tx_id))
            bug.strike()
            real_discard(self, tx)

    def commit(self: Applying, tx: TxBuffer) -> None:
        real_commit(self, tx)
        ended(self, tx)

    def discard(self: Applying, tx: TxBuffer) -> None:
        real_discard(self, tx)
        ended(self, tx)

    bug.replace(TransactionReplicator, "take_records", take_records)
    bug.replace(Applying, "_commit", commit)
    bug.replace(Applying, "discard", discard)


@mutation("liveness")
def what_fills_a_disk_is_never_let_go(bug: Bug) -> None:
    """A backup whose own journal fills its disk waits for others to make room."""
    real = LowDisk.may_ask

    def may_ask(self: LowDisk, now_ms: int) -> bool:
        if real(self, now_ms):
            bug.strike()
        return False

    bug.replace(LowDisk, "may_ask", may_ask)
