"""The stand-in for a plugin on a broker that is alone: a commit waits for its own disk only."""

from __future__ import annotations

from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.kept_log import Batch
from understudy.broker.message import Message
from understudy.broker.plugin_api.plugin import TransactionObserver
from understudy.broker.transactions.tx_buffer import TxBuffer


class AloneStability:
    """Without a plugin: what is fsynced here is stable."""

    def __init__(self, state: BrokerState) -> None:
        self._log = state.log

    def stable_offset(self) -> int:
        return self._log.durable

    def batch_closed(self, batch: Batch) -> None:
        pass


class PersistingObserver:
    """The observer of a broker without a plugin: the transaction's records go to its own log."""

    def __init__(self, recorder: TransactionRecorder) -> None:
        self._recorder = recorder

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        self._recorder.enqueue(tx, queues, deadlines_ms, message)

    def accept(self, tx: TxBuffer, groups: list[record.Group]) -> None:
        self._recorder.dequeue(tx, groups)

    def prepare(self, tx: TxBuffer) -> None:
        pass

    def commit(self, tx: TxBuffer) -> None:
        pass

    def rollback(self, tx: TxBuffer) -> None:
        pass


class PersistingObserverFactory:
    """One :class:`PersistingObserver` serves all transactions; it has no state of its own."""

    participant = ""

    def __init__(self, recorder: TransactionRecorder) -> None:
        self._observer = PersistingObserver(recorder)

    def create(self, tx: TxBuffer) -> TransactionObserver:
        return self._observer
