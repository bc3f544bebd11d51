"""Database and its sessions: what the library needs of a business database."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from understudy.client.stages.core.envelope import Envelope
from understudy.in_thread import in_thread as in_thread_of

INBOX: Final = "understudy_inbox"
OUTBOX: Final = "understudy_outbox"
LINES: Final = "understudy_lines"
PARKED: Final = "understudy_parked"

in_thread: Final[Callable[..., Coroutine[Any, Any, Any]]] = functools.partial(in_thread_of, None)
"""A blocking call in a thread of the event loop."""

_PARAMETERS: Final = {
    ("aiosqlite.core", "Connection"),
    ("psycopg", "AsyncConnection"),
    ("psycopg", "Connection"),
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"),
    ("sqlalchemy.orm.session", "Session"),
    ("sqlite3", "Connection"),
    ("understudy.client.stages.databases.sqlite_database", "AsyncConnection"),
}
"""Module and name of each type by which a function may ask for a database."""


def is_database(hint: Any) -> bool:
    """True if an annotation asks for a database of any kind."""
    return (getattr(hint, "__module__", ""), getattr(hint, "__qualname__", "")) in _PARAMETERS


def imported(module: str, name: str) -> tuple[Any, ...]:
    """A type of another library, if the program has imported it: else no annotation names it."""
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if found is not None else ()


class BlockingSession(Protocol):
    """One connection, and at most one open transaction; used by one thread at a time."""

    def open(self) -> Any:
        """The connection, opened if it is not open."""
        ...

    def begin(self) -> None:
        """Begin a transaction, on a new connection if there is none."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Never fails; a connection that cannot roll back is closed."""
        ...

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        """Write into the inbox; False if it is there. One statement."""
        ...

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        """Write into the outbox. One statement. An id that the outbox holds already is not written again."""
        ...

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        """Envelopes of one processed message in the outbox, in the order in which they were stored."""
        ...

    def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """One statement of the library in the open transaction, with ``?`` for each value: its rows."""
        ...

    def mark(self, ids: Sequence[str]) -> None:
        """Take out of the outbox, in a transaction of its own."""
        ...

    def commit_is_unknown(self) -> bool:
        """True if a `commit` that raised may have committed."""
        ...

    def ended_by_stage(self, *, failed: bool = False) -> str:
        """The statement with which the stage tried to end its transaction; "" if it did not.

        Args:
            failed: the stage has raised an exception.
        """
        ...

    def argument(self) -> object:
        """The value of the parameter of the stage's function, from `begin` on."""
        ...

    def close(self) -> None: ...


class DatabaseSession(Protocol):
    """As `BlockingSession`, for asyncio."""

    async def open(self) -> Any: ...
    async def begin(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def claim(self, stage: str, message_id: str, now_ms: int) -> bool: ...
    async def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None: ...
    async def unsent(self, stage: str, message_id: str) -> list[Envelope]: ...
    async def run(self, sql: str, values: Sequence[Any]) -> list[Any]: ...
    async def mark(self, ids: Sequence[str]) -> None: ...
    def commit_is_unknown(self) -> bool: ...
    def ended_by_stage(self, *, failed: bool = False) -> str: ...
    def argument(self) -> object: ...
    async def close(self) -> None: ...


class RelaySession(Protocol):
    """A session for marker and relay, which call no function. Each call is a transaction of its own."""

    async def mark(self, ids: Sequence[str]) -> None:
        """Take out of the outbox."""
        ...

    async def lease(
        self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int
    ) -> list[Envelope]:
        """Take what was stored before a time and is leased to no other relay."""
        ...

    async def prune(self, before_ms: int, most: int) -> int:
        """Forget what the inbox took before a time, oldest first; how many rows."""
        ...

    async def close(self) -> None: ...


class ThreadedSession:
    """A blocking session for asyncio: each call runs in a thread."""

    def __init__(self, blocking: BlockingSession) -> None:
        self._blocking = blocking

    async def open(self) -> Any:
        return await in_thread(self._blocking.open)

    async def begin(self) -> None:
        await in_thread(self._blocking.begin)

    async def commit(self) -> None:
        await in_thread(self._blocking.commit)

    async def rollback(self) -> None:
        await in_thread(self._blocking.rollback)

    async def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        claimed: bool = await in_thread(self._blocking.claim, stage, message_id, now_ms)
        return claimed

    async def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        await in_thread(self._blocking.store, stage, message_id, envelopes, now_ms)

    async def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        found: list[Envelope] = await in_thread(self._blocking.unsent, stage, message_id)
        return found

    async def run(self, sql: str, values: Sequence[Any]) -> list[Any]:
        rows: list[Any] = await in_thread(self._blocking.run, sql, values)
        return rows

    async def mark(self, ids: Sequence[str]) -> None:
        await in_thread(self._blocking.mark, ids)

    def commit_is_unknown(self) -> bool:
        return self._blocking.commit_is_unknown()

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return self._blocking.ended_by_stage(failed=failed)

    def argument(self) -> object:
        return self._blocking.argument()

    async def close(self) -> None:
        await in_thread(self._blocking.close)


class Database(Protocol):
    """A business database."""

    @property
    def address(self) -> str:
        """For errors and logs, without passwords."""
        ...

    @property
    def one_writer(self) -> bool:
        """One transaction at a time: the sessions of a process take turns."""
        ...

    def parameters(self, *, blocking: bool) -> tuple[Any, ...]:
        """The types of parameter that a function, ``def`` or ``async def``, may have for it; the first one is the usual one."""
        ...

    def session(self, *, blocking: bool, kind: Any = None) -> DatabaseSession:
        """A session for functions of one kind, ``def`` or ``async def``; it opens its connection when it begins.

        Args:
            blocking: the function is a ``def``.
            kind: one of `parameters`, the type of the session's argument; None: the usual one.
        """
        ...

    def relay_session(self) -> RelaySession:
        """A session for marker and relay; it opens its connection when it is used."""
        ...

    def blocking_session(self, kind: Any = None) -> BlockingSession:
        """A session that is called without an event loop; ``kind`` is one of the `parameters` of a ``def``."""
        ...

    def tables(self) -> str:
        """SQL that makes the tables, and changes nothing if they are there."""
        ...

    def look(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of one query of the library, whose values stand as ``?``; by a connection of its own."""
        ...

    def prepare(self) -> None:
        """Make the tables.

        Raises:
            ConfigurationError: the database cannot be used.
        """
        ...
