"""Bodies are read in a thread, in order, and an error ends it all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from tests.unit.log.journal_kit import new_journal
from understudy.broker.log import frame as frames
from understudy.broker.log import record
from understudy.broker.log.body_read import WantedBody
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.segment import JournalDamagedError, segment_name
from understudy.broker.message import Message
from understudy.broker.server.turn.body_reader import BodyReader
from understudy.testing.disk import MemoryFile, MemoryStorage

pytestmark = pytest.mark.asyncio

SIZE = 900
OPTIONS = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0)


class Owner:
    """Whom the reader calls back."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.journal: Journal = new_journal(self.storage, OPTIONS)
        for offset in range(1, 31):
            message = Message("", "q", b"\0\0", b"%d" % offset * SIZE, True)
            raw = record.encode_enqueue([(1, offset, 0)], message, False) + message.properties + message.content()
            self.journal.append(frames.encode_batch(1, offset, 1, 0, [raw]))
            self.journal.sync_now()
        self.told: list[Mapping[int, bytes]] = []
        self.failures: list[BaseException] = []
        self.rooms = 0
        self.called = asyncio.Event()
        self.reader = BodyReader(self.journal, asyncio.get_running_loop(), self.on_failed, self.on_room)

    def on_told(self, bodies: Mapping[int, bytes]) -> None:
        self.told.append(bodies)
        self.called.set()

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.called.set()

    def on_room(self) -> None:
        self.rooms += 1

    def read(self, *offsets: int) -> None:
        self.reader.read([WantedBody(offset, len(b"%d" % offset) * SIZE) for offset in offsets], self.on_told)

    async def wait(self, told: int) -> None:
        while len(self.told) < told and not self.failures:
            self.called.clear()
            await asyncio.wait_for(self.called.wait(), 30)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is clear, reads of the disk in the reader's thread wait."""
    gate = threading.Event()
    read = MemoryFile.read

    def waits(file: MemoryFile, at: int, length: int) -> bytes:
        if threading.current_thread().name == "journal-read":
            assert gate.wait(30), "the gate was never opened"
        return read(file, at, length)

    monkeypatch.setattr(MemoryFile, "read", waits)
    return gate


async def test_bodies_come_in_the_order_in_which_they_were_asked_for(gate: threading.Event) -> None:
    owner = Owner()
    owner.read(3, 29)
    owner.read(1)
    assert not owner.told, "the loop waits for no disk"
    gate.set()
    await owner.wait(2)
    assert owner.told == [{3: b"3" * SIZE, 29: b"29" * SIZE}, {1: b"1" * SIZE}]
    await owner.reader.stop()
    assert owner.rooms == 0
    assert not owner.failures


async def test_room_is_told_when_the_last_read_of_a_dead_segment_is_over(gate: threading.Event) -> None:
    owner = Owner()
    owner.read(1)
    owner.read(2)
    owner.journal.request_drop(30)
    owner.journal.sync_now()
    assert owner.journal.begin_drop() is None
    gate.set()
    await owner.wait(2)
    assert owner.rooms == 1
    assert owner.journal.begin_drop() is not None
    await owner.reader.stop()


async def test_an_error_is_told_once_and_nobody_gets_a_body_after_it(gate: threading.Event) -> None:
    owner = Owner()
    file = owner.storage.open(segment_name(1))
    at = file.read(0, OPTIONS.segment_bytes).index(b"2" * SIZE)
    file.write([b"3"], at)
    owner.read(2)
    owner.read(30)
    gate.set()
    await owner.wait(1)
    await owner.reader.stop()
    await asyncio.sleep(0)
    assert [type(each) for each in owner.failures] == [JournalDamagedError]
    assert segment_name(1) in str(owner.failures[0])
    assert not owner.told


async def test_nobody_is_told_after_the_stop(gate: threading.Event) -> None:
    owner = Owner()
    owner.read(1)
    gate.set()
    await owner.reader.stop()
    await asyncio.sleep(0)
    assert not owner.told
    assert not owner.failures
