"""DbapiResource: any PEP 249 module whose connections have the methods of two-phase commit (``tpc_begin`` and the others).

PEP 249 does not say how a lost connection looks, nor that a transaction has failed. So an error before the end of the first phase
is a rollback, an error of the second phase is RMFAIL, and what ``tpc_recover`` does not list any more is complete.

PostgreSQL carries out PREPARE TRANSACTION of a failed transaction as a rollback, and reports no error. So the state of the
transaction is looked at first, where the connection tells it, as those of psycopg and psycopg2 do.

``tpc_recover`` lists all branches. Its answer is kept while a connection lives, so that the recovery of many branches lists once.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ConfigError, ResourceManagerError
from understudy.xa.core.steps import Flag
from understudy.xa.core.xid import NO_FORMAT, Xid
from understudy.xa.resource_managers.port import InDoubt, ResourceManager

_IN_ERROR: Final = 3
"""PQTRANS_INERROR of libpq, PostgreSQL 15, 34.2."""


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
        self._arguments = options["connect"]
        self._connection: Any = None
        self._began = False
        self._natives: dict[Xid, Any] | None = None

    def open(self) -> None:
        if self._connection is not None:
            return
        try:
            self._connection = self._module.connect(**self._arguments)
        except self._module.Error as error:
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
            with contextlib.suppress(self._module.Error):
                connection.close()

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
            self._began = True
            return OK

        return self._answered(begun, XaCode.RMFAIL)

    def end(self, xid: Xid, flags: Flag) -> Answer:
        return OK

    def prepare(self, xid: Xid) -> Answer:
        if not self._began:
            return Answer(XaCode.RBCOMMFAIL, "the connection was closed")

        def prepared(connection: Any) -> Answer:
            if _has_failed(connection):
                self.close()
                return Answer(XaCode.RBROLLBACK, "a statement failed")
            connection.tpc_prepare()
            return OK

        return self._answered(prepared, XaCode.RMERR)

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        if one_phase and not self._began:
            return Answer(XaCode.RBCOMMFAIL, "the connection was closed")
        if one_phase and _has_failed(self._connection):
            self.close()
            return Answer(XaCode.RBROLLBACK, "a statement failed")
        return self._finish(xid, lambda connection, *named: connection.tpc_commit(*named))

    def rollback(self, xid: Xid) -> Answer:
        return self._finish(xid, lambda connection, *named: connection.tpc_rollback(*named))

    def _finish(self, xid: Xid, finish: Callable[..., None]) -> Answer:
        def finished(connection: Any) -> Answer:
            if self._began:
                finish(connection)
                self._began = False
                return OK
            native = self._listed_as(connection, xid)
            if native is None:
                return Answer(XaCode.NOTA, "not listed by tpc_recover")
            finish(connection, native)
            return OK

        return self._answered(finished, XaCode.RMFAIL)

    def forget(self, xid: Xid) -> Answer:
        return Answer(XaCode.NOTA, "PEP 249 has no heuristic completions")

    def recover(self) -> list[InDoubt]:
        self.open()
        try:
            self._natives = _listed(self._connection)
        except self._module.Error as error:
            self.close()
            raise ResourceManagerError(f"resource manager {self.name} does not list its branches: {error}") from error
        return [InDoubt(xid) for xid in self._natives]

    def _listed_as(self, connection: Any, xid: Xid) -> Any:
        """The module's name of a branch that is in doubt, which is then taken off the list; None if there is none."""
        if self._natives is None or xid not in self._natives:
            self._natives = _listed(connection)
        return self._natives.pop(xid, None)

    def _answered(self, call: Callable[[Any], Answer], failed: XaCode) -> Answer:
        try:
            self.open()
            return call(self._connection)
        except ResourceManagerError as error:
            return Answer(XaCode.RMFAIL, str(error))
        except self._module.Error as error:
            self.close()
            return Answer(failed, str(error).strip())


def _listed(connection: Any) -> dict[Xid, Any]:
    """Each branch in doubt, and how the module names it. A name without a format id has `NO_FORMAT`."""
    found = {}
    for native in connection.tpc_recover():
        format_id, global_id, branch_id = native[0], native[1], native[2]
        number = NO_FORMAT if format_id is None else format_id
        found[Xid(number, str(global_id).encode(), str(branch_id or "").encode())] = native
    return found


def _has_failed(connection: Any) -> bool:
    """Whether the connection tells that its transaction can only be rolled back."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return isinstance(status, int) and status == _IN_ERROR


def _native(connection: Any, xid: Xid) -> Any:
    return connection.xid(xid.format_id, xid.global_id.decode("latin-1"), xid.branch_id.decode("latin-1"))
