"""TransactionReplicator: the backup's end of tx-queues, and its vote."""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.tx_buffer import Event, TxBuffer
from understudy.replicator.receiving.queue_replicator import QueueReplicator


class Vote(Enum):
    """The vote of a backup on a closed transaction. An enum, never membership of a set: that was QPID-5275."""

    PREPARED = "prepared"
    FAILED = "failed"


class TransactionReplicator(QueueReplicator):
    """Builds the TxBuffer of one transaction from its tx-queue.

    Live records come with the log and are put into the buffer by ``BrokerState``; what stood in the log before this
    broker's part of it begins comes through :meth:`take_records`.
    """

    def __init__(self, state: BrokerState, tx_id: int, tx_queue: Queue) -> None:
        super().__init__(state, tx_queue)
        self.tx_id = tx_id

    def take_records(self, records: list[tuple[int, bytes]]) -> None:
        """Take the tx-queue's records (offset, bytes), in order. Those that are here already are passed over.

        Costs as much as the piece does, not as the transaction, when the pieces come in order: a catch-up's do. Those of a refill
        may stand between events that the journal has kept.
        """
        state = self._state
        tx = state.taking.transaction(self.tx_id)
        events = tx.events
        first, last = (bisect_left(events, records[end][0], key=_offset) for end in (0, -1))
        held = {event[0] for event in events[first : last + 1]}
        in_order = first == len(events)
        for offset, raw in records:
            if offset not in held and offset != tx.closing_offset:
                state.taking.take_record(raw, offset)
        if not in_order:
            events.sort(key=_offset)

    @staticmethod
    def vote(tx: TxBuffer, restarted_after: int, sender_lacks: bool) -> tuple[Vote, str]:
        """PREPARED if the buffer is the whole transaction, else FAILED and why.

        Args:
            tx: closed.
            restarted_after: this process holds nothing transient that stood in the log up to this offset.
            sender_lacks: nor what the sender of the log has lost so itself of this one (`RecordTaking.holes`).
        """
        assert tx.closing is not None
        may_lack_transients = (
            sender_lacks or 0 < tx.first_offset <= restarted_after or (not tx.events and restarted_after > 0)
        )
        missing = tx.missing_for(tx.closing, may_lack_transients)
        return (Vote.FAILED, missing) if missing else (Vote.PREPARED, "")


def _offset(event: Event) -> int:
    return event[0]
