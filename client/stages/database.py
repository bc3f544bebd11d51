"""Database and DatabaseSession: what the library needs of a business database.

Sessions are blocking and used by one thread at a time; the asyncio edge calls them in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

import attrs

from understudy.client.stages.core.envelope import Envelope

INBOX: Final = "understudy_inbox"
OUTBOX: Final = "understudy_outbox"
INBOX_RETENTION_MS: Final = 7 * 24 * 3600 * 1000


@attrs.frozen
class Lease:
    """Rows of the outbox that one relay may send until the lease ends."""

    token: str
    envelopes: tuple[Envelope, ...]


class DatabaseSession(Protocol):
    """One connection, and at most one open transaction."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Never fails; a connection that cannot roll back is closed, and opened again by `begin`."""
        ...

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        """Write into the inbox; False if it is there. One statement."""
        ...

    def store(self, stage: str, message_id: str, envelopes: Sequence[Envelope], now_ms: int) -> None:
        """Write into the outbox. One statement."""
        ...

    def unsent(self, stage: str, message_id: str) -> list[Envelope]:
        """What the outbox holds of one processed message, in the order it was stored."""
        ...

    def mark(self, ids: Sequence[str]) -> None:
        """Take out of the outbox, in a transaction of its own."""
        ...

    def lease(self, token: str, *, now_ms: int, until_ms: int, stored_before_ms: int, most: int) -> Lease:
        """Take what was stored before a time and is leased to no other relay, in a transaction of its own."""
        ...

    def prune(self, before_ms: int) -> int:
        """Forget what the inbox took before a time; how many rows."""
        ...

    def ended_by_stage(self) -> str:
        """The statement with which the stage tried to end its transaction; "" if it did not."""
        ...

    def argument(self, *, blocking: bool) -> object:
        """What the stage's function is given."""
        ...

    def close(self) -> None: ...


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

    def parameter(self, *, blocking: bool) -> Any:
        """The type of parameter that a function, ``def`` or ``async def``, may have for it."""
        ...

    def session(self) -> DatabaseSession: ...

    def tables(self) -> str:
        """SQL that makes inbox and outbox, and changes nothing if they are there."""
        ...

    def prepare(self) -> None:
        """Make inbox and outbox.

        Raises:
            ConfigurationError: the database cannot be used.
        """
        ...


async def in_thread(function: Any, *arguments: Any, **named: Any) -> Any:
    """A blocking call in a thread. A cancellation waits for its end: a session is never used by two threads."""
    future = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
