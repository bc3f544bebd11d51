"""Adapters between the hooks of a core and the frozen views that passive plugins get (``broker/plugin_api/views.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.plugin_api.views import DeliveryView, QueueName, TxView
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

if TYPE_CHECKING:
    from understudy.broker.core.watching.port import WatchedPort


@attrs.frozen(kw_only=True)
class Listener:
    """The hooks of one passive plugin; None of each that it does not want. None of them may raise."""

    prepared: Callable[[TxView], None] | None = None
    decided: Callable[[TxView], None] | None = None
    delivered: Callable[[DeliveryView], None] | None = None


def listen(broker: WatchedPort, listener: Listener) -> None:
    """Tell ``listener`` what happens in this core from now on. A hook that nobody wants is not hung up, and costs nothing."""
    state = broker.state
    prepared, decided, delivered = listener.prepared, listener.decided, listener.delivered
    if prepared is not None:
        broker.transactions.engines.append(_PreparedFactory(state, prepared))
    if decided is not None:
        state.applying.on_applied_tx.append(lambda tx: None if tx.own else decided(view_of(state, tx)))
    if delivered is not None:
        broker.hooks.on_delivered.append(lambda queue, entry, again: delivered(_delivery(queue, entry, again)))


QueueCounts = MappingProxyType[QueueName, int]


def counts_of(state: BrokerState, tx: TxBuffer) -> tuple[QueueCounts, QueueCounts]:
    """How many messages ``tx`` brings to each queue, and takes out of each; without queues that are deleted."""
    enqueued: Counter[int] = Counter()
    dequeued: Counter[int] = Counter()
    for _, message, content in tx.events:
        if message is None:
            for queue_id, ids in content:
                dequeued[queue_id] += len(ids)
        else:
            for queue_id, *_ in content:
                enqueued[queue_id] += 1
    return _by_name(state, enqueued), _by_name(state, dequeued)


def view_of(state: BrokerState, tx: TxBuffer) -> TxView:
    """``tx`` as it is now; without queues that are deleted."""
    enqueued, dequeued = counts_of(state, tx)
    return TxView(
        tx_id=tx_id_text(tx.tx_id),
        name=tx.name or (str(tx.branch.xid) if tx.branch is not None else ""),
        state=tx.state.value if tx.state in (TxState.COMMITTED, TxState.ROLLED_BACK) else "prepared",
        enqueued=enqueued,
        dequeued=dequeued,
        octets=tx.size_bytes,
    )


def _by_name(state: BrokerState, counts: Counter[int]) -> QueueCounts:
    queues = ((state.queues.get(queue_id), count) for queue_id, count in counts.items())
    return MappingProxyType({QueueName(q.vhost, q.name): count for q, count in queues if q is not None})


def _delivery(queue: Queue, entry: Entry, redelivered: bool) -> DeliveryView:
    name = QueueName(queue.vhost, queue.name)
    return DeliveryView(queue=name, message_id=entry.id, redelivered=redelivered, octets=entry.message.size)


class _PreparedFactory:
    """Makes the same observer for all transactions; implements ``plugin.TransactionObserverFactory``."""

    participant = ""

    def __init__(self, state: BrokerState, told: Callable[[TxView], None]) -> None:
        self._observer = _PreparedObserver(state, told)

    def create(self, tx: TxBuffer) -> _PreparedObserver:
        return self._observer


class _PreparedObserver:
    """Tells of each prepare; implements ``plugin.TransactionObserver``."""

    def __init__(self, state: BrokerState, told: Callable[[TxView], None]) -> None:
        self._state = state
        self._told = told

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        pass

    def accept(self, tx: TxBuffer, groups: list[Group]) -> None:
        pass

    def prepare(self, tx: TxBuffer) -> None:
        if tx.branch is None:  # else it was told when its manager had it prepared
            self._told(view_of(self._state, tx))

    def commit(self, tx: TxBuffer) -> None:
        pass

    def rollback(self, tx: TxBuffer) -> None:
        pass
