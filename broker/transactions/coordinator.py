"""Transaction coordinators: who decides the order of commits, and when a decision stands (note 003).

There is one API, :meth:`TransactionCoordinator.log_and_order`; ``run_prepare_ordered`` and ``run_commit_ordered`` are the
only places where order is made, so a plugin that overrides ``order`` cannot get it wrong. They need no lock: the core is
synchronous, and a group runs to its end.

The life of a group: transactions whose clients said commit gather during a turn; at its end ``order`` says which go now and
in which order; each gets its CSN and ids and its PREPARE record (prepare_ordered); one journal append and one round trip
carry the group; when PREPARE is stable the decision stands and the queues change (commit_ordered). That last step is taken
by the log itself, at PREPARE's place, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy.broker.metrics import COUNT_BOUNDS, Histogram
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState


class Decision:
    """The outcome of one transaction, known later. ``on_decided`` is called once."""

    __slots__ = ("on_decided", "tx")

    def __init__(self, tx: TxBuffer, on_decided: Callable[[TxBuffer], None]) -> None:
        self.tx = tx
        self.on_decided = on_decided
        tx.decided = on_decided

    @property
    def outcome(self) -> TxState:
        return self.tx.state


class CoordinatorHost(Protocol):
    """What a coordinator may ask of the broker."""

    def prepare_ordered(self, tx: TxBuffer) -> None:
        """Fix the order of ``tx``: CSN, replication ids, PREPARE record."""

    def commit_ordered(self, tx: TxBuffer) -> None:
        """``tx`` is decided and applied; its observer is told."""


class TransactionCoordinator:
    """Base: holds the order.

    Attributes:
        group_sizes: how many transactions were ordered at a time.
    """

    def __init__(self, host: CoordinatorHost) -> None:
        self._host = host
        self.group_sizes = Histogram(COUNT_BOUNDS)

    def log_and_order(self, tx: TxBuffer, on_decided: Callable[[TxBuffer], None]) -> Decision:
        """Take ``tx``, whose client has said commit. The decision comes through ``on_decided``."""
        raise NotImplementedError

    def run_group(self) -> None:
        """The turn ends: order what has gathered."""

    def waiting(self) -> int:
        """Transactions taken and not yet ordered."""
        return 0

    def run_prepare_ordered(self, batch: list[TxBuffer]) -> None:
        """Give each its place, in this order (C-13)."""
        if batch:
            self.group_sizes.observe(len(batch))
        for tx in batch:
            self._host.prepare_ordered(tx)

    def run_commit_ordered(self, batch: list[TxBuffer]) -> None:
        """Tell each that it is decided, in this order (C-14)."""
        for tx in batch:
            self._host.commit_ordered(tx)


class NullCoordinator(TransactionCoordinator):
    """For a broker without transactions: being asked is our own mistake (C-02)."""

    def log_and_order(self, tx: TxBuffer, on_decided: Callable[[TxBuffer], None]) -> Decision:
        raise AssertionError(f"the null coordinator was asked to log transaction {tx.tx_id}")


class UnorderedCoordinator(TransactionCoordinator):
    """Logs each decision as it comes, by itself; no group, hence no order between transactions beyond arrival (C-06)."""

    def log_and_order(self, tx: TxBuffer, on_decided: Callable[[TxBuffer], None]) -> Decision:
        decision = Decision(tx, on_decided)
        self.run_prepare_ordered([tx])
        return decision


class GroupCommitCoordinator(TransactionCoordinator):
    """Gathers a turn's commits and orders them as one group (C-07, C-08). A plugin overrides :meth:`order`."""

    def __init__(self, host: CoordinatorHost) -> None:
        super().__init__(host)
        self._gathered: list[TxBuffer] = []

    def log_and_order(self, tx: TxBuffer, on_decided: Callable[[TxBuffer], None]) -> Decision:
        self._gathered.append(tx)
        return Decision(tx, on_decided)

    def order(self, batch: list[TxBuffer]) -> tuple[list[TxBuffer], list[TxBuffer]]:
        """(now, later): who is committed in this group, in which order, and who waits for the next (C-11)."""
        return batch, []

    def run_group(self) -> None:
        if self._gathered:
            now, later = self.order(self._gathered)
            self._gathered = later
            self.run_prepare_ordered(now)

    def waiting(self) -> int:
        return len(self._gathered)
