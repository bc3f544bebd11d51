"""PostgresResource: a PostgreSQL server by psycopg's ``tpc_*`` methods.

Three rules of the server shape this adapter:

* COMMIT and PREPARE TRANSACTION of a transaction that has failed roll it back, and report no error. The state of the transaction
  is looked at first.
* A program that is killed may leave a PREPARE TRANSACTION that the server still carries out. So each branch takes an advisory
  lock for its whole life, prepared or not. A rollback that finds no prepared branch is answered RETRY while that lock is held.
* A prepared transaction can be completed from its own database only; `recover` shows that database's.

Sources: PostgreSQL 15, PREPARE TRANSACTION, and 13.3.5 Advisory Locks; PEP 249, two-phase commit.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ResourceManagerError
from understudy.xa.core.steps import Flag
from understudy.xa.core.xid import NO_FORMAT, Xid
from understudy.xa.resource_managers.port import InDoubt, ResourceManager

_BY_SQLSTATE: Final[Mapping[str, XaCode]] = {
    "40P01": XaCode.RBDEADLOCK,
    "40001": XaCode.RBTRANSIENT,
    "57014": XaCode.RBTIMEOUT,
}
_LOST_HOST: Final = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""Seconds, seconds, times; for both ends: the session of a machine that is gone holds its locks for a minute, not for two hours."""


class PostgresResource(ResourceManager):
    """One connection to one database.

    Args:
        options: of kind ``postgresql``; see `core.profile`.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._options = options
        self._connection: psycopg.Connection[Any] | None = None
        self._began = self._prepared = False
        self._asked: tuple[str, Xid] | None = None

    # -- connection ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._connection is not None and not self._connection.closed:
            return
        where = f"{self._options['host']}:{self._options['port']}/{self._options['database']}"
        try:
            connection = psycopg.connect(
                host=self._options["host"],
                port=self._options["port"],
                dbname=self._options["database"],
                user=self._options["user"] or None,
                password=self._options["password"] or None,
                connect_timeout=self._options["timeout_s"],
                application_name=f"understudy xa {self.name}",
                keepalives_idle=_LOST_HOST["tcp_keepalives_idle"],
                keepalives_interval=_LOST_HOST["tcp_keepalives_interval"],
                keepalives_count=_LOST_HOST["tcp_keepalives_count"],
            )
        except psycopg.Error as error:
            raise ResourceManagerError(f"resource manager {self.name}: no connection to {where}: {error}") from error
        try:
            row = connection.execute("SHOW max_prepared_transactions").fetchone()
            for name, value in _LOST_HOST.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
            connection.commit()
        except psycopg.Error as error:
            connection.close()
            raise ResourceManagerError(f"resource manager {self.name}: {where} gives no answer: {error}") from error
        if row is None or int(row[0]) == 0:
            connection.close()
            raise ResourceManagerError(
                f"resource manager {self.name}: {where} has max_prepared_transactions = 0; two-phase commit needs at "
                "least one for each transaction at a time"
            )
        self._connection = connection
        self._began = self._prepared = False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def resource(self) -> psycopg.Connection[Any]:
        """A psycopg connection. Its own `commit` and `rollback` are refused by psycopg while a transaction is active."""
        assert self._connection is not None, self.name
        return self._connection

    # -- the first phase ----------------------------------------------------------------------------------------------

    def start(self, xid: Xid, flags: Flag) -> Answer:
        if flags & (Flag.JOIN | Flag.RESUME):
            return OK  # the connection is the branch, and has been all the time
        stale = self._connection is not None
        answer = self._answered(lambda connection: self._start(connection, xid))
        if answer.code == XaCode.RMFAIL and stale:  # idle for long: the server was restarted since
            answer = self._answered(lambda connection: self._start(connection, xid))
        return answer

    def _start(self, connection: psycopg.Connection[Any], xid: Xid) -> Answer:
        connection.tpc_begin(native_xid(connection, xid))
        self._began, self._asked = True, None
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (advisory_lock_of(xid),))
        return OK

    def end(self, xid: Xid, flags: Flag) -> Answer:
        return OK

    def prepare(self, xid: Xid) -> Answer:
        if self._connection is None or self._connection.closed:
            return Answer(XaCode.RMFAIL, "the connection is lost")
        return self._answered(self._prepare)

    def _prepare(self, connection: psycopg.Connection[Any]) -> Answer:
        if connection.info.transaction_status is not TransactionStatus.INTRANS:
            self.close()
            return Answer(XaCode.RBROLLBACK, "a statement failed")
        if self._options["read_only_vote"]:
            row = connection.execute("SELECT pg_current_xact_id_if_assigned() IS NULL").fetchone()
            if row is not None and row[0]:
                connection.tpc_commit()
                self._began = False
                return Answer(XaCode.RDONLY)
        connection.tpc_prepare()
        self._prepared = True
        return OK

    # -- the second phase ---------------------------------------------------------------------------------------------

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        if one_phase:
            if self._connection is None or self._connection.closed:
                return Answer(XaCode.RBCOMMFAIL, "the connection was lost before the commit")
            return self._answered(self._commit_in_one_phase)
        return self._complete(xid, "COMMIT")

    def _commit_in_one_phase(self, connection: psycopg.Connection[Any]) -> Answer:
        if connection.info.transaction_status is not TransactionStatus.INTRANS:
            self.close()
            return Answer(XaCode.RBROLLBACK, "a statement failed")
        connection.tpc_commit()
        self._began = False
        return OK

    def rollback(self, xid: Xid) -> Answer:
        return self._complete(xid, "ROLLBACK")

    def _complete(self, xid: Xid, verb: str) -> Answer:
        """COMMIT or ROLLBACK of a branch: of this connection's own, or of one that is prepared anywhere.

        An error of the server, such as a missing permission, leaves a prepared branch as it is: RMFAIL, and never a rollback.
        """
        own = self._began and self._connection is not None and not self._connection.closed
        if own and verb == "COMMIT" and not self._prepared:
            return Answer(XaCode.PROTO, "the branch is not prepared")
        answer = self._second(lambda connection: self._finish(connection, xid, verb, own=own))
        if answer.code == XaCode.RMFAIL and own:
            # The connection was lost. The server may have done it, or may still be at it: then the branch is gone, at once or soon.
            self._asked = verb, xid
            answer = self._second(lambda connection: self._finish(connection, xid, verb, own=False))
        if answer.code == XaCode.NOTA and self._asked == (verb, xid):
            return OK
        return answer

    def _second(self, call: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        answer = self._answered(call)
        return Answer(XaCode.RMFAIL, answer.text) if answer.code.rolled_back else answer

    def _finish(self, connection: psycopg.Connection[Any], xid: Xid, verb: str, *, own: bool) -> Answer:
        finish = connection.tpc_commit if verb == "COMMIT" else connection.tpc_rollback
        try:
            if own:
                finish()
                self._began = self._prepared = False
            else:
                finish(native_xid(connection, xid))
        except errors.UndefinedObject:
            if own:
                self.close()
            return self._absent(xid)
        except errors.ObjectNotInPrerequisiteState as error:  # another session works on it this moment
            self.close()
            return Answer(XaCode.RETRY, str(error).strip())
        return OK

    def _absent(self, xid: Xid) -> Answer:
        """NOTA, or RETRY while a session still works on the branch."""

        def looked(connection: psycopg.Connection[Any]) -> Answer:
            row = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (advisory_lock_of(xid),)).fetchone()
            connection.rollback()
            if row is not None and row[0]:
                return Answer(XaCode.NOTA, "no such prepared transaction")
            return Answer(XaCode.RETRY, "a session of the server still works on it")

        return self._answered(looked)

    def forget(self, xid: Xid) -> Answer:
        return Answer(XaCode.NOTA, "PostgreSQL completes no transaction on its own")

    def recover(self) -> list[InDoubt]:
        self.open()
        assert self._connection is not None
        try:
            query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            found = self._connection.execute(query).fetchall()
            self._connection.rollback()
        except psycopg.Error as error:
            self.close()
            raise ResourceManagerError(f"resource manager {self.name} does not list its branches: {error}") from error
        return [InDoubt(xid_of_text(text)) for (text,) in found]

    # -- errors -------------------------------------------------------------------------------------------------------

    def _answered(self, call: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        """Call with an open connection, and translate what goes wrong. A connection with an error is closed."""
        try:
            self.open()
        except ResourceManagerError as error:
            return Answer(XaCode.RMFAIL, str(error))
        connection = self._connection
        assert connection is not None
        try:
            return call(connection)
        except psycopg.Error as error:
            code = XaCode.RMFAIL if connection.broken or connection.closed else _code_of(error)
            self.close()
            return Answer(code, str(error).strip())


def _code_of(error: psycopg.Error) -> XaCode:
    """The server refused, so it has rolled the transaction back."""
    if isinstance(error, (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)):
        return XaCode.RMFAIL
    if isinstance(error, psycopg.IntegrityError):
        return XaCode.RBINTEGRITY
    return _BY_SQLSTATE.get(error.sqlstate or "", XaCode.RBOTHER)


def native_xid(connection: psycopg.Connection[Any], xid: Xid) -> psycopg.Xid:
    """The name of a branch as the server has it; the reverse of `xid_of_text`."""
    if xid.format_id == NO_FORMAT:
        return psycopg.Xid(None, xid.global_id.decode(), None)
    return connection.xid(xid.format_id, xid.global_id.decode("latin-1"), xid.branch_id.decode("latin-1"))


def xid_of_text(text: str) -> Xid:
    """The branch that the server names by a text; `NO_FORMAT` if psycopg and this adapter would write another text for it."""
    native = psycopg.Xid.from_string(text)
    if native.format_id is not None and native.bqual is not None and str(native) == text:
        with contextlib.suppress(UnicodeEncodeError):
            return Xid(native.format_id, native.gtrid.encode("latin-1"), native.bqual.encode("latin-1"))
    return Xid(NO_FORMAT, text.encode(), b"")


def advisory_lock_of(xid: Xid) -> int:
    octets = b"\0".join((xid.global_id, xid.branch_id))
    return int.from_bytes(hashlib.blake2b(octets, digest_size=8).digest(), "big", signed=True)
