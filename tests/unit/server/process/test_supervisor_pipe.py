"""SupervisorPipe: who does not read holds nobody up, and reads whole lines when he goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from understudy.broker.server.process.supervisor_pipe import SupervisorPipe


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_supervisor_that_does_not_read_holds_nobody_up(ends: tuple[int, int]) -> None:
    """He did: the broker hung in the write, some 200 changes after its supervisor had been stopped."""
    reader, writer = ends
    pipe = SupervisorPipe(writer)
    told = 0
    while pipe.tell(f"change {told} " + "x" * 300):
        told += 1
    assert told > 100
    read = os.read(reader, 1 << 20)
    assert pipe.tell("the newest")
    assert pipe.flush()
    read += os.read(reader, 1 << 20)
    lines = read.decode().splitlines()
    assert [line.split("x")[0] for line in lines] == [*(f"change {number} " for number in range(told)), "the newest"]


def test_a_line_that_is_longer_than_the_room_goes_on_where_it_stopped(ends: tuple[int, int]) -> None:
    reader, writer = ends
    pipe = SupervisorPipe(writer)
    line = "".join(f"{number} " for number in range(50_000))
    assert pipe.tell(line)
    read = b""
    while not pipe.flush():
        assert not pipe.tell("the next"), "it waits"
        read += os.read(reader, 1 << 20)
    read += os.read(reader, 1 << 20)
    assert read.decode() == line + "\n"


def test_a_supervisor_that_is_gone_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert SupervisorPipe(writer).tell("nobody hears it")
    os.close(writer)
