"""The proxy between brokers: whom it takes a dialer for, and what each impairment does to the bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from understudy.client.stress.places.link_proxy import CLOG, DELAY, DROP, Impairments, Proxy, Route
from understudy.ha.trial.edge.java_servers import free_ports

pytestmark = pytest.mark.asyncio

HELLO = b'\x00\x01{"group":"g","broker":"b2","peer":"b1"}'
LIMIT_S = 20.0


class _Never(Random):
    """No repaired connection is closed."""

    def random(self) -> float:
        return 1.0


class _Always(Random):
    """Every repaired connection is closed."""

    def random(self) -> float:
        return 0.0


def free_port() -> int:
    return free_ports(1)[0]


@contextlib.asynccontextmanager
async def echo(random: Random, source: str = "") -> AsyncIterator[tuple[Proxy, Impairments, int]]:
    """A server ``b1`` that says everything back, behind a proxy on the port that is given."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1000):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    impairments = Impairments(random)
    listen = free_port()
    proxy = Proxy([Route(listen=listen, host="127.0.0.1", port=port, target="b1", source=source)], impairments)
    await proxy.open()
    try:
        yield proxy, impairments, listen
    finally:
        proxy.close("b1")
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close


@contextlib.asynccontextmanager
async def dialed(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(LIMIT_S):
            writer.write(HELLO)
            assert await reader.readexactly(len(HELLO)) == HELLO
            yield reader, writer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(("kind", "way"), [(DROP, ("b2", "b1")), (DROP, ("b1", "b2")), (CLOG, ("b2", "b1"))])
async def test_bytes_wait_until_the_repair(kind: str, way: tuple[str, str]) -> None:
    async with echo(_Never()) as (_, impairments, port), dialed(port) as (reader, writer):
        impairments.impair(kind, *way)
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readexactly(4)
        impairments.repair()
        assert await reader.readexactly(4) == b"late"


async def test_others_go_on() -> None:
    async with echo(_Never()) as (_, impairments, port), dialed(port) as (reader, writer):
        impairments.impair(DROP, "b3", "b1")
        writer.write(b"now")
        assert await reader.readexactly(3) == b"now"


async def test_a_connection_that_lost_bytes_may_be_closed_by_the_repair() -> None:
    async with echo(_Always()) as (_, impairments, port), dialed(port) as (reader, writer):
        impairments.impair(DROP, "b2", "b1")
        writer.write(b"lost")
        await asyncio.sleep(0.05)
        impairments.repair()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(4)


async def test_delayed_bytes_keep_their_order() -> None:
    async with echo(Random(1)) as (_, impairments, port), dialed(port) as (reader, writer):
        impairments.impair(DELAY, "b2", "b1")
        sent = b"".join(b"%d," % number for number in range(50))
        for number in range(50):
            writer.write(b"%d," % number)
            await asyncio.sleep(0)
        assert await reader.readexactly(len(sent)) == sent


async def test_a_route_with_a_source_needs_no_hello() -> None:
    async with echo(_Never(), source="b3") as (_, impairments, port), dialed(port) as (reader, writer):
        impairments.impair(DROP, "b3", "b1")
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readexactly(4)


async def test_a_closed_target_refuses_and_an_open_one_takes_connections_again() -> None:
    async with echo(_Never()) as (proxy, _, port):
        proxy.close("b1")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await proxy.open("b1")
        async with dialed(port):
            pass
