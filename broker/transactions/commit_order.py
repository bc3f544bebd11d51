"""CommitOrder: the core's side of a coordinator: in which order commits are made, and when a decision stands.

There is one entry, :meth:`CommitOrder.log_and_order`; ``run_prepare_ordered`` and ``run_commit_ordered`` are the only places where
order is made. They need no lock: the core is synchronous, and a group runs to its end.

The life of a group: transactions whose clients said commit gather during a turn; at its end it is settled which go now and in
which order; each gets its CSN and ids and its PREPARE record (prepare_ordered); one journal append and one round trip carry the
group; when PREPARE is stable the decision stands and the queues change (commit_ordered). That last step is taken by the log
itself, at PREPARE's place, in the same order.

The two orders in this file work on the transactions themselves and make nothing for each of them. They stand for every
coordinator that overrides nothing. One that does is hosted by ``core/commits/hosted_order.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from understudy.broker.coordinators.api import Trigger
from understudy.broker.plugin_api.metrics import COUNT_BOUNDS, Histogram
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.tx_buffer import TxBuffer

Decided = Callable[[TxBuffer], None]
"""Is told the outcome of a transaction, once."""


class OrderHost(Protocol):
    """Calls of an order to the broker's transactions."""

    def prepare_ordered(self, tx: TxBuffer) -> None:
        """Fix the order of ``tx``: CSN, replication ids, PREPARE record."""

    def commit_ordered(self, tx: TxBuffer) -> None:
        """``tx`` is decided and applied; its observer is told."""


@attrs.frozen
class HookError:
    """The exception of a coordinator or a participant.

    Attributes:
        wall_ms: when.
        hook: the participant and its method: ``priority.commit_ordered``.
        error: type and text, 300 characters of them.
    """

    wall_ms: int
    hook: str
    error: str


class CommitOrder:
    """Base: holds the order.

    Attributes:
        group_sizes: how many transactions were ordered at a time.
        triggers: how often a group was due for each reason, and something of it was ordered or refused.
        forced: transactions that were withheld for too long, and ordered or refused without the coordinator.
        errors: what hooks have raised.
        newest_error: the last of these.
        on_error: is told of each.
        hurried: nothing is withheld any more: the broker hands over, or stops.
    """

    def __init__(self, host: OrderHost) -> None:
        self._host = host
        self.group_sizes = Histogram(COUNT_BOUNDS)
        self.triggers = dict.fromkeys(Trigger, 0)
        self.forced = 0
        self.errors = 0
        self.newest_error: HookError | None = None
        self.on_error: Callable[[HookError], None] | None = None
        self.hurried = False

    def tell_errors(self, told: Callable[[HookError], None]) -> None:
        """Call ``told`` for each error of a hook."""
        self.on_error = told

    def hurry(self) -> None:
        """Withhold nothing any more: the broker hands over, or stops."""
        self.hurried = True

    def withhold_again(self) -> None:
        """End `hurry`: the broker leads on."""
        self.hurried = False

    def participants(self) -> list[str]:
        """Those that the coordinator brings and that need two phases, in order of registration; itself too, if it does."""
        return []

    def prepare(self, tx: TxBuffer, branch: BranchName) -> str:
        """``branch``, of content ``tx``, is about to be prepared: why a participant refuses it, "" if none does."""
        return ""

    def log_and_order(self, tx: TxBuffer, on_decided: Decided) -> None:
        """Take ``tx``, whose client has said commit. The decision comes through ``on_decided``."""
        raise NotImplementedError

    def run_group(self, trigger: Trigger, flush: bool = False) -> None:
        """Order what has gathered.

        Args:
            trigger: why now.
            flush: what was withheld has waited for ``group.max_wait_ms``, or the broker wants to be done with it.
        """

    def waiting(self) -> int:
        """Transactions taken and not yet ordered."""
        return 0

    def fresh(self) -> int:
        """Those of them that came since the last group."""
        return self.waiting()

    def brings(self, queue_id: int) -> bool:
        """True if a transaction that is taken and not ordered adds to that queue. False of an order that withholds nothing."""
        return False

    def rolled_back(self, tx: TxBuffer) -> None:
        """``tx``, which was closed, is rolled back: by a member of the group, its manager, or an operator."""

    def tick(self) -> None:
        """Time passes."""

    def run_prepare_ordered(self, batch: list[TxBuffer]) -> None:
        """Give each its place, in this order."""
        if batch:
            self.group_sizes.observe(len(batch))
        for tx in batch:
            self._host.prepare_ordered(tx)

    def run_commit_ordered(self, batch: list[TxBuffer]) -> None:
        """Tell each that it is decided, in this order."""
        for tx in batch:
            self._host.commit_ordered(tx)


class EachOrder(CommitOrder):
    """Of `UnorderedCoordinator`: each commit as it comes, by itself."""

    def log_and_order(self, tx: TxBuffer, on_decided: Decided) -> None:
        tx.asks_commit(on_decided)
        self.triggers[Trigger.TURN] += 1
        self.run_prepare_ordered([tx])


class GroupOrder(CommitOrder):
    """Of `GroupCommitCoordinator`: a turn's commits, in the order in which they came."""

    def __init__(self, host: OrderHost) -> None:
        super().__init__(host)
        self._gathered: list[TxBuffer] = []

    def log_and_order(self, tx: TxBuffer, on_decided: Decided) -> None:
        tx.asks_commit(on_decided)
        self._gathered.append(tx)

    def run_group(self, trigger: Trigger, flush: bool = False) -> None:
        if self._gathered:
            batch, self._gathered = self._gathered, []
            self.triggers[trigger] += 1
            self.run_prepare_ordered(batch)

    def waiting(self) -> int:
        return len(self._gathered)

    fresh = waiting
