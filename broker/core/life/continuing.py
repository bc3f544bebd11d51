"""Continuing: the state of a core that begins where another one ends, without a look at the journal.

A broker that has handed over follows its successor. What its new core has to hold is what the journal says: the log up
to the end of its last closed batch. A broker hands over when all of that is applied: `applied == closed_end`.
So the new state is the applied state, and the transactions that the log has begun and not ended. What stands in the open batch was
sent to nobody, and ends here.

Nothing that changes is shared with the core that ends: clients of that one may still have to be let go, and put messages back. Only
messages, batches and records of the topology are, which never change, and the outcomes, which the core that ends applies no more.

What cannot be told apart from what ends is left to the journal (:func:`why_not`): the core is then recovered as ever.
"""

from __future__ import annotations

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.tx_buffer import TxBuffer


def why_not(ended: BrokerState) -> str:
    """Why the journal has to say what stands in the log of ``ended``; "" if ``ended`` says it."""
    log = ended.log
    end = log.closed_end
    if not log.applied == log.stable == end <= log.durable:
        return f"it is applied up to {log.applied}, stable up to {log.stable} and durable up to {log.durable} of {end}"
    if log.pending and log.pending[0][0] <= end:
        return f"something waits at offset {log.pending[0][0]}"
    for tx in ended.transactions.values():
        # Its digest cannot be taken back to an earlier event.
        if 0 < tx.first_offset <= end < max((event[0] for event in tx.events), default=0):
            return f"transaction {tx.tx_id} has events that were not sent"
    return ""


def continue_state(ended: BrokerState, begun: BrokerState) -> None:
    """Fill ``begun``, which is empty, with what the closed batches of ``ended`` say; see :func:`why_not`.

    ``ended`` keeps its queues and transactions, and gives its kept log away. The channels of its clients have ended, so only the
    states of its messages still change: this may run in another thread.
    """
    meta = Meta.of(ended, whole_log=True)
    begun.log.continue_from(ended.log)
    meta.install(begun)
    begun.taking.note_holes(ended.taking.holes)
    if ended.applying.has_moved:
        begun.applying.note_moved()
    begun.again.continue_from(ended.again)
    begun.again.log_ends(begun.log.end)
    for queue_id, queue in begun.queues.items():
        before = ended.queues[queue_id]
        if queue.logged:
            queue.continue_from(before)
    for tx in list(ended.transactions.values()):
        if 0 < tx.first_offset <= begun.log.end or 0 < tx.closing_offset <= begun.log.end:
            _begin(begun, tx.continued(begun.log.end))


def _begin(state: BrokerState, tx: TxBuffer) -> None:
    state.transactions[tx.tx_id] = tx
    for _, message, targets in tx.events:
        if message is not None:
            for target in targets:
                queue = state.queues.get(target[0])
                if queue is not None:
                    queue.count_uncommitted(queue.uncommitted + 1)
