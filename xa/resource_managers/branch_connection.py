"""BranchConnection: a connection of psycopg on which the verbs are bounded, and the end of a branch by SQL is noticed.

SQL COMMIT or ROLLBACK ends the branch in which it stands, and psycopg begins another transaction with the next statement. A part of
the work would be committed, and the rest prepared. So the cursor looks at what each statement has done, and the connection refuses
every statement behind the end of its branch. Of a cursor of another class the connection sees the end of the branch, and not
whether the statement has committed.

psycopg waits for an answer without end. `Connection.wait` is the one place where it waits, and public: there a verb has a deadline.
A statement of the program has none.

Sources: psycopg 3, Connection.wait and Cursor.statusmessage; PostgreSQL 15, 55.2.8 and the command tags in 55.7.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import Ready, Wait

from understudy.xa.core.errors import BranchEndedError

COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
UNKNOWN: Final = "COMMIT or ROLLBACK"
_EVENTS: Final = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}
_RV = TypeVar("_RV")


class NoAnswerError(psycopg.OperationalError):
    """A verb had no answer in time. The connection is closed."""


class BranchCursor(psycopg.Cursor[Any]):
    """A cursor that raises BranchEndedError behind a statement that has ended the branch."""

    __slots__ = ()

    def execute(self, *args: Any, **kwargs: Any) -> Self:
        super().execute(*args, **kwargs)
        connection = self.connection
        if isinstance(connection, BranchConnection) and connection.in_branch:
            tags = [result.command_status for result in self._results]  # of all statements of one query
            if b"COMMIT" in tags:
                connection.branch_ended(COMMIT)
            if connection.is_idle():  # else the tag ROLLBACK is that of ROLLBACK TO SAVEPOINT
                connection.branch_ended(ROLLBACK if b"ROLLBACK" in tags else UNKNOWN)
        return self


class BranchConnection(psycopg.Connection[Any]):
    """See the head of this file.

    Attributes:
        name: of the resource manager, for errors.
        in_branch: the program works in a branch.
        ended_by: COMMIT, ROLLBACK or UNKNOWN: what has ended the branch; "" if nothing has.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = BranchCursor
        self.name = ""
        self.in_branch = False
        self.ended_by = ""
        self._deadline: float | None = None
        self._own = False

    @classmethod
    def open(cls, name: str, **parameters: Any) -> Self:
        """Connect as psycopg does with ``parameters``, for the resource manager ``name``.

        Raises:
            psycopg.Error: no connection.
        """
        made = cls.connect(**parameters)
        made.name = name
        return made

    def hand_to_program(self, cursors: type[BranchCursor]) -> None:
        """Make ``cursors`` whose rows are tuples, whatever an earlier program has set on the connection."""
        self.cursor_factory, self.row_factory = cursors, tuple_row

    # -- verbs --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def verb(self, deadline: float | None) -> Iterator[None]:
        """Calls inside are the adapter's, and end in time.

        Args:
            deadline: of `time.monotonic`; None: there is none.
        """
        before = self._own, self._deadline
        self._own, self._deadline = True, deadline
        try:
            yield
        finally:
            self._own, self._deadline = before

    def branch_begins(self) -> None:
        """Statements of the program belong to a branch from now on."""
        self.in_branch, self.ended_by = True, ""

    def branch_is_over(self) -> None:
        """The branch is prepared, or complete."""
        self.in_branch = False

    def branch_ended(self, by: str) -> None:
        """A statement of the program has ended the branch.

        Raises:
            BranchEndedError: always.
        """
        self.ended_by = self.ended_by or by
        what = {
            COMMIT: "what the branch had done is committed",
            ROLLBACK: "what the branch had done is rolled back",
            UNKNOWN: "whether what the branch had done is committed is not known",
        }[self.ended_by]
        raise BranchEndedError(
            f"SQL {self.ended_by} has ended the branch of resource manager {self.name!r}: {what}, and the transaction can only be "
            "rolled back"
        )

    # -- psycopg ------------------------------------------------------------------------------------------------------

    def tpc_commit(self, xid: psycopg.Xid | str | None = None) -> None:
        """For the transaction manager alone."""
        self._refuse_in_branch("tpc_commit")
        super().tpc_commit(xid)

    def tpc_prepare(self) -> None:
        """For the transaction manager alone."""
        self._refuse_in_branch("tpc_prepare")
        super().tpc_prepare()

    def tpc_rollback(self, xid: psycopg.Xid | str | None = None) -> None:
        """Roll back; a program that does so in its branch can only roll back the transaction."""
        if self.in_branch and not self._own and not self.ended_by:
            self.ended_by = ROLLBACK
            with self.verb(None):
                super().tpc_rollback(xid)
            return
        super().tpc_rollback(xid)

    def _refuse_in_branch(self, method: str) -> None:
        if self.in_branch and not self._own:
            raise psycopg.ProgrammingError(
                f"{method} of resource manager {self.name!r} is refused: the transaction manager has both phases"
            )

    def wait(self, gen: PQGen[_RV], *args: Any, **kwargs: Any) -> _RV:
        """Carry out a step; refused behind the end of a branch."""
        if self.in_branch and not self._own and (self.ended_by or self.is_idle()):
            self.branch_ended(UNKNOWN)
        if self._deadline is None:
            return super().wait(gen, *args, **kwargs)
        return self._within(gen, self._deadline)

    def is_idle(self) -> bool:
        """True if no transaction is open on the connection."""
        return bool(self.pgconn.transaction_status == TransactionStatus.IDLE)

    def _within(self, gen: PQGen[_RV], deadline: float) -> _RV:
        """As psycopg's own loop (its module `waiting`), until the deadline."""
        poll, registered = select.poll(), self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                poll.register(registered, _EVENTS[wanted])
                left_ms = max(deadline - time.monotonic(), 0) * 1000
                found = poll.poll(left_ms)
                if not found:
                    self.pgconn.finish()
                    raise NoAnswerError("no answer in time")
                events = found[0][1]
                ready = Ready.R if events & ~select.POLLOUT else Ready.NONE
                wanted = gen.send(Ready(ready | (Ready.W if events & select.POLLOUT else Ready.NONE)))
        except StopIteration as end:
            result: _RV = end.value
            return result

    def forget(self) -> None:
        """In a forked child: let go of the connection without a word to the server, which would end that of the parent."""
        if not self.closed:
            with open(os.devnull, "r+b") as nowhere:  # noqa: PTH123  # a descriptor, and no path
                os.dup2(nowhere.fileno(), self.pgconn.socket)
            self.close()
