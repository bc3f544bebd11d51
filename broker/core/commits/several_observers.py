"""SeveralObservers: what stands for the one observer of a transaction in which several engines take part."""

from __future__ import annotations

from collections.abc import Sequence

from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.plugin_api.plugin import TransactionObserver
from understudy.broker.transactions.tx_buffer import TxBuffer


class SeveralObservers:
    """Tells each of them everything, in the order given; implements ``plugin.TransactionObserver``.

    What one raises ends the process, as of a single one: all of them extend the core.
    """

    __slots__ = ("_observers",)

    def __init__(self, observers: Sequence[TransactionObserver]) -> None:
        self._observers = observers

    def publish(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        for observer in self._observers:
            observer.publish(tx, queues, deadlines_ms, message)

    def accept(self, tx: TxBuffer, groups: list[Group]) -> None:
        for observer in self._observers:
            observer.accept(tx, groups)

    def prepare(self, tx: TxBuffer) -> None:
        for observer in self._observers:
            observer.prepare(tx)

    def commit(self, tx: TxBuffer) -> None:
        for observer in self._observers:
            observer.commit(tx)

    def rollback(self, tx: TxBuffer) -> None:
        for observer in self._observers:
            observer.rollback(tx)
