"""Place: where the brokers of a stress run live, and what can be done to them there.

Two places: processes of this host (``places.local``), containers of docker-compose (``places.compose``). A nemesis speaks to a
place and knows no process and no container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from understudy.client.runs.session import Address

KILL: Final = "kill"
PAUSE: Final = "pause"
STOP: Final = "stop"
STORE: Final = "store"
STORE_CUT: Final = "store-cut"
DISK: Final = "disk"
NET: Final = "net"
CUT: Final = "cut"
DISCONNECT: Final = "disconnect"
"""What can be done in a place."""


class PlaceError(Exception):
    """The brokers cannot be run there, or something cannot be done to them."""


class Place(Protocol):
    """A group of brokers, and the servers of its store; for the time of an ``async with``."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def amqp(self) -> Mapping[str, Address]:
        """By broker, where clients connect."""

    @property
    def login(self) -> tuple[str, str]:
        """User and password, of AMQP and of the pages."""

    @property
    def http(self) -> Mapping[str, Address]:
        """By broker, where its pages are."""

    @property
    def stores(self) -> Sequence[str]:
        """Names of the servers of the coordination store; none for a file."""

    @property
    def small_disks(self) -> Sequence[str]:
        """Brokers whose disk can be filled."""

    @property
    def unexpected(self) -> Mapping[str, int]:
        """Ends of processes that no nemesis asked for, and how often."""

    async def kill(self, name: str) -> None:
        """SIGKILL to a broker or a server of the store; it stays down."""

    async def stop(self, name: str) -> None:
        """SIGTERM; until it has ended."""

    async def start(self, name: str) -> None:
        """Start what is down."""

    async def pause(self, name: str) -> None:
        """SIGSTOP."""

    async def resume(self, name: str) -> None:
        """SIGCONT; nothing if it is not paused."""

    async def disconnect(self, name: str) -> None:
        """Take it from its network, until the repair."""

    async def fill_disk(self, broker: str) -> None:
        """Leave no room on the broker's disk."""

    async def empty_disk(self, broker: str) -> None:
        """Give the room back."""

    async def impair(self, kind: str, source: str, target: str) -> None:
        """Impair what ``source`` sends to ``target``: ``drop`` it, or (NET) ``clog`` it (bytes wait), or ``delay`` it."""

    async def repair(self) -> None:
        """End every impairment, and connect again what was disconnected."""
