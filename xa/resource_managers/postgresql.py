"""PostgresResource: a PostgreSQL server by psycopg's ``tpc_*`` methods.

Rules of the server that shape this adapter:

* COMMIT and PREPARE TRANSACTION of a transaction that has failed roll it back, and report no error. The state of the transaction
  is looked at first.
* A program that is killed may leave a PREPARE TRANSACTION that the server still carries out. So each branch takes an advisory
  lock for its whole life, prepared or not. A rollback that finds no prepared branch is answered RETRY while that lock is held.
* A prepared transaction can be completed from its own database only; `recover` shows that database's.
* The server knows for a long time of each transaction number whether it has committed. So the number is the proof of a branch. A
  server that was failed over or restored may give a number again: its timeline is part of the proof.
* A crash may forget a number whose records were not on the disk yet, and another transaction gets it. PREPARE TRANSACTION has
  them on the disk. After a commit in one phase a number that has committed counts only if the server has not crashed since.
* A statement may end the branch (`branch_connection`). The time at which its transaction began tells it from a later one.

Sources: PostgreSQL 15, PREPARE TRANSACTION, 13.3.5 Advisory Locks, and 9.26 for pg_xact_status; PEP 249, two-phase commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ResourceManagerError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.xid import NO_FORMAT, Xid
from understudy.xa.resource_managers.branch_connection import COMMIT, ROLLBACK, UNKNOWN, BranchConnection
from understudy.xa.resource_managers.port import InDoubt, ResourceManager

_BY_SQLSTATE: Final[Mapping[str, XaCode]] = {
    "40P01": XaCode.RBDEADLOCK,
    "40001": XaCode.RBTRANSIENT,
    "57014": XaCode.RBTIMEOUT,
}
_REFUSALS: Final = ("0A", "28", "42")
"""Classes of SQLSTATE that a later attempt would meet, too: not supported, not authorized, no permission."""
_LOST_HOST: Final = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""Seconds, seconds, times; for both ends: the session of a machine that is gone holds its locks for a minute, not for two hours."""
_OPENED: Final = (
    "SELECT current_setting('max_prepared_transactions')::int, (SELECT system_identifier FROM pg_control_system())::text, "
    "(SELECT oid FROM pg_database WHERE datname = current_database())::text, "
    "set_config(%s, %s, false), set_config(%s, %s, false), set_config(%s, %s, false)"
)
_STARTED: Final = "SELECT pg_advisory_xact_lock_shared(%s), transaction_timestamp()"
_TIMELINE: Final = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_CRASHED: Final = "pg_stat_get_bgwriter_stat_reset_time()"
"""A crash of the server makes all statistics begin anew."""
_LOOKED: Final = f"SELECT transaction_timestamp(), pg_current_xact_id_if_assigned()::text, {_TIMELINE}, {_CRASHED}"
_NUMBERED: Final = f"SELECT transaction_timestamp(), pg_current_xact_id()::text, {_TIMELINE}, {_CRASHED}"
_OUTCOME: Final = "SELECT pg_xact_status(%s::xid8)"
_OUTCOMES: Final = {"committed": XaCode.HEURCOM, "aborted": XaCode.HEURRB, "in progress": XaCode.RETRY}
_ENDED: Final[Mapping[str, Answer]] = {
    COMMIT: Answer(XaCode.HEURCOM, "SQL COMMIT of the program has committed what the branch had done before it"),
    ROLLBACK: OK,
    UNKNOWN: Answer(XaCode.HEURHAZ, "SQL of the program has ended the branch, and it is not known how"),
}
"""How a branch that a statement has ended is rolled back."""


class PostgresResource(ResourceManager):
    """One connection to one database.

    Args:
        options: of kind ``postgresql``; see `core.profiles.profile`.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.timeout_s = options["timeout_s"]
        self._options = options
        self._connection: BranchConnection | None = None
        self._max_prepared = 0
        self._xid: Xid | None = None
        self._began = self._prepared = False
        self._began_at: Any = None
        self._crashed_at: Any = None
        self._proof = ""
        self._asked: tuple[str, Xid] | None = None
        self._ended_by = ""

    # -- connection ---------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self._options['host']}:{self._options['port']}/{self._options['database']}"

    def open(self) -> None:
        if self._connection is not None and not self._connection.closed:
            return
        with self.bounded() as deadline:
            try:
                connection = BranchConnection.open(
                    self.name,
                    host=self._options["host"],
                    port=self._options["port"],
                    dbname=self._options["database"],
                    user=self._options["user"] or None,
                    password=self._options["password"] or None,
                    connect_timeout=math.ceil(self.left_s()),
                    application_name=f"understudy xa {self.name}",
                    keepalives_idle=_LOST_HOST["tcp_keepalives_idle"],
                    keepalives_interval=_LOST_HOST["tcp_keepalives_interval"],
                    keepalives_count=_LOST_HOST["tcp_keepalives_count"],
                )
            except psycopg.Error as error:
                raise ResourceManagerError(
                    f"resource manager {self.name}: no connection to {self._where}: {error}"
                ) from error
            try:
                with connection.verb(deadline):
                    self._learn(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        self._began = self._prepared = False

    def _learn(self, connection: BranchConnection) -> None:
        """Identity and abilities of the server."""
        try:
            row = connection.execute(_OPENED, [str(word) for pair in _LOST_HOST.items() for word in pair]).fetchone()
            connection.commit()
        except (errors.InsufficientPrivilege, errors.UndefinedFunction) as error:
            raise ResourceManagerError(
                f"resource manager {self.name}: {self._where} does not tell its system identifier, by which transactions are "
                f"recovered in the right server: GRANT EXECUTE ON FUNCTION pg_control_system() is needed: {error}"
            ) from error
        except psycopg.Error as error:
            raise ResourceManagerError(
                f"resource manager {self.name}: {self._where} gives no answer: {error}"
            ) from error
        assert row is not None
        self.check_identity(f"postgresql {row[1]}/{row[2]}")
        self._max_prepared = row[0]

    def check_two_phases(self, why: str) -> None:
        if self._max_prepared == 0:
            raise ResourceManagerError(
                f"resource manager {self.name}: {self._where} has max_prepared_transactions = 0, and {why}: two-phase commit needs "
                "at least one for each transaction at a time"
            )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def after_fork(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.forget()

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

    def _start(self, connection: BranchConnection, xid: Xid) -> Answer:
        self._xid, self._ended_by, self._proof = xid, "", ""
        connection.tpc_begin(native_xid(connection, xid))
        self._began, self._asked = True, None
        row = connection.execute(_STARTED, (advisory_lock_of(xid),)).fetchone()
        assert row is not None
        self._began_at = row[1]
        connection.branch_begins()
        return OK

    def end(self, xid: Xid, flags: Flag) -> Answer:
        return OK

    def prepare(self, xid: Xid) -> Answer:
        if self._connection is None or self._connection.closed:
            return Answer(XaCode.RMFAIL, "the connection is lost")
        return self._answered(self._prepare)

    def _prepare(self, connection: BranchConnection) -> Answer:
        refused, number = self._looked(connection, numbered=not self._options["read_only_vote"])
        if refused is not None:
            return refused
        connection.branch_is_over()
        if number is None:
            connection.tpc_commit()
            self._began = False
            return Answer(XaCode.RDONLY)
        connection.tpc_prepare()
        self._prepared, self._proof = True, number
        return Answer(XaCode.OK, proof=number)

    def _looked(self, connection: BranchConnection, *, numbered: bool = False) -> tuple[Answer | None, str | None]:
        """Why the branch cannot be committed, if it cannot; and else its proof, None if it has written nothing.

        Args:
            connection: of the branch.
            numbered: it gets a proof though it has written nothing.
        """
        ended_by, row = connection.ended_by, None
        status = connection.info.transaction_status
        if not ended_by and status is TransactionStatus.INERROR:
            self.close()
            return Answer(XaCode.RBROLLBACK, "a statement failed"), None
        if not ended_by and status is TransactionStatus.INTRANS:
            row = connection.execute(_NUMBERED if numbered else _LOOKED).fetchone()
        if row is not None and row[0] == self._began_at:
            self._crashed_at = row[3]
            return None, f"{row[2]}.{row[1]}" if row[1] is not None else None
        self._ended_by = ended_by or UNKNOWN
        self.close()  # what was done behind the end of the branch is rolled back
        return self._ending(), None

    def _ending(self) -> Answer:
        """Why a branch that a statement has ended cannot be prepared. What SQL COMMIT has done is no rollback."""
        code = XaCode.RBROLLBACK if self._ended_by == ROLLBACK else XaCode.PROTO
        return Answer(code, f"SQL {self._ended_by} of the program has ended the branch")

    # -- the second phase ---------------------------------------------------------------------------------------------

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        if one_phase:
            if self._connection is None or self._connection.closed:
                return Answer(XaCode.RBCOMMFAIL, "the connection was lost before the commit")
            return self._commit_in_one_phase()
        return self._complete(xid, "COMMIT")

    def _commit_in_one_phase(self) -> Answer:
        proof: str | None = None

        def committed(connection: BranchConnection) -> Answer:
            nonlocal proof
            refused, proof = self._looked(connection)
            if refused is not None:
                return refused
            connection.branch_is_over()
            connection.tpc_commit()
            self._began = False
            return OK

        answer = self._answered(committed)
        if answer.code != XaCode.RMFAIL or proof is None:
            return answer
        with self.bounded(anew=True):
            told = self._answered(lambda connection: self._outcome_in_one_phase(connection, proof))
        found = {XaCode.HEURCOM: OK, XaCode.HEURRB: Answer(XaCode.RBCOMMFAIL, answer.text)}
        return found.get(told.code, answer)

    def _outcome_in_one_phase(self, connection: BranchConnection, proof: str) -> Answer:
        row = connection.execute("SELECT " + _CRASHED).fetchone()
        told = self._outcome(connection, proof)
        if told.code == XaCode.HEURCOM and (row is None or row[0] != self._crashed_at):
            return Answer(XaCode.HEURHAZ, f"{told.text}, and has crashed since: it may have given the number again")
        return told

    def rollback(self, xid: Xid) -> Answer:
        """Roll back. What a statement of the program has committed cannot be: HEURCOM, or HEURHAZ if that is not known."""
        if self._is_own(xid) and not self._prepared:
            self._answered(lambda connection: self._looked(connection)[0] or OK)
        if xid == self._xid and self._ended_by:
            return _ENDED[self._ended_by]
        return self._complete(xid, "ROLLBACK")

    def _is_own(self, xid: Xid) -> bool:
        """True if this connection has the branch, prepared or not."""
        return xid == self._xid and self._began and self._connection is not None and not self._connection.closed

    def _complete(self, xid: Xid, verb: str) -> Answer:
        """COMMIT or ROLLBACK of a branch: of this connection's own, or of one that is prepared anywhere.

        An error of the server, such as a missing permission, leaves a prepared branch as it is: it is no rollback.
        """
        own = self._is_own(xid)
        if own and verb == "COMMIT" and not self._prepared:
            return Answer(XaCode.PROTO, "the branch is not prepared")
        answer = self._second(lambda connection: self._finish(connection, xid, verb, own=own))
        if answer.code == XaCode.RMFAIL and own:
            # The connection was lost. The server may have done it, or may still be at it: then the branch is gone, at once or soon.
            self._asked = verb, xid
            with self.bounded(anew=True):
                answer = self._second(lambda connection: self._finish(connection, xid, verb, own=False))
        if answer.code == XaCode.NOTA and self._asked == (verb, xid):
            with self.bounded(anew=True):
                return self.outcome_of_lost(xid, self._proof, commits=verb == "COMMIT")
        return answer

    def _second(self, call: Callable[[BranchConnection], Answer]) -> Answer:
        """As `_answered`, of the second phase: what the server refuses is no rollback."""
        return self._answered(call, _second_code_of)

    def _finish(self, connection: BranchConnection, xid: Xid, verb: str, *, own: bool) -> Answer:
        finish = connection.tpc_commit if verb == "COMMIT" else connection.tpc_rollback
        try:
            if own:
                finish()
                connection.branch_is_over()
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

        def looked(connection: BranchConnection) -> Answer:
            row = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (advisory_lock_of(xid),)).fetchone()
            connection.rollback()
            if row is not None and row[0]:
                return Answer(XaCode.NOTA, "no such prepared transaction")
            return Answer(XaCode.RETRY, "a session of the server still works on it")

        return self._answered(looked)

    def outcome(self, xid: Xid, proof: str) -> Answer:
        return self._second(lambda connection: self._outcome(connection, proof))

    def _outcome(self, connection: BranchConnection, proof: str) -> Answer:
        timeline, _, number = proof.partition(".")
        row = connection.execute("SELECT " + _TIMELINE).fetchone()
        if row is None or row[0] != timeline:
            connection.rollback()
            return Answer(
                XaCode.HEURHAZ,
                f"its transaction {number} is of timeline {timeline} of the server, which has been failed over or restored since",
            )
        try:
            row = connection.execute(_OUTCOME, (number,)).fetchone()
        except errors.InvalidParameterValue as error:  # a number that this server has not given
            connection.rollback()
            return Answer(XaCode.HEURHAZ, str(error).strip())
        connection.rollback()
        status = row[0] if row is not None else None
        code = _OUTCOMES.get(status or "", XaCode.HEURHAZ)
        return Answer(code, f"the server calls its transaction {number} {status or 'too old to tell'}")

    def forget(self, xid: Xid) -> Answer:
        return Answer(XaCode.NOTA, "PostgreSQL completes no transaction on its own")

    def recover(self) -> list[InDoubt]:
        with self.bounded() as deadline:
            self.open()
            connection = self._connection
            assert connection is not None
            try:
                query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                with connection.verb(deadline):
                    found = connection.execute(query).fetchall()
                    connection.rollback()
            except psycopg.Error as error:
                self.close()
                raise ResourceManagerError(
                    f"resource manager {self.name} does not list its branches: {error}"
                ) from error
        return [InDoubt(xid_of_text(text)) for (text,) in found]

    # -- errors -------------------------------------------------------------------------------------------------------

    def _answered(
        self, call: Callable[[BranchConnection], Answer], code_of: Callable[[psycopg.Error], XaCode] | None = None
    ) -> Answer:
        """Call with an open connection, and translate what goes wrong. A connection with an error is closed."""
        with self.bounded() as deadline:
            try:
                self.open()
            except ResourceManagerError as error:
                return Answer(XaCode.RMFAIL, str(error))
            connection = self._connection
            assert connection is not None
            try:
                with connection.verb(deadline):
                    return call(connection)
            except psycopg.Error as error:
                lost = connection.broken or connection.closed
                code = XaCode.RMFAIL if lost else (code_of or _code_of)(error)
                self.close()
                return Answer(code, str(error).strip())


def _second_code_of(error: psycopg.Error) -> XaCode:
    """The server refused the second phase: the branch is as it was."""
    return XaCode.RMERR if (error.sqlstate or "").startswith(_REFUSALS) else XaCode.RMFAIL


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
