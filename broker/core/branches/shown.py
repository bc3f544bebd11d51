"""The page of branches in doubt, of a broker in any role: read off its state, as far as that is applied."""

from __future__ import annotations

from collections.abc import Iterator

from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.dtx_branch import BranchName, Completion
from understudy.broker.transactions.in_doubt import COMMITTED, MAX_QUEUES, PREPARED, ROLLED_BACK, InDoubt
from understudy.broker.transactions.tx_buffer import TxBuffer


def branches_in_doubt(state: BrokerState) -> Iterator[InDoubt]:
    """Prepared branches, and those that an operator has completed and that were not forgotten yet.

    Which these are is settled by the first step; each row is made when it is asked for.
    """
    prepared = state.prepared_branches()
    completed = list(state.applying.completions.items())
    for tx in prepared:
        yield _prepared(state, tx)
    for name, completion in completed:
        yield _completed(name, completion)


def _completed(name: BranchName, completion: Completion) -> InDoubt:
    vhost, xid = name
    return InDoubt(
        vhost=vhost,
        xid=xid,
        state=COMMITTED if completion.committed else ROLLED_BACK,
        since_ms=completion.time_ms,
        enqueues=0,
        dequeues=0,
        queues=(),
        queues_left_out=0,
    )


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
