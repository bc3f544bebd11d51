"""JointTransactions: transactions of the package ``transaction`` commit through the transaction manager, and survive a crash.

::

    joint = JointTransactions(manager)
    with transaction.manager:
        joint.resource("bank").execute("UPDATE account SET balance = balance - 10 WHERE id = 1")
        joint.resource("queues").basic_publish(message, routing_key="transfers")

Pyramid and Zope commit by ``transaction``. That package keeps no record of a decision: if the program dies between the second
phases of two data managers, no program completes the other one. So one data manager, `XaDataManager`, stands for all resource
managers of a profile, and its state server keeps the decision.

The order (``transaction`` calls `tpc_vote` and `tpc_finish` of all data managers in the order of their sort keys):

1. The sort key begins with ``~~``: every other data manager has voted before this one. SQLAlchemy's begin with ``~sqlalchemy`` and
   ``sqlalchemy``.
2. `tpc_vote` prepares every branch and records the decision. This is the last vote, so no data manager refuses afterwards.
3. `tpc_finish` commits every branch. A branch that cannot be reached is left to recovery, and is no error.

`tpc_finish` may not fail, so the decision is part of the vote: the state server may refuse, or be lost. A data manager that sorts
behind ``~~understudy`` and refuses does not turn the decision round.

Sources: the interfaces IDataManager and ITransaction of transaction 5; docs/xa.md, Pyramid and Zope.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import transaction
from transaction.interfaces import IDataManager
from zope.interface import implementer

from understudy.xa.active import Transaction
from understudy.xa.core.errors import ProtocolError, XaError
from understudy.xa.manager import TransactionManager

_log = logging.getLogger(__name__)
SORT_PREFIX: Final = "~~understudy.xa"


@implementer(IDataManager)
class XaDataManager:
    """One transaction over all resource managers of a profile, as a data manager.

    There is no attribute ``savepoint``: a broker cannot undo a part of a transaction. By the rules of the package
    ``transaction.savepoint()`` raises TypeError with the text of `__repr__`, and the whole transaction fails; a savepoint with
    ``optimistic=True`` is made, and its rollback is refused.
    """

    def __init__(self, joint: JointTransactions, current: Transaction) -> None:
        self.joint = joint
        self.current = current
        self.transaction_manager = joint.transaction_manager

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.joint.manager.profile.resources)
        return f"<transaction {self.current.gid} over {names}: it has no savepoints>"

    def abort(self, of: Any) -> None:
        """Roll back. The next use of a resource in the same transaction begins anew: a rolled back savepoint comes here, too."""
        self._undo()
        self.joint.forget(of)

    def tpc_begin(self, of: Any) -> None:
        """Nothing: the branches have begun."""

    def commit(self, of: Any) -> None:
        """Nothing: what was done is in the branches."""

    def tpc_vote(self, of: Any) -> None:
        """Prepare all branches, and record the decision.

        Raises:
            RolledBackError, OutcomeUnknownError, HeuristicError: as `Transaction.commit`.
        """
        self.current.vote()

    def tpc_finish(self, of: Any) -> None:
        """Commit all branches.

        Raises:
            HeuristicError: a resource manager has completed its branch on its own, against the decision.
        """
        if self.current.decided:
            self.current.finish()

    def tpc_abort(self, of: Any) -> None:
        """Roll back. After the decision commit: another data manager has failed in its second phase."""
        self._undo()

    def sortKey(self) -> str:  # noqa: N802  # the interface's name
        """Behind all others: this one decides."""
        return f"{SORT_PREFIX}:{self.current.gid}"

    def should_retry(self, error: Exception) -> bool:
        """True if the same work, begun anew, may succeed; for ``transaction.manager.attempts`` and pyramid_retry."""
        return isinstance(error, XaError) and error.retriable

    def _undo(self) -> None:
        if self.current.decided:
            _log.error("transaction %s is decided as commit, and is committed: a data manager failed", self.current.gid)
            self.current.finish()
        elif not self.current.over:
            self.current.rollback()


class JointTransactions:
    """Gives each transaction of the package ``transaction`` one transaction over the resource managers of a profile.

    Args:
        manager: of the profile. Threads may share it, and this object.
        transaction_manager: its ``get()`` returns the current transaction of the package; by default the thread's.
    """

    def __init__(self, manager: TransactionManager, transaction_manager: Any = transaction.manager) -> None:
        self.manager = manager
        self.transaction_manager = transaction_manager

    @property
    def current(self) -> Transaction:
        """The transaction over the profile that belongs to the current one; its first use begins it.

        Raises:
            ProtocolError: it is rolled back, and the current transaction must be aborted; or another profile has joined.
            RolledBackError, ResourceManagerError, StateServerError, WrongProfileError, RecoveryFailedError: as
                `TransactionManager.begin`.
        """
        of = self.transaction_manager.get()
        joined = _joined(of)
        if joined is None:
            return self._begun(of)
        if joined.joint is not self:
            names = [one.manager.profile.name for one in (joined.joint, self)]
            raise ProtocolError(
                f"profile {names[0]!r} has joined this transaction, and {names[1]!r} cannot: one decides"
            )
        if joined.current.over:
            raise ProtocolError(f"transaction {joined.current.gid} is over: abort the transaction that it has joined")
        return joined.current

    def resource(self, name: str) -> Any:
        """The object to work with in the current transaction; see `Transaction.resource`."""
        return self.current.resource(name)

    def forget(self, of: Any) -> None:
        """A transaction of the package has let go of its data manager."""
        of.set_data(JointTransactions, None)

    def _begun(self, of: Any) -> Transaction:
        current = self.manager.begin(owner=of)
        joined = XaDataManager(self, current)
        try:
            of.join(joined)
        except BaseException:  # a transaction that has failed already takes no data manager
            current.rollback()
            raise
        of.set_data(JointTransactions, joined)
        return current


def _joined(of: Any) -> XaDataManager | None:
    try:
        found: XaDataManager | None = of.data(JointTransactions)
    except KeyError:
        return None
    return found
