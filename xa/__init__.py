"""The transaction manager for applications: transactions over several resource managers, such as a broker and a database.

A program names a *profile*, which says what its resource managers are, and works under a *job*. A passive *state server* keeps
what must not be forgotten: which transactions have begun, which branches they have, and the decision. If the program dies, the
next program of the same job completes what is left before it begins new work.

::

    core/                what decides, without I/O
    manager, active      what a program uses: begin or join; the transaction that it has then
    host                 the identity of this host in the default job
    ownership            which process, thread or task has a transaction
    retries              recovery of what a program has left, in the background
    session              one thread of control's connections
    resource_managers/   the broker, PostgreSQL, any PEP 249 module with two-phase commit
    state_server/        ``understudy state-server``
    sockets/             the connection to the state server, what proves to each end who is at the other, TLS to brokers
    asynchronous         the same for asyncio
    tpc                  the broker as a PEP 249 module with two-phase commit
    with_transaction     a data manager of the package ``transaction``: Pyramid, Zope
    with_sqlalchemy      an engine whose sessions work in the current transaction
    commands/            ``understudy xa list|show|recover|commit|rollback|forget``, and ``metrics`` for Prometheus
    demo/                ``scripts/demo xa``
    stress/              ``scripts/stress xa``

The room speaks AMQP and imports nothing of the broker. How to use it: docs/xa.md.
"""

from understudy.xa.active import JoinedTransaction, Transaction
from understudy.xa.asynchronous import AsyncJoinedTransaction, AsyncTransaction, AsyncTransactionManager
from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import (
    AccessError,
    BranchEndedError,
    ConfigError,
    HeuristicCommitError,
    HeuristicError,
    HeuristicHazardError,
    HeuristicMixedError,
    HeuristicRollbackError,
    NotOwnerError,
    OutcomeUnknownError,
    ProgramsLateError,
    ProtocolError,
    ReadOnlyError,
    RecoveryFailedError,
    ResourceManagerError,
    RolledBackError,
    StateServerError,
    TicketError,
    WrongProfileError,
    WrongResourceManagerError,
    XaError,
)
from understudy.xa.core.profiles.profile import Profile, ResourceConfig
from understudy.xa.core.states import Outcome
from understudy.xa.core.xid import Xid
from understudy.xa.manager import TransactionManager
from understudy.xa.resource_managers.port import InDoubt, ResourceManager

__all__ = [
    "AccessError",
    "Answer",
    "AsyncJoinedTransaction",
    "AsyncTransaction",
    "AsyncTransactionManager",
    "BranchEndedError",
    "ConfigError",
    "HeuristicCommitError",
    "HeuristicError",
    "HeuristicHazardError",
    "HeuristicMixedError",
    "HeuristicRollbackError",
    "InDoubt",
    "JoinedTransaction",
    "NotOwnerError",
    "Outcome",
    "OutcomeUnknownError",
    "Profile",
    "ProgramsLateError",
    "ProtocolError",
    "ReadOnlyError",
    "RecoveryFailedError",
    "ResourceConfig",
    "ResourceManager",
    "ResourceManagerError",
    "RolledBackError",
    "StateServerError",
    "TicketError",
    "Transaction",
    "TransactionManager",
    "WrongProfileError",
    "WrongResourceManagerError",
    "XaCode",
    "XaError",
    "Xid",
]
