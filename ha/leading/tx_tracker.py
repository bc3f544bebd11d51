"""TxTracker: what a backup still lacks of a closed transaction, per queue.

A backup that follows the log from before a transaction's first record holds its whole tx-queue. A joiner whose catch-up is
still bringing that content does not; if the transaction closes meanwhile, a tracker a queue is made under prepare_ordered,
and the joiner is not ready until all are clear. With tx catch-up they clear as soon as the content is
acknowledged, so they seldom live long; they are the assertion that readiness never hides half a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.broker.transactions.tx_buffer import TxBuffer


class TxTracker:
    """Enqueues and dequeues of one transaction on one queue that one backup lacks."""

    __slots__ = ("_held", "dequeues", "enqueues", "queue_id", "tx_id")

    def __init__(self, tx_id: int, queue_id: int, enqueues: int, dequeues: set[int], held: Mapping[int, int]) -> None:
        self.tx_id = tx_id
        self.queue_id = queue_id
        self.enqueues = enqueues
        self.dequeues = dequeues
        self._held = held

    @property
    def left(self) -> int:
        """How many ids are still to come: each that is acknowledged leaves it."""
        return max(0, self.enqueues + len(self.dequeues) - self._held.get(self.queue_id, 0))


class TxTrackers:
    """All trackers of one backup."""

    __slots__ = ("_by_tx",)

    def __init__(self) -> None:
        self._by_tx: dict[int, list[TxTracker]] = {}

    def track(self, tx: TxBuffer, held: Mapping[int, int]) -> None:
        """The backup lacks ``tx``, which closes now: one tracker for each queue that it touches.

        Args:
            tx: all of it.
            held: by queue, how many of its ids the backup holds; it grows as the catch-up gets on.
        """
        dequeues: dict[int, set[int]] = {}
        for offset, message, content in tx.events:
            if message is None and offset:  # what is not in the log is nobody's but the primary's
                for queue_id, ids in content:
                    dequeues.setdefault(queue_id, set()).update(ids)
        queues = {**dict.fromkeys(dequeues), **dict.fromkeys(tx.enqueue_counts())}
        self._by_tx[tx.tx_id] = [
            TxTracker(tx.tx_id, queue_id, tx.enqueue_counts().get(queue_id, 0), dequeues.get(queue_id, set()), held)
            for queue_id in queues
        ]

    def clear(self, tx_id: int) -> bool:
        """The last piece of the transaction is acknowledged: the backup holds all of it.

        That the transaction is over clears nothing: what others hold of it the joiner still lacks.

        Returns:
            Whether there were trackers of it.
        """
        return self._by_tx.pop(tx_id, None) is not None

    @property
    def all_clear(self) -> bool:
        return not self._by_tx

    def blockers(self) -> list[TxTracker]:
        return [tracker for trackers in self._by_tx.values() for tracker in trackers]
