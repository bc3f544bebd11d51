"""Links between two drivers in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from understudy.ha.trial.edge.java_servers import free_ports
from understudy.replicator.direct.driver import DirectFabric, LinkSettings, monotonic_ms
from understudy.replicator.fabric import Link

LIMIT_S = 20.0

Run = Callable[[Callable[[], Awaitable[None]]], None]


class Owner:
    """Listener and owner of one fabric: notes all it is told, ends its turns, and lets a test wait for a fact."""

    def __init__(self, name: str, tasks: asyncio.TaskGroup, **settings: Any) -> None:
        chosen: dict[str, Any] = {"group": "g", "broker": name, "secret": b"s"} | settings
        self.events: list[tuple[Any, ...]] = []
        self.links: list[Link] = []
        self.turns = 0
        self.late_ms = 0
        self.inside = False
        self.when_told: Callable[[], None] = lambda: None
        self.on_message: Callable[[Link, bytes], None] = lambda link, message: None
        self.fabric = DirectFabric(
            LinkSettings(**chosen), self, self.turn, tasks, lambda: monotonic_ms() + self.late_ms
        )
        self._changed = asyncio.Event()

    def turn(self, at_once: bool = False) -> None:
        self.turns += 1
        self.fabric.flush()
        self._changed.set()

    def told(self, *event: Any) -> None:
        assert not self.inside, "told from inside a call of the listener"
        self.events.append(event)
        self.when_told()

    def link_accepted(self, link: Link) -> None:
        self.links.append(link)
        self.told("accepted", link.peer)

    def dialed(self, link: Link) -> None:
        self.links.append(link)
        self.told("dialed", link.peer)

    def dial_failed(self, broker: str, reason: str, gone: bool) -> None:
        self.told("failed", reason, gone)

    def link_message(self, link: Link, message: bytes) -> None:
        self.told("message", message)
        self.on_message(link, message)

    def link_lost(self, link: Link, reason: str) -> None:
        self.told("lost", reason)

    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]

    def told_at_least(self, count: int) -> bool:
        return len(self.events) >= count

    def messages(self) -> list[bytes]:
        return [event[1] for event in self.events if event[0] == "message"]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_told(self, kind: str) -> tuple[Any, ...]:
        await self.until(lambda: kind in self.kinds())
        return next(event for event in self.events if event[0] == kind)


@asynccontextmanager
async def owners(*names: str, **settings: Any) -> AsyncIterator[list[Owner]]:
    async with asyncio.TaskGroup() as tasks:
        made = [Owner(name, tasks, **settings) for name in names]
        for owner in made:
            await owner.fabric.listen("127.0.0.1", 0)
        try:
            yield made
        finally:
            for owner in made:
                owner.fabric.close()
            for owner in made:
                await owner.fabric.wait_closed()


def address(owner: Owner) -> str:
    return f"127.0.0.1:{owner.fabric.port}"


async def link(one: Owner, other: Owner) -> tuple[Link, Link]:
    one.fabric.dial(other.fabric.settings.broker, address(other))
    await one.until_told("dialed")
    await other.until_told("accepted")
    return one.links[-1], other.links[-1]


def free_port() -> int:
    return free_ports(1)[0]
