"""A large write under TLS goes out in portions; in between the loop does other things."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from understudy.broker.server.sockets.paced_transport import PORTION_BYTES, PacedTransport, paced

LARGE = bytes(range(256)) * (5 * PORTION_BYTES // 256) + b"end"


class FakeTls:
    """Takes what it is given; ``stuck``: and passes nothing on. If it had as much as its limit, it would tell that itself."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.high = 64 << 10
        self.stuck = self.closed = self.aborted = False

    def writelines(self, chunks: Sequence[bytes]) -> None:
        self.written.append(b"".join(chunks))
        assert self.get_write_buffer_size() < self.high

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.written)) if self.stuck else 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> Any:
        return self if name == "ssl_object" else None


class Told(asyncio.Protocol):
    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


def made() -> tuple[FakeTls, Told, PacedTransport]:
    tls, told = FakeTls(), Told()
    transport = paced(cast("asyncio.Transport", tls), told)
    assert isinstance(transport, PacedTransport)
    return tls, told, transport


async def until_written(tls: FakeTls, octets: bytes) -> int:
    """Wait until all is written; returns how often the loop went round."""
    rounds = 0
    async with asyncio.timeout(30):
        while b"".join(tls.written) != octets:
            assert octets.startswith(b"".join(tls.written))
            await asyncio.sleep(0)
            rounds += 1
    return rounds


@pytest.mark.asyncio
async def test_small_writes_go_through() -> None:
    tls, told, transport = made()
    transport.write(b"one")
    transport.writelines([b"two", b"three"])
    assert (tls.written, told.told) == ([b"one", b"twothree"], [])


@pytest.mark.asyncio
async def test_a_large_write_goes_in_portions_and_in_order() -> None:
    tls, told, transport = made()
    transport.writelines([b"head", LARGE])
    transport.write(b"after")
    transport.close()
    assert transport.is_closing()
    assert not tls.closed
    assert await until_written(tls, b"head" + LARGE + b"after") >= 4
    assert max(map(len, tls.written)) <= PORTION_BYTES
    assert (told.told, tls.closed, transport.get_write_buffer_size()) == (["pause", "resume"], True, 0)


@pytest.mark.asyncio
async def test_what_the_kernel_does_not_take_waits() -> None:
    tls, told, transport = made()
    transport.set_write_buffer_limits(high=2 * PORTION_BYTES)
    tls.stuck = True
    transport.writelines([LARGE])
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(tls.written) <= 2
    assert transport.get_write_buffer_size() == len(LARGE)
    assert told.told == ["pause"]
    tls.stuck = False
    await until_written(tls, LARGE)
    assert told.told == ["pause", "resume"]


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1_000, 30_000, 300_000])
async def test_it_alone_tells_of_a_limit_smaller_than_a_portion(size: int) -> None:
    """The TLS transport told, too: what it said last won, and a client that did not read was sent without bound."""
    tls, told, transport = made()
    transport.set_write_buffer_limits(high=64 << 10)
    tls.stuck = True
    octets = bytes(size)
    while not told.told:
        transport.write(octets)
        assert len(tls.written) < 1_000
    for _ in range(100):
        await asyncio.sleep(0)
    waits = transport.get_write_buffer_size()
    assert (told.told, waits % size) == (["pause"], 0)
    assert waits > 64 << 10
    tls.stuck = False
    await until_written(tls, bytes(waits))
    assert (told.told, transport.get_write_buffer_size()) == (["pause", "resume"], 0)


@pytest.mark.asyncio
async def test_an_abort_drops_what_waits() -> None:
    tls, _, transport = made()
    transport.writelines([LARGE])
    transport.abort()
    written = len(tls.written)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(tls.written), tls.aborted, transport.get_write_buffer_size()) == (written, True, 0)
