"""DbapiResource: any PEP 249 module whose connections have the methods of two-phase commit (``tpc_begin`` and the others).

PEP 249 does not say how a lost connection looks, nor that a transaction has failed. So an error before the end of the first phase
is a rollback, and an error of the second phase is RMFAIL. What ``tpc_recover`` does not list any more is complete, and the module
does not tell how.

PostgreSQL carries out PREPARE TRANSACTION of a failed transaction as a rollback, and reports no error. So the state of the
transaction is looked at first, where the connection tells it, as those of psycopg and psycopg2 do. The same look tells that a
statement of the program has ended the branch.

A module has no time-outs that all share. So a call that may wait runs in a thread, which is left behind when its time is over. A
prepare that succeeds later is undone by that thread, since its transaction has been rolled back. A module whose connections must
stay in one thread (``threadsafety`` below 2) is called directly, without a bound.

``tpc_recover`` lists all branches. Its answer is kept while a connection lives, so that the recovery of many branches lists once.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ConfigError, ResourceManagerError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.xid import NO_FORMAT, Xid
from understudy.xa.resource_managers.port import InDoubt, ResourceManager

SHARED_CONNECTIONS: Final = 2
"""``threadsafety`` of PEP 249: threads may share connections."""
_THREAD: Final = "understudy-xa-dbapi"
_PARENTS: Final[list[Any]] = []
"""Connections of the parent process, which a child must not end."""
_IDLE: Final = 0
_IN_ERROR: Final = 3
"""PQTRANS_IDLE and PQTRANS_INERROR of libpq, PostgreSQL 15, 34.2."""
_T = TypeVar("_T")


class NoAnswerError(Exception):
    """The module has not come back in time."""


class DbapiResource(ResourceManager):
    """One connection of a module.

    Args:
        options: of kind ``dbapi``: the module's name, and the arguments of its ``connect``.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        try:
            self._module = importlib.import_module(options["module"])
        except ImportError as error:
            raise ConfigError(f"resource manager {name}: module {options['module']!r} cannot be imported") from error
        self.identity = options["identity"]
        self.timeout_s = options["timeout_s"]
        self._bounds = getattr(self._module, "threadsafety", 0) >= SHARED_CONNECTIONS
        self._arguments = options["connect"]
        self._connection: Any = None
        self._began = self._prepared = False
        self._ended: Xid | None = None
        self._natives: dict[Xid, Any] | None = None

    def open(self) -> None:
        if self._connection is not None:
            return
        try:
            with self.bounded():
                self._connection = self._within(
                    lambda: self._module.connect(**self._arguments), lambda connection: _ended(connection, None)
                )
        except (self._module.Error, NoAnswerError) as error:
            raise ResourceManagerError(f"resource manager {self.name}: no connection: {error}") from error
        if not hasattr(self._connection, "tpc_begin"):
            self.close()
            raise ResourceManagerError(
                f"resource manager {self.name}: connections of {self._module.__name__} have no two-phase commit"
            )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._began, self._natives = False, None
        if connection is not None:
            with contextlib.suppress(self._module.Error, NoAnswerError):
                self._within(connection.close)

    def after_fork(self) -> None:
        """PEP 249 has no way to let go of a connection: it is kept, unused, for as long as the child lives."""
        _PARENTS.append(self._connection)
        self._connection, self._began, self._natives = None, False, None

    @property
    def resource(self) -> Any:
        """The connection of the module."""
        assert self._connection is not None, self.name
        return self._connection

    def start(self, xid: Xid, flags: Flag) -> Answer:
        if flags & (Flag.JOIN | Flag.RESUME):
            return OK

        def begun(connection: Any) -> Answer:
            connection.tpc_begin(_native(connection, xid))
            return OK

        answer = self._answered(begun, XaCode.RMFAIL)
        if answer.code == XaCode.OK:
            self._began, self._prepared, self._ended = True, False, None
        return answer

    def end(self, xid: Xid, flags: Flag) -> Answer:
        return OK

    def prepare(self, xid: Xid) -> Answer:
        if not self._began:
            return Answer(XaCode.RBCOMMFAIL, "the connection was closed")

        def prepared(connection: Any) -> Answer:
            if (refused := self._refused(connection, xid)) is not None:
                return refused
            connection.tpc_prepare()
            return OK

        def undone(connection: Any) -> None:
            connection.tpc_rollback()

        answer = self._answered(prepared, XaCode.RMERR, undone)
        self._prepared = answer.code == XaCode.OK
        return answer

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        if one_phase and not self._began:
            return Answer(XaCode.RBCOMMFAIL, "the connection was closed")
        if one_phase and (refused := self._refused(self._connection, xid)) is not None:
            return refused
        return self._finish(xid, lambda connection, *named: connection.tpc_commit(*named))

    def _refused(self, connection: Any, xid: Xid) -> Answer | None:
        """Why the branch cannot be committed; None if it can, or if the connection does not tell."""
        status = _status_of(connection)
        if status == _IN_ERROR:
            self.close()
            return Answer(XaCode.RBROLLBACK, "a statement failed")
        if status == _IDLE:
            self.close()
            self._ended = xid
            return Answer(XaCode.PROTO, "SQL COMMIT or ROLLBACK of the program has ended the branch")
        return None

    def rollback(self, xid: Xid) -> Answer:
        if self._began and not self._prepared:
            self._refused(self._connection, xid)
        if self._ended == xid:
            return Answer(XaCode.HEURHAZ, "SQL of the program has ended the branch, and it is not known how")
        return self._finish(xid, lambda connection, *named: connection.tpc_rollback(*named))

    def _finish(self, xid: Xid, finish: Callable[..., None]) -> Answer:
        own = self._began

        def finished(connection: Any) -> Answer:
            if own:
                finish(connection)
                return OK
            native = self._listed_as(connection, xid)
            if native is None:
                return Answer(XaCode.NOTA, "not listed by tpc_recover")
            finish(connection, native)
            return OK

        answer = self._answered(finished, XaCode.RMFAIL)
        if answer.code == XaCode.OK:
            self._began = False
        return answer

    def forget(self, xid: Xid) -> Answer:
        return Answer(XaCode.NOTA, "PEP 249 has no heuristic completions")

    def recover(self) -> list[InDoubt]:
        self.open()
        try:
            with self.bounded():
                self._natives = self._within(lambda: _listed(self._connection))
        except (self._module.Error, NoAnswerError) as error:
            self.close()
            raise ResourceManagerError(f"resource manager {self.name} does not list its branches: {error}") from error
        return [InDoubt(xid) for xid in self._natives]

    def _listed_as(self, connection: Any, xid: Xid) -> Any:
        """The module's name of a branch that is in doubt, which is then taken off the list; None if there is none."""
        if self._natives is None or xid not in self._natives:
            self._natives = _listed(connection)
        return self._natives.pop(xid, None)

    def _answered(
        self, call: Callable[[Any], Answer], failed: XaCode, late: Callable[[Any], None] | None = None
    ) -> Answer:
        """Call with an open connection, and translate what goes wrong.

        Args:
            call: with the connection. It changes no state of this object: it may come back when another branch works here.
            failed: code of an error of the module.
            late: is done with the connection if the call has succeeded after its time.
        """
        try:
            self.open()
            connection = self._connection
            return self._within(lambda: call(connection), lambda _: _ended(connection, late))
        except ResourceManagerError as error:
            return Answer(XaCode.RMFAIL, str(error))
        except NoAnswerError as error:
            self._connection, self._began, self._natives = None, False, None  # the thread has it
            return Answer(XaCode.RMFAIL, str(error))
        except self._module.Error as error:
            self.close()
            return Answer(failed, str(error).strip())

    def _within(self, call: Callable[[], _T], late: Callable[[_T], None] | None = None) -> _T:
        """Call in a thread, and wait for it as long as the verb may take.

        Args:
            call: what is to be done.
            late: is told, in the thread, what the call has returned after its time.

        Raises:
            NoAnswerError: the time is over. The thread goes on until the module comes back.
        """
        if not self._bounds or threading.current_thread().name == _THREAD:
            return call()
        found: list[_T] = []
        failed: list[BaseException] = []
        left = threading.Event()
        lock = threading.Lock()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  # it is raised in the calling thread
                failed.append(error)
                return
            with lock:
                found.append(result)
                is_late = left.is_set()
            if is_late and late is not None:
                with contextlib.suppress(self._module.Error):
                    late(result)

        thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        thread.start()
        thread.join(self.left_s())
        with lock:
            if found:
                return found[0]
            left.set()
        if failed:
            raise failed[0]
        raise NoAnswerError(f"{self._module.__name__} has not come back within {self.timeout_s:g} s")


def _ended(connection: Any, first: Callable[[Any], None] | None) -> None:
    """Close a connection whose call has come back too late."""
    try:
        if first is not None:
            first(connection)
    finally:
        connection.close()


def _listed(connection: Any) -> dict[Xid, Any]:
    """Each branch in doubt, and how the module names it. A name without a format id has `NO_FORMAT`."""
    found = {}
    for native in connection.tpc_recover():
        format_id, global_id, branch_id = native[0], native[1], native[2]
        number = NO_FORMAT if format_id is None else format_id
        found[Xid(number, str(global_id).encode(), str(branch_id or "").encode())] = native
    return found


def _status_of(connection: Any) -> int | None:
    """How libpq calls the state of the transaction; None if the connection does not tell."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return int(status) if isinstance(status, int) else None


def _native(connection: Any, xid: Xid) -> Any:
    return connection.xid(xid.format_id, xid.global_id.decode("latin-1"), xid.branch_id.decode("latin-1"))
