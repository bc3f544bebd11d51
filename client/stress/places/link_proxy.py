"""Link proxy: a program between brokers (and between a broker and a store's server) that delays, loses or clogs what they send.

    python -m understudy.client.stress.places.link_proxy ROUTES

ROUTES is JSON: a list of ``{"listen": port, "host": host, "port": port, "target": name, "source": name}``. Without a source the
dialer's first bytes say who it is: a broker's hello is JSON that names it. Commands come on standard input, a JSON object a line:
``{"impair": "delay", "source": "b1", "target": "b2"}``, ``{"repair": true}``, ``{"close": "b1"}`` and ``{"open": "b1"}``: nothing
listens for that target, or something does again. At the end of its input the program ends.

========  ===========================================================================================
delay     bytes come later, each by 20 to 150 ms, in order
drop      bytes do not come. After the repair half of the connections are closed; the others get what
          waited, as after TCP has sent it again
clog      bytes are not even read, so the sender's buffers fill
========  ===========================================================================================

It does not see inside TLS. It is a process of its own, so that a busy driver delays no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import sys
import time
from random import Random
from typing import Any, Final

import attrs

DELAY: Final = "delay"
DROP: Final = "drop"
CLOG: Final = "clog"
KINDS: Final = (DELAY, DROP, CLOG)
DELAY_S: Final = (0.02, 0.15)
CHUNK: Final = 1 << 16
HELD_CHUNKS: Final = 1024
HELLO_BYTES: Final = 1 << 13
CLOSED_SHARE: Final = 0.5
_BROKER: Final = re.compile(rb'"broker":"([^"]+)"')


@attrs.frozen(kw_only=True)
class Route:
    """From a port that is listened on to the real one."""

    listen: int
    host: str
    port: int
    target: str
    source: str = ""


class Impairments:
    """Impairments of links, by source and target."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.repairs = 0
        self._kinds: dict[tuple[str, str], str] = {}
        self._changed = asyncio.Event()

    def impair(self, kind: str, source: str, target: str) -> None:
        self._kinds[source, target] = kind
        self._wake()

    def repair(self) -> None:
        self._kinds.clear()
        self.repairs += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def kind(self, source: str, target: str) -> str:
        return self._kinds.get((source, target), "")

    async def until_not(self, kinds: tuple[str, ...], source: str, target: str) -> bool:
        """Wait while it is one of these; True if it was."""
        waited = False
        while self.kind(source, target) in kinds:
            waited = True
            await self._changed.wait()
        return waited


class Pump:
    """One direction of a connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        impairments: Impairments,
        names: tuple[str, str],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._impairments = impairments
        self._names = names
        self._held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS)

    async def run(self) -> None:
        """Until the sender closes, or a repaired connection is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._write())

    async def _read(self) -> None:
        impairments = self._impairments
        while True:
            await impairments.until_not((CLOG,), *self._names)
            try:
                chunk = await self._reader.read(CHUNK)
            except OSError:
                chunk = b""
            delayed = impairments.kind(*self._names) == DELAY
            due_s = time.monotonic() + (impairments.random.uniform(*DELAY_S) if delayed else 0)
            await self._held.put((due_s, chunk))
            if not chunk:
                return

    async def _write(self) -> None:
        impairments = self._impairments
        while True:
            due_s, chunk = await self._held.get()
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            waited = await impairments.until_not((DROP, CLOG), *self._names)
            if waited and impairments.random.random() < CLOSED_SHARE:
                raise ConnectionResetError("closed after the repair")
            if not chunk:
                raise ConnectionResetError("the sender has closed")
            self._writer.write(chunk)
            await self._writer.drain()


class Proxy:
    """All routes."""

    def __init__(self, routes: list[Route], impairments: Impairments) -> None:
        self._routes = routes
        self._impairments = impairments
        self._servers: dict[Route, asyncio.Server] = {}

    async def open(self, target: str = "") -> None:
        """Listen for that target, or for all."""
        for route in self._routes:
            if target in ("", route.target) and route not in self._servers:
                self._servers[route] = await asyncio.start_server(
                    functools.partial(self._serve, route), "127.0.0.1", route.listen
                )

    def close(self, target: str) -> None:
        """Listen no more for that target; connections that are there stay."""
        for route in self._routes:
            if route.target == target and route in self._servers:
                self._servers.pop(route).close()

    async def _serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            source, first = (route.source, b"") if route.source else await _hello(reader)
            back, onward = await asyncio.open_connection(route.host, route.port)
            await self._impairments.until_not((DROP, CLOG), source, route.target)
            onward.write(first)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Pump(reader, onward, self._impairments, (source, route.target)).run())
                tasks.create_task(Pump(back, writer, self._impairments, (route.target, source)).run())
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, onward):
                if each is not None:
                    each.transport.abort()


async def _hello(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The dialer's name and what was read for it; "" if its first bytes do not say."""
    first = b""
    while len(first) < HELLO_BYTES and (chunk := await reader.read(CHUNK)):
        first += chunk
        if found := _BROKER.search(first):
            return found[1].decode(), first
    return "", first


async def _obey(proxy: Proxy, impairments: Impairments) -> None:
    """Commands from standard input, until its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        command: dict[str, Any] = json.loads(line)
        if "repair" in command:
            impairments.repair()
        elif "open" in command:
            await proxy.open(command["open"])
        elif "close" in command:
            proxy.close(command["close"])
        else:
            impairments.impair(command["impair"], command["source"], command["target"])
        print(line.decode().strip(), flush=True)  # noqa: T201  # it is done


async def _main(routes: list[Route]) -> None:
    impairments = Impairments(Random())  # noqa: S311  # chance for delays
    proxy = Proxy(routes, impairments)
    await proxy.open()
    print("{}", flush=True)  # noqa: T201  # it listens
    await _obey(proxy, impairments)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main([Route(**each) for each in json.loads(sys.argv[1])]))
