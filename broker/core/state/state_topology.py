"""StateTopology: which queues, exchanges and bindings a broker has, at the newest record and as applied.

The registry is kept at the newest record, since nothing of it can be seen by a client; a cut takes that back from the records that
stay. The image is what is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from understudy.broker.core.queues.deduplication import DeduplicationRule
from understudy.broker.core.queues.priority_queue import queue_class
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.held import Held
from understudy.broker.core.state.raw_records import plain, table
from understudy.broker.core.topology.exchanges import Binding, ExchangeBinding
from understudy.broker.core.topology.policies import Policies
from understudy.broker.core.topology.registry import BINDS, Registry, TopologyImage, is_another_exchange
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.pending import Change
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.transactions.tx_buffer import TxBuffer

ALL_EPOCHS: Final = 1 << 32
ALL_OFFSETS: Final = 1 << 64
OF_REGISTRY: Final = (Change.TOPOLOGY, Change.MISSING, Change.EPOCH)
"""Changes that the registry shows before they are applied."""


class StateTopology:
    """One per state. Its queues, transactions and log are the state's.

    Attributes:
        registry: at the newest record; another object after a cut, a recovery, or a change of what the log lacks.
        image: as applied.
    """

    def __init__(self, state: Held, applying: Applying, policies: Policies | None) -> None:
        self.registry = Registry(policies)
        self.image = TopologyImage()
        self._outside: dict[tuple[str, str], int] = {}
        """Exchanges that the log does not declare, and the epoch in which they were there: EPOCHs up to that may follow."""
        self.log = state.log
        self.queues = state.queues
        self.transactions = state.transactions
        self.id_windows = state.id_windows
        self._state = state
        self._put_off = state.put_off
        self._applying = applying
        appliers: dict[Change, Callable[[Any], Any]] = {
            Change.TOPOLOGY: self._apply_topology,
            Change.EPOCH: self._apply_epoch,
        }
        for change, apply in appliers.items():
            self.log.applies(change, apply)

    # -- the registry ---------------------------------------------------------------------------------------------

    def register(self, raw: bytes) -> None:
        """Change the registry by one topology record (kind without the transient bit)."""
        kind = raw[0]
        end = len(raw)
        registry = self.registry
        if kind == record.QUEUE_DECLARE:
            queue_id, vhost, name, flags, arguments = record.decode_queue_declare(raw, 5, end)
            queue = self.queues.get(queue_id)
            if queue is None or not queue.name:
                place = queue  # held by a recovery for a queue whose name comes now
                alone = bool(flags & record.DEFINITION_ONLY)
                found = table(arguments)
                queue = self.queues[queue_id] = queue_class(found)(
                    queue_id,
                    vhost,
                    name,
                    durable=bool(flags & record.DURABLE),
                    auto_delete=bool(flags & record.AUTO_DELETE),
                    arguments=found,
                    live=LiveOffsets() if alone else self._state.live,
                    level=ReplicationLevel.CONFIGURATION if alone else ReplicationLevel.ALL,
                    overfull=self._state.overfull.append,
                    withholds=self._state.withhold.append,
                )
                self._note_window(queue)
                if place is not None:
                    queue.take_over(place)
            queue.declared(bool(flags & record.USED))
            registry.add_queue(queue)
        elif kind == record.QUEUE_DELETE:
            queue = self.queues.get(record.decode_queue_delete(raw, 5))
            if queue is not None:
                queue.delete()
                registry.remove_queue(queue)
        elif kind == record.EXCHANGE_DECLARE:
            vhost, name, exchange_type, flags, arguments = record.decode_exchange_declare(raw, 5, end)
            declared = registry.add_exchange(vhost, name, exchange_type, flags, table(arguments))
            if self.id_windows.registered(declared):
                self._applying.deduplicate()
        elif kind == record.EXCHANGE_DELETE:
            registry.remove_exchange(*record.decode_exchange_delete(raw, 5))
        elif kind in (record.EXCHANGE_BIND, record.EXCHANGE_UNBIND):
            self._register_exchange_binding(kind, raw)
        else:
            vhost, exchange, queue_id, routing_key, arguments = record.decode_bind(raw, 5, end)
            queue = self.queues.get(queue_id)
            if queue is None:
                return
            if kind == record.BIND:
                registry.bind(vhost, exchange, Binding(queue, routing_key, table(arguments), arguments))
            else:
                registry.unbind(vhost, exchange, (queue_id, routing_key, arguments))

    def _note_window(self, queue: Queue) -> None:
        if queue.window is not None:
            self._applying.deduplicate()

    def _register_exchange_binding(self, kind: int, raw: bytes) -> None:
        registry = self.registry
        vhost, source, destination, routing_key, arguments = decode_exchange_bind(raw, 5, len(raw))
        if kind == record.EXCHANGE_UNBIND:
            registry.unbind(vhost, source, (destination, routing_key, arguments))
            return
        led_to = registry.vhost(vhost).exchanges.get(destination)
        if led_to is not None:
            registry.bind(vhost, source, ExchangeBinding(led_to, routing_key, table(arguments), arguments))

    def rebuild_registry(self, keep_places: bool = False) -> None:
        """Make the registry anew from the applied image and what is pending; queues that neither knows are dropped.

        With ``keep_places`` those stay that a recovery holds a place for: what names them is still to come.
        """
        self.registry = Registry(self.registry.policies)
        applied = self.image.records()
        pending = [(change, argument) for _, change, argument in self.log.pending if change in OF_REGISTRY]
        topology = applied + [plain(argument) for change, argument in pending if change is Change.TOPOLOGY]
        topology += [argument[0] for change, argument in pending if change is Change.MISSING]
        declared = {
            record.decode_queue_declare(raw, 5, len(raw))[0] for raw in topology if raw[0] == record.QUEUE_DECLARE
        }
        for queue_id in [
            queue_id
            for queue_id, queue in self.queues.items()
            if queue.level.declared_in_log and queue_id not in declared and (queue.name or not keep_places)
        ]:
            self._put_off.add(self.queues.pop(queue_id).clear())
        for raw in applied:
            self.register(raw)
        for change, argument in pending:
            if change is Change.TOPOLOGY:
                self.register(plain(argument))
            elif change is Change.MISSING:
                self.register(argument[0])
            elif argument[1]:
                self.unregister_transients(argument[1])
        there = {(vhost.name, name) for vhost in self.registry.vhosts.values() for name in vhost.exchanges}
        self.id_windows.keep_only(there | self.image.exchanges.keys())

    def unregister_transients(self, epoch: int) -> None:
        """Unregister what an EPOCH ends, so that it cannot be used, though that is not applied yet."""
        for queue in [q for q in self.queues.values() if self._ends_with(q, epoch)]:
            self.registry.remove_queue(queue)
        for vhost in self.registry.vhosts.values():
            for exchange in [x for x in vhost.exchanges.values() if not x.durable]:
                if self._outside.get((vhost.name, exchange.name), 0) < epoch:
                    self.registry.remove_exchange(vhost.name, exchange.name)

    @staticmethod
    def _ends_with(queue: Queue, epoch: int) -> bool:
        """True if an EPOCH that ends transient things ends this queue.

        A queue that the log does not declare may be here before older EPOCHs are applied: those end what is older than themselves
        and nothing else. Ids begin with the epoch in which they were given.
        """
        return queue.level.declared_in_log and not queue.durable and queue.id >> ID_EPOCH_SHIFT < epoch

    def add_local(self, queue: Queue) -> None:
        """Have ``queue``, which the log does not declare."""
        self.queues[queue.id] = queue
        self._note_window(queue)
        self.registry.add_queue(queue)

    def remove_local(self, queue: Queue) -> None:
        """End ``queue``, which the log does not declare."""
        queue.delete()
        self.registry.remove_queue(queue)
        self.queues.pop(queue.id, None)
        self._put_off.add(queue.clear())

    # -- applying -------------------------------------------------------------------------------------------------

    def _apply_topology(self, raw: bytes, *, in_log: bool = True) -> None:
        """Change the image by a record of this log, which is the next that is pending, or by what the log lacks."""
        raw = plain(raw)
        kind = raw[0]
        if self._applying.deduplicates:
            self._apply_windows(kind, raw, self.log.pending[0][0] if in_log else 0)
        if kind in BINDS and not self.image.holds_what_is_bound(raw):
            return  # what is bound is forgotten, or comes with the log, or from outside together with this
        self.image.apply(kind, raw)
        if kind == record.QUEUE_DELETE:
            queue = self.queues.pop(record.decode_queue_delete(raw, 5), None)
            if queue is not None:
                self._put_off.add(queue.clear())

    def _apply_windows(self, kind: int, raw: bytes, place: int) -> None:
        """Begin or end the window of an exchange; that of a queue is its own. ``place``: of the record; 0 if this log lacks it."""
        if kind == record.EXCHANGE_DECLARE:
            vhost, name, _, _, arguments = record.decode_exchange_declare(raw, 5, len(raw))
            known = self.image.exchanges.get((vhost, name))
            anew = known is not None and is_another_exchange(known, raw)
            since = place if known is None or anew else 0
            self.id_windows.declared((vhost, name), DeduplicationRule.of(table(arguments)), anew=anew, since=since)
        elif kind == record.EXCHANGE_DELETE:
            vhost, name = record.decode_exchange_delete(raw, 5)
            self.id_windows.deleted((vhost, name), self.registry.vhost(vhost).exchanges.get(name))

    def _apply_epoch(self, argument: tuple[list[TxBuffer], int, int]) -> None:
        ended, transients_lost, offset = argument
        self.id_windows.time(offset, 0)
        for tx in ended:
            tx.applied()
            self._applying.discard(tx)
            self._applying.tell_decided(tx)
        if transients_lost:
            for tx in self.transactions.values():
                if tx.branch is not None:  # all others that were there are over
                    self._applying.release(tx.drop_transients(offset))
            self._drop_transients(transients_lost, offset)

    def _drop_transients(self, epoch: int, before: int) -> None:
        """End everything transient that is older than ``epoch`` (see :meth:`_ends_with`), whose EPOCH stands at ``before``."""
        for queue in list(self.queues.values()):
            if self._ends_with(queue, epoch):
                self.image.apply(record.QUEUE_DELETE, record.encode_queue_delete(queue.id, True))
                self.registry.remove_queue(queue)
                self._put_off.add(queue.clear())
                del self.queues[queue.id]
            elif queue.durable:
                queue.settle()
                for entry in [
                    e for e in queue.entries.objects() if not e.message.persistent and e.id >> ID_EPOCH_SHIFT < epoch
                ]:
                    queue.remove(entry.id)
        self.id_windows.drop_transients(self.queues, before)
        for key, raw in list(self.image.exchanges.items()):
            durable = record.decode_exchange_declare(raw, 5, len(raw))[3] & record.DURABLE
            if not durable and self._outside.get(key, 0) < epoch:
                self.image.apply(record.EXCHANGE_DELETE, record.encode_exchange_delete(*key, True))
                self.id_windows.deleted(key, self.registry.vhost(key[0]).exchanges.get(key[1]))
                self._outside.pop(key, None)

    # -- what the log lacks, and a recovery ------------------------------------------------------------------

    def install(self, topology: Iterable[bytes]) -> None:
        """Have these records, of a state without messages, as the image; :meth:`rebuild_registry` follows."""
        self.image = TopologyImage()
        self._outside.clear()
        for raw in topology:
            self.image.apply(raw[0] & 0x7F, plain(raw))

    def count_uncommitted(self, new: Iterable[int]) -> None:
        """Transactions may have come before these queues."""
        for queue_id in new:
            events = [
                content for tx in self.transactions.values() for _, message, content in tx.events if message is not None
            ]
            embargoed = sum(target[0] == queue_id for content in events for target in content)
            self.queues[queue_id].count_uncommitted(embargoed)

    def apply_outside(self, raw: bytes, epoch: int) -> None:
        """Change the image by a declaration that does not stand in this log. ``epoch``: only EPOCHs of later ones end it."""
        if raw[0] == record.EXCHANGE_DECLARE:
            self._outside[record.decode_exchange_declare(raw, 5, len(raw))[:2]] = epoch
        self._apply_topology(raw, in_log=False)

    def forget_transients(self) -> None:
        """End of a recovery: what the journal noted of non-durable things did not outlive the process.

        A delete of such a thing is not journaled, so what was noted may be gone long since. What is still there comes from outside
        of this log (`apply_outside`), as it is at the end of this log or later. So a declaration that is not applied yet goes, too,
        since what took it back may be a hole. (What takes a message away never is one.)
        """
        self._outside.clear()
        pending = self.log.pending
        kept = [
            each
            for each in pending
            if each[1] not in (Change.MISSING, Change.MESSAGE_IDS)
            and not (each[1] is Change.TOPOLOGY and each[2][0] & record.TRANSIENT)
        ]
        pending.clear()
        pending.extend(kept)
        self._drop_transients(ALL_EPOCHS, ALL_OFFSETS)
        known = set(self.queues)
        self.rebuild_registry()
        self.count_uncommitted(self.queues.keys() - known)

    def end_recovery(self) -> None:
        """All of the journal has been shown: no gap may have declared what drops duplicates."""
        windows = self.id_windows
        windows.drop_recorded()
        in_queues = any(queue.window is not None for queue in self.queues.values())
        self._applying.deduplicate(bool(windows.exchanges) or in_queues)
