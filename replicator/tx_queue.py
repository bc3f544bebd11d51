"""TxQueue: the ordered, reserved-name sub-stream of the log that carries one transaction.

It needs no declare, channel or subscription of its own: its records are those of the log that name the transaction, and a
backup that follows the log follows every tx-queue. What is left of the note's queue is its life: open, closed (nobody can
join by following any more; who lacks a part of it must be sent it), drained (applied everywhere, gone).
"""

from __future__ import annotations

from enum import Enum

from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer

NAME_PREFIX = "understudy.tx."


def tx_queue_name(tx_id: int) -> str:
    """The name of a tx-queue, in messages and on status pages. Reserved: clients cannot declare a name with this prefix."""
    return NAME_PREFIX + tx_id_text(tx_id)


class TxQueueState(Enum):
    """Where a tx-queue is in its life."""

    OPEN = "open"
    CLOSED = "closed"
    DRAINED = "drained"


class TxQueue:
    """The tx-queue of one transaction, on the primary."""

    __slots__ = ("_recorder", "state", "tx")

    def __init__(self, recorder: TransactionRecorder, tx: TxBuffer) -> None:
        self._recorder = recorder
        self.tx = tx
        self.state = TxQueueState.OPEN

    @property
    def name(self) -> str:
        return tx_queue_name(self.tx.tx_id)

    def enqueue_event(self, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        """Put an enqueue on the tx-queue."""
        assert self.state is TxQueueState.OPEN, f"{self.name} is {self.state.value}"
        self._recorder.enqueue(self.tx, queues, deadlines_ms, message)

    def dequeue_event(self, groups: list[Group]) -> None:
        """Put dequeues, by replication id, on the tx-queue."""
        assert self.state is TxQueueState.OPEN, f"{self.name} is {self.state.value}"
        self._recorder.dequeue(self.tx, groups)

    def close(self) -> None:
        """No further event comes; the PREPARE record follows at once."""
        self.state = TxQueueState.CLOSED

    def drain(self) -> None:
        """Applied or discarded."""
        self.state = TxQueueState.DRAINED
