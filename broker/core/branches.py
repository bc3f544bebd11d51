"""What a broker, whatever its role, shows of branches in doubt: read off its state, as far as that is applied."""

from __future__ import annotations

from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.in_doubt import COMMITTED, MAX_QUEUES, PREPARED, ROLLED_BACK, InDoubt
from understudy.broker.transactions.tx_buffer import TxBuffer


def branches_in_doubt(state: BrokerState) -> list[InDoubt]:
    """Prepared branches, and those that an operator has completed and nobody has forgotten; by vhost and xid."""
    rows = [_prepared(state, tx) for tx in state.prepared_branches()]
    rows += [
        InDoubt(
            vhost=vhost,
            xid=xid,
            state=COMMITTED if each.committed else ROLLED_BACK,
            since_ms=each.time_ms,
            enqueues=0,
            dequeues=0,
            queues=(),
            queues_left_out=0,
        )
        for (vhost, xid), each in state.completions.items()
    ]
    return sorted(rows, key=lambda row: (row.vhost, row.xid))


def _prepared(state: BrokerState, tx: TxBuffer) -> InDoubt:
    branch = tx.branch
    assert branch is not None
    dequeues = tx.dequeues()
    touched = {queue_id for queue_id, _ in dequeues} | tx.enqueue_counts().keys()
    names = sorted(state.queues[queue_id].name for queue_id in touched if queue_id in state.queues)
    return InDoubt(
        vhost=branch.vhost,
        xid=branch.xid,
        state=PREPARED,
        since_ms=branch.time_ms,
        enqueues=sum(tx.enqueue_counts().values()),
        dequeues=len(dequeues),
        queues=tuple(names[:MAX_QUEUES]),
        queues_left_out=max(0, len(names) - MAX_QUEUES),
    )
