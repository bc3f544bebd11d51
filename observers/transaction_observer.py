"""HaTransactionObserver: writes one transaction to its tx-queue."""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator.tx_queue import TxQueue


class HaTransactionObserver:
    """Sees one transaction; ``closing`` is told when it closes, before its PREPARE (skip sets, trackers)."""

    __slots__ = ("_closing", "_queue")

    def __init__(self, queue: TxQueue, closing: Callable[[TxBuffer], None]) -> None:
        self._queue = queue
        self._closing = closing

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        self._queue.enqueue_event(queues, deadlines_ms, message)

    def accept(self, tx: TxBuffer, groups: list[Group]) -> None:
        self._queue.dequeue_event(groups)

    def prepare(self, tx: TxBuffer) -> None:
        self._queue.close()
        self._closing(tx)

    def commit(self, tx: TxBuffer) -> None:
        self._queue.drain()

    def rollback(self, tx: TxBuffer) -> None:
        self._queue.drain()


class HaTransactionObserverFactory:
    """Registered with the broker by the primary. Its backups vote, so it needs two phases."""

    participant = "ha"

    def __init__(self, recorder: TransactionRecorder, closing: Callable[[TxBuffer], None]) -> None:
        self._recorder = recorder
        self._closing = closing

    def create(self, tx: TxBuffer) -> HaTransactionObserver:
        return HaTransactionObserver(TxQueue(self._recorder, tx), self._closing)
