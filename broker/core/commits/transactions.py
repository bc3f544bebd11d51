"""Transactions: what the broker that leads does in them, from the first publish to the decision and its being told.

One commit goes through here in this order: the channel's publishes and accepts (:meth:`Transactions.publish`,
:meth:`~Transactions.accept`) are told to the transaction's observer; the coordinator, which holds the commit order, calls
:meth:`~Transactions.prepare_ordered`: PREPARE; when that is stable the state applies the transaction and appends COMMIT
(``Applying.apply_prepare``); its completion is :meth:`~Transactions._decided`, and the channel hears of it. A ROLLBACK after
a PREPARE is told when it is stable itself.

A branch of a distributed transaction (``dtx_manager.py``) is closed before that, by :meth:`~Transactions.prepare_branch`:
DTX_PREPARE. Its commit is then the same ordered commit as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from understudy.broker.coordinators import (
    NULL,
    CoordinatorChoice,
    NullCoordinator,
    UnorderedCoordinator,
    needs_two_phases,
    overrides,
)
from understudy.broker.core.commits.alone import PersistingObserverFactory
from understudy.broker.core.commits.hosted_order import HostedOrder
from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.commits.several_observers import SeveralObservers
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import record
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.message import Message
from understudy.broker.plugin_api.plugin import TransactionObserver, TransactionObserverFactory
from understudy.broker.transactions.body_parts import PartedBody
from understudy.broker.transactions.commit_order import CommitOrder, EachOrder, GroupOrder
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState, groups_of

if TYPE_CHECKING:
    from understudy.broker.core.commits.port import CommitsPort

NO_DEADLINE: Final = [0]
QUEUES: Final = "queues"
"""All queues of a broker are one participant: they share one log."""


def _from_commit(queue: Queue, expiration_ms: int | None, message: Message) -> int:
    """The deadline of a message in a transaction: its time to live counts from the commit, whenever that is; 0 for never."""
    ttl = queue.time_to_live(expiration_ms, message)
    return 0 if ttl is None else record.FROM_COMMIT | ttl


class Transactions:
    """One per broker. The host of the order.

    Attributes:
        coordinator: orders the commits.
        choice: of which it was made.
        recorder: writes a transaction's records.
        observers: makes the observer that records each transaction; the plugin that extends the core puts its own here.
        engines: make others, which take part in each transaction too: each has its prepare, commit and rollback, in this order,
            behind the one that records.
        open_ids: of transactions that are not decided, and of those that channels will open next.
    """

    def __init__(self, broker: CommitsPort, choice: CoordinatorChoice | None = None) -> None:
        self.broker = self._broker = broker
        self._clock = broker.clock
        self._batch = broker.batch
        self._role = broker.role
        self._note_open_bytes = broker.batch.note_open_bytes
        self._complete = broker.completions.complete
        self._count = broker.counters.count
        self.choice = CoordinatorChoice() if choice is None else choice
        self._state = broker.state
        self._applying = broker.state.applying
        self._taking = broker.state.taking
        self.recorder = TransactionRecorder(broker.state)
        self.observers: TransactionObserverFactory = PersistingObserverFactory(self.recorder)
        self.engines: list[TransactionObserverFactory] = []
        self.open_ids: set[int] = set()
        self._sequence = 0
        self.coordinator = self._make_order()

    def _make_order(self) -> CommitOrder:
        """Make the order of commits. The core itself carries out a coordinator that overrides nothing, without a view.

        A class with an ``__init__`` of its own is made in any case: it may refuse its options.
        """
        coordinator = self.choice.coordinator
        two_phases = needs_two_phases(coordinator)
        if two_phases or overrides(coordinator, "__init__"):
            hosted = HostedOrder(self, self.choice)
            if two_phases or not issubclass(coordinator, NullCoordinator):  # to ask a null coordinator is a mistake
                return hosted
        return EachOrder(self) if issubclass(coordinator, UnorderedCoordinator) else GroupOrder(self)

    def record_by(self, observers: TransactionObserverFactory) -> None:
        """Record each transaction that begins from now on by an observer of ``observers``."""
        self.observers = observers

    def participants(self) -> list[str]:
        """Those that need two phases, by name: the queues, the plugin that extends the core, and the coordinator's."""
        own = self.observers.participant
        return [QUEUES, *([own] if own else []), *self.coordinator.participants()]

    @property
    def in_force(self) -> str:
        """The coordinator that is: with fewer than two participants there is nothing to coordinate."""
        return self.choice.name if len(self.participants()) > 1 else NULL

    # -- ids and names --------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A new transaction id, known as open until :meth:`forget_id`."""
        self._sequence += 1
        tx_id = self.newest_id
        self.open_ids.add(tx_id)
        return tx_id

    def forget_id(self, tx_id: int) -> None:
        """The transaction of that id is decided, or its channel will never open it."""
        self.open_ids.discard(tx_id)

    @property
    def newest_id(self) -> int:
        """The id given last."""
        return self._role.epoch << ID_EPOCH_SHIFT | self._sequence

    def named(self, name: str, besides: TxBuffer | None = None) -> TxBuffer | None:
        """An open or closed transaction under a client-made name, other than ``besides``."""
        for tx in self._state.transactions.values():
            if tx.name == name and tx is not besides:
                return tx
        return None

    def _is_committing(self, name: str, besides: TxBuffer) -> bool:
        """True if the client of another transaction of that name has said commit, and was not refused."""
        others = self._state.transactions.values()
        return any(tx.name == name and tx.decided is not None for tx in others if tx is not besides)

    # -- while it is open -----------------------------------------------------------------------------------------

    def publish(
        self, tx: TxBuffer, queues: list[Queue], message: Message, expiration_ms: int | None, *, judged: bool = False
    ) -> None:
        """Enqueue within ``tx``: the queues hold it embargoed until the decision.

        ``judged``: :meth:`fresh` has found that ``queues`` take it.
        """
        broker = self._broker
        if self._applying.deduplicates and not judged and not tx.own:
            queues = self.fresh(tx, queues, message)
            if not queues:
                return
        self._note_open_bytes(message.size)
        if len(queues) == 1 and expiration_ms is None and queues[0].logged and queues[0].ttl_ms is None:
            observer = tx.observer if tx.observer is not None else self._observer(tx)
            observer.publish(tx, queues, NO_DEADLINE, message)
            return
        logged = [queue for queue in queues if queue.logged]
        if logged:
            if broker.log.may_hold(record.TX_ENQUEUE_TIMED):
                deadlines = [_from_commit(queue, expiration_ms, message) for queue in logged]
                if any(deadlines):
                    tx.note_timed()
            else:  # a broker of the group reads only deadlines that are fixed by now
                deadlines = [self._batch.deadline(queue, expiration_ms, message) for queue in logged]
            self._observer(tx).publish(tx, logged, deadlines, message)
        if len(logged) < len(queues):
            local = [(q.id, 0, _from_commit(q, expiration_ms, message)) for q in queues if not q.logged]
            for queue_id, _, _ in local:
                queue = self._state.queues[queue_id]
                queue.count_uncommitted(queue.uncommitted + 1)
            message.stay()
            tx.add_unlogged(message, local)
            if not tx.own and tx.size_bytes > self._taking.tx_memory_bytes:
                self._taking.spill_body(message)

    def fresh(self, tx: TxBuffer, queues: list[Queue], message: Message) -> list[Queue]:
        """Those of ``queues`` of which ``message``, published within ``tx``, is no duplicate."""
        if not self._applying.deduplicates or not queues or message.moved:
            return queues
        return self._broker.deduplicating.within(tx, queues, message)

    def begin_body(self, tx: TxBuffer, message: Message) -> PartedBody:
        """The body of ``message``, a publish within ``tx``, is put into the log in parts from now on; :meth:`publish` follows them.

        If ``tx`` is that message alone, no client and no engine knows of it.
        """
        if tx.own:
            tx.observed_by(self.observers.create(tx))
        else:
            self._observer(tx)
        return self.recorder.begin_body(tx, message)

    def publish_own(
        self, tx: TxBuffer, queues: list[Queue], message: Message, expiration_ms: int | None
    ) -> tuple[int, int]:
        """Enqueue outside of transactions a message whose body stands in parts: ``tx``, which holds these, is its own.

        The coordinator does not hear of it either: it orders transactions of clients.

        Returns:
            The offset of the message's record, and that of PREPARE, at which the outcome is known.
        """
        broker = self._broker
        self.publish(tx, queues, message, expiration_ms)
        enqueued_at = broker.log.end
        tx.observer.prepare(tx)
        offset = self.recorder.prepare(tx, self._applying.csn + 1, self._clock.expiry_now())
        self._complete(offset, self._own_decided, tx)
        return enqueued_at, offset

    def _own_decided(self, tx: TxBuffer) -> None:
        """The log is applied up to the PREPARE of ``tx``; if a ROLLBACK follows, :meth:`_rolled_back` is called for that."""
        if tx.state is TxState.COMMITTED:
            tx.observer.commit(tx)
            self._tell(tx)

    def accept(self, tx: TxBuffer, settled: list[tuple[Queue, Entry]]) -> None:
        """Dequeue within ``tx``; the entries stay handed out until the decision."""
        self._batch.close_dequeues()
        logged = groups_of([(queue.id, entry.id) for queue, entry in settled if queue.logged])
        if logged:
            self._observer(tx).accept(tx, logged)
        local = groups_of([(queue.id, entry.id) for queue, entry in settled if not queue.logged])
        if local:
            tx.add_unlogged(None, local)

    def _observer(self, tx: TxBuffer) -> TransactionObserver:
        observer: TransactionObserver | None = tx.observer
        if observer is None:
            observer = self.observers.create(tx)
            if self.engines:
                observer = SeveralObservers([observer, *(engine.create(tx) for engine in self.engines)])
            tx.observed_by(observer)
        return observer

    def roll_back(self, tx: TxBuffer, reason: str) -> int:
        """End an open transaction; what it held is freed when ROLLBACK is stable.

        Returns:
            The offset of ROLLBACK; 0 if the log knows nothing of ``tx``, and it is freed.
        """
        tx.withdrawn()
        return self._end_open(tx, reason)

    def _end_open(self, tx: TxBuffer, reason: str) -> int:
        assert tx.closing is None, f"transaction {tx.tx_id} is closed: only its decision ends it"
        if tx.ids:
            self._broker.deduplicating.release(tx)
        offset = 0
        if tx.logged_events:
            self._batch.close_dequeues()
            if tx.name and self._is_committing(tx.name, tx):
                tx.named("")  # its ROLLBACK would stand before that one's PREPARE, and take the name
            offset = self.recorder.rollback(tx, self._clock.wall_ms, reason)
            tx.observer.rollback(tx)
            tx.observed_by(None)
        else:
            self._applying.forget_unlogged(tx, reason)
        self._count("rolled_back")
        return offset

    def refuse(self, tx: TxBuffer, reason: str) -> None:
        """Roll back a transaction that has asked for its commit and is not closed; its client is told when that is stable.

        If the log knows nothing of it but a name, a record bars the name: no later transaction commits under a name of which a
        client was told that it is rolled back.
        """
        broker = self._broker
        offset = self._end_open(tx, reason)
        if not offset:  # its commit has made it known
            self._state.transactions.pop(tx.tx_id, None)
            offset = broker.name_bars.bar(tx.name) if tx.name else self._batch.provable()
        self.forget_id(tx.tx_id)
        self._complete(offset, self._tell_refused, tx)

    def _tell_refused(self, tx: TxBuffer) -> None:
        """The record that bars its name is applied, if there is one: from now on the outcomes say so."""
        if tx.name and not self._broker.name_bars.is_barred(tx.name):
            self._broker.name_bars.forget(tx.name)
        self._tell(tx)

    # -- branches -------------------------------------------------------------------------------------------------

    def prepare_branch(self, tx: TxBuffer, name: BranchName, prepared: Callable[[TxBuffer], None]) -> None:
        """Close a branch; ``prepared`` is called when its DTX_PREPARE is stable, unless it has been rolled back by then."""
        self._batch.close_dequeues()
        self._observer(tx).prepare(tx)

        def stable(tx: TxBuffer) -> None:
            if not tx.rolls_back:
                prepared(tx)

        self._complete(self.recorder.prepare_branch(tx, name, self._clock.wall_ms), stable, tx)

    def roll_back_for_operator(self, tx: TxBuffer) -> None:
        """An operator rolls a prepared branch back: ``tx.decided`` is called when that is stable."""
        assert tx.in_doubt, f"branch {tx.branch} is decided"
        self._batch.close_dequeues()
        self._complete(self.recorder.roll_back_for_operator(tx, self._clock.wall_ms), self._rolled_back, tx)

    # -- the ordered commit ---------------------------------------------------------------------------------------

    def prepare_ordered(self, tx: TxBuffer) -> None:
        """Called by the order, in commit order."""
        self._batch.close_dequeues()
        if tx.observer is None and (tx.branch is not None or self.engines):
            self._observer(tx)  # it began on another broker, or it has no event that is recorded
        if tx.observer is not None:
            tx.observer.prepare(tx)
        offset = self.recorder.prepare(tx, self._applying.csn + 1, self._clock.expiry_now())
        self._complete(offset, self._decided, tx)

    def commit_ordered(self, tx: TxBuffer) -> None:
        """Called by the order when ``tx`` has been applied."""
        self._count("committed")
        if tx.observer is not None:
            tx.observer.commit(tx)

    def roll_back_closed(self, tx: TxBuffer, reason: str) -> None:
        """A closed transaction was refused by a member: append ROLLBACK, tell the client when that is stable."""
        assert tx.closed_undecided, f"transaction {tx.tx_id} is open, or decided"
        assert tx.branch is None or tx.in_doubt, f"branch {tx.branch} is being committed"
        self._batch.close_dequeues()
        offset = self.recorder.rollback(tx, self._clock.wall_ms, reason)
        self._complete(offset, self._rolled_back, tx)

    def _decided(self, tx: TxBuffer) -> None:
        """The log is applied up to the PREPARE of ``tx``: it is committed, or a ROLLBACK follows, which is told by itself."""
        if tx.state is TxState.COMMITTED:
            self.coordinator.run_commit_ordered([tx])
            self._tell(tx)
        else:
            assert tx.rolls_back, f"transaction {tx.tx_id} is stable and has no outcome: it is {tx.state.value}"

    def _rolled_back(self, tx: TxBuffer) -> None:
        """The log is applied up to the ROLLBACK that follows the PREPARE of ``tx``."""
        assert tx.state is TxState.ROLLED_BACK, f"transaction {tx.tx_id} has a stable ROLLBACK and is {tx.state.value}"
        self._count("rolled_back")
        if tx.observer is not None:
            tx.observer.rollback(tx)
        self.coordinator.rolled_back(tx)
        self._tell(tx)

    def _tell(self, tx: TxBuffer) -> None:
        self.forget_id(tx.tx_id)
        if tx.ids:
            self._broker.deduplicating.release(tx)
        decided = tx.release_listeners()
        if decided is not None:
            decided(tx)
