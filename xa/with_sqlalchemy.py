"""An SQLAlchemy engine whose connections are those of the current transaction: sessions work in its PostgreSQL branch.

::

    engine = enlisted_engine(manager, "bank")
    with manager.begin() as tx:
        with Session(engine) as session, session.begin():
            session.add(Order(id=17))
        tx.resource("queues").basic_publish(message, routing_key="orders")

The connection is psycopg's, in a two-phase transaction that the transaction manager has begun. So the end of a session is not the
end of the transaction:

* ``session.commit()`` writes what is pending. The transaction manager prepares and commits the branch.
* ``session.rollback()``, and a session that is closed without commit, undo the work: then the branch is rolled back, and the
  transaction can only be rolled back. A session that has changed nothing leaves the branch as it is.
* ``Session(twophase=True)`` is the same: its `prepare` and `commit` leave both phases to the transaction manager.
* ``session.begin_nested()`` is a savepoint of PostgreSQL, as ever.

With `JointTransactions` in place of the manager, sessions that are registered with zope.sqlalchemy commit with ``transaction``.

Refused alternative: a session that prepares its own branch, under the transaction manager's branch id. Its branch has no advisory
lock (see `resource_managers.postgresql`), and two programs would commit it.

Sources: SQLAlchemy 2.1, Dialect.do_prepare_twophase and Custom DBAPI connect() arguments (creator); PEP 249.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, Engine, NullPool, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from understudy.xa.active import Work
from understudy.xa.core.errors import ConfigError, ProtocolError

ENGINE_OPTIONS: Final = frozenset(
    ("echo", "execution_options", "hide_parameters", "insertmanyvalues_page_size", "logging_name", "query_cache_size")
)
"""The arguments of `sqlalchemy.create_engine` that say nothing of connections: those are made by the resource manager."""

_CHANGES: Final = (
    "SELECT CASE WHEN current_setting('track_counts')::boolean THEN sum(n_tup_ins + n_tup_upd + n_tup_del) END "
    "FROM pg_stat_xact_all_tables"
)
"""Rows that this transaction has changed so far, system tables too; null if the server does not count."""


class HasCurrent(Protocol):
    """A `TransactionManager`, or a `JointTransactions`."""

    @property
    def current(self) -> Work | None: ...


def enlisted_engine(source: HasCurrent, resource: str, **options: Any) -> Engine:
    """An engine for sessions in the current transaction.

    Args:
        source: whose current transaction; a `JointTransactions` begins it at the first statement.
        resource: a resource manager of kind `postgresql`, or of kind `dbapi` with the module psycopg.
        options: of `sqlalchemy.create_engine`, such as `echo`; see `ENGINE_OPTIONS`.

    Returns:
        The engine. A connection of it raises ProtocolError if no transaction is active.

    Raises:
        ConfigError: an option says how to connect.
    """
    for name in sorted(options.keys() - ENGINE_OPTIONS):
        known = ", ".join(sorted(ENGINE_OPTIONS))
        raise ConfigError(f"option {name!r} of an enlisted engine is not known; known: {known}")

    def enlisted() -> Any:
        current = source.current
        if current is None:
            raise ProtocolError(f"there is no transaction for a connection of {resource!r}: begin comes first")
        return EnlistedConnection(current, resource)

    # Each session takes a connection anew, since the next transaction may have another one.
    return create_engine(
        f"{_DRIVER}://",
        creator=enlisted,
        poolclass=NullPool,
        pool_reset_on_return=None,
        use_native_hstore=False,
        **options,
    )


class EnlistedConnection:
    """A psycopg connection in a branch, as SQLAlchemy has it for the time of a session's transaction.

    Everything but what is written here is psycopg's. `commit` and `close` leave the branch as it is.
    """

    __slots__ = ("_changes", "_name", "_transaction", "_used", "real")

    def __init__(self, transaction: Work, name: str) -> None:
        found = transaction.resource(name)
        if not isinstance(found, psycopg.Connection):
            raise ConfigError(f"resource manager {name!r} gives no connection of psycopg, but {type(found).__name__}")
        for slot, value in (("_transaction", transaction), ("_name", name), ("real", found), ("_changes", None)):
            object.__setattr__(self, slot, value)
        self.unused()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)  # psycopg refuses what cannot be changed in a transaction, such as autocommit

    def unused(self) -> None:
        """Mark the connection as unused: work so far stays, and `rollback` does not concern it."""
        object.__setattr__(self, "_used", False)

    @property
    def active(self) -> bool:
        """True while the transaction is active."""
        return bool(self._transaction.active)

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor of psycopg.

        Raises:
            ProtocolError: the transaction is not active, the branch is rolled back, or another thread or task has the transaction.
        """
        self._check()
        if not self._used:
            object.__setattr__(self, "_changes", self._count())
            object.__setattr__(self, "_used", True)
        return self.real.cursor(*args, **{"row_factory": tuple_row, **options})

    def commit(self) -> None:
        """The session's work becomes part of the branch."""
        if self._used:
            self._check()
        self.unused()

    def rollback(self) -> None:
        """Undo the session's work, and so the branch; nothing, if the session has changed nothing."""
        if not self._used or not self._transaction.active or self.real.closed:
            return
        status = self.real.info.transaction_status
        if status is TransactionStatus.INTRANS and self._changes is not None and self._changes == self._count():
            self.unused()
        elif status is not TransactionStatus.IDLE:
            self.real.tpc_rollback()

    def close(self) -> None:
        """Nothing: the connection belongs to the resource manager."""

    def _check(self) -> None:
        gid = self._transaction.gid
        self._transaction.check_owner("a session")
        if not self._transaction.active:
            raise ProtocolError(f"transaction {gid} is not active: a session on {self._name!r} cannot go on")
        if self.real.info.transaction_status is TransactionStatus.IDLE:
            raise ProtocolError(f"transaction {gid} can only be rolled back: a session has rolled back {self._name!r}")

    def _count(self) -> Any:
        with self.real.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_CHANGES).fetchone()
        return row[0] if row is not None else None


class EnlistedDialect(PGDialect_psycopg):
    """PostgreSQL by psycopg, where another party has both phases of the commit."""

    driver = "understudy"
    supports_statement_cache = True

    def initialize(self, connection: Connection) -> None:
        """Look at the server, in the branch that happens to be the first; SQLAlchemy calls `rollback` afterwards."""
        super().initialize(connection)  # type: ignore[no-untyped-call]
        _of(connection).unused()

    def on_connect(self) -> None:
        """Nothing: what psycopg's dialect does here is once for a connection, and this is once for a session."""

    def get_driver_connection(self, connection: Any) -> Any:
        """The connection of psycopg."""
        return connection.real

    def do_begin_twophase(self, connection: Connection, xid: Any) -> None:
        """Nothing: the branch has begun."""

    def do_prepare_twophase(self, connection: Connection, xid: Any) -> None:
        """Nothing: the transaction manager prepares all branches together."""

    def do_commit_twophase(
        self, connection: Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        """Not prepared, or before the transaction manager's vote: as a commit. After it: nothing."""
        if _of(connection).active:
            connection.connection.commit()

    def do_rollback_twophase(
        self, connection: Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        """As a rollback."""
        connection.connection.rollback()


def _of(connection: Connection) -> EnlistedConnection:
    found = connection.connection.dbapi_connection
    assert isinstance(found, EnlistedConnection), found
    return found


_DRIVER: Final = "postgresql+understudy"
registry.register("postgresql.understudy", __name__, EnlistedDialect.__name__)
