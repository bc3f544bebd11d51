"""The driver: jobs in a thread, in order, one at a time, and the end of it all.

No sleeps: a disk that is told when to go on (`GatedStorage`) makes every interleaving that is asked for.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.journal_kit import batch, fill, new_journal, note, open_journal
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOptions
from understudy.broker.log.storage import Chunk, SpareJob, SyncJob
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.turn import journal_driver
from understudy.broker.server.turn.journal_driver import JournalDriver
from understudy.broker.server.turn.loop_guard import LOOP_BYTES
from understudy.testing.disk import MemoryFile, MemoryStorage

pytestmark = pytest.mark.asyncio


class GatedFile(MemoryFile):
    __slots__ = ("gate",)

    def __init__(self, storage: GatedStorage, file: MemoryFile) -> None:
        super().__init__(storage, file._inode)
        self.gate = storage.gate

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        assert self.gate.wait(30), "the gate was never opened"
        super().write(chunks, at)


class GatedStorage(MemoryStorage):
    """A disk whose writes wait while `gate` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> GatedFile:
        return GatedFile(self, super().create(name, size_bytes, zeroed=zeroed))

    def open(self, name: str) -> GatedFile:
        return GatedFile(self, super().open(name))

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()


class Owner:
    """Whom the driver calls back."""

    def __init__(self, journal: Journal, loop_bytes: int = 0) -> None:
        self.journal = journal
        self.durable: list[int] = []
        self.failures: list[BaseException] = []
        self.driver = JournalDriver(journal, asyncio.get_running_loop(), self.on_durable, self.on_failed, loop_bytes)
        self.called = asyncio.Event()
        self.failed = asyncio.Event()

    def on_durable(self) -> None:
        self.durable.append(self.journal.durable_offset)
        self.called.set()

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()


def begun(storage: MemoryStorage) -> Journal:
    """A journal whose segment is there, with room: the first batch is durable."""
    journal = new_journal(storage, JournalOptions(segment_bytes=1 << 20, reserve_bytes=0))
    fill(journal, 1)
    return journal


async def test_appended_kicked_durable() -> None:
    storage = MemoryStorage()
    owner = Owner(new_journal(storage))
    owner.driver.kick()
    assert owner.durable == [], "nothing to do"
    owner.journal.append(batch(1))
    owner.driver.kick()
    await owner.called.wait()
    assert owner.durable == [1]
    times = owner.driver.times()
    assert times.syncs == 1
    assert times.longest_us == times.last_us == times.total_us > 0
    await owner.driver.stop()
    assert open_journal(storage)[0].frames == [batch(1)]


async def test_a_small_group_is_synced_on_the_loop_and_a_larger_one_in_the_thread() -> None:
    owner = Owner(begun(MemoryStorage()), loop_bytes=4096)
    owner.journal.append(batch(2))
    owner.driver.kick()
    assert owner.durable == [2], "durable when kick returns"
    owner.called.clear()
    owner.journal.append(batch(3, size=8192))
    owner.driver.kick()
    assert owner.durable == [2], "handed to the thread"
    await asyncio.wait_for(owner.called.wait(), 30)
    assert owner.durable == [2, 3]
    await owner.driver.stop()


class SlowStorage(MemoryStorage):
    """A disk whose writes take time of a clock that stands still otherwise.

    Attributes:
        write_s: how long the next writes take.
        threads: which thread wrote each group.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.write_s = 0.0
        self.threads: list[str] = []

    def open(self, name: str) -> SlowFile:
        return SlowFile(self, super().open(name))

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> SlowFile:
        return SlowFile(self, super().create(name, size_bytes, zeroed=zeroed))


class SlowFile(MemoryFile):
    __slots__ = ("disk",)

    def __init__(self, storage: SlowStorage, file: MemoryFile) -> None:
        super().__init__(storage, file._inode)
        self.disk = storage

    def write(self, chunks: Sequence[Chunk], at: int) -> None:
        thread = threading.current_thread().name
        if thread != "journal-space":  # spare segments
            self.disk.now += self.disk.write_s
            self.disk.threads.append(thread)
        super().write(chunks, at)


async def test_a_slow_disk_holds_the_loop_once_and_a_quick_one_comes_back_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = SlowStorage()
    monkeypatch.setattr(journal_driver, "perf_counter", lambda: storage.now)
    owner = Owner(begun(storage), loop_bytes=LOOP_BYTES)
    here = threading.current_thread().name

    async def groups(count: int) -> list[str]:
        storage.threads.clear()
        for _ in range(count):
            owner.journal.append(batch(owner.journal.last_offset + 1))
            owner.driver.kick()
            await owner.driver.drain()
        return list(storage.threads)

    storage.write_s = 0.0002
    assert await groups(5) == [here] * 5
    storage.write_s = 0.020
    assert await groups(12) == [here] + ["journal-sync"] * 11
    times = owner.driver.times()
    assert (times.on_loop, times.syncs) == (6, 17)
    assert times.longest_on_loop_us == pytest.approx(20_000)
    storage.write_s = 0.0002
    places = await groups(40)
    assert places[0] == "journal-sync"
    assert places[-10:] == [here] * 10
    await owner.driver.stop()


async def test_a_group_that_begins_a_segment_is_synced_in_the_thread() -> None:
    storage = SlowStorage()
    owner = Owner(new_journal(storage, JournalOptions(segment_bytes=64 << 10, reserve_bytes=0)), loop_bytes=LOOP_BYTES)
    for offset in range(1, 60):
        storage.threads.clear()
        rolls = owner.journal.statistics().rolls
        owner.journal.append(batch(offset, size=3000))
        owner.driver.kick()
        await owner.driver.drain()
        rolled = offset == 1 or owner.journal.statistics().rolls > rolls
        assert ("journal-sync" in storage.threads) is rolled
    assert owner.journal.statistics().rolls >= 2
    await owner.driver.stop()


async def test_a_failed_sync_on_the_loop_is_said_once() -> None:
    storage = MemoryStorage()
    owner = Owner(begun(storage), loop_bytes=4096)
    owner.journal.append(batch(2))
    storage.failing_syncs = 1
    owner.driver.kick()
    assert len(owner.failures) == 1
    assert owner.durable == []
    owner.driver.kick()
    assert len(owner.failures) == 1
    await owner.driver.stop()


async def test_what_arrives_during_a_sync_is_the_next_group() -> None:
    storage = GatedStorage()
    owner = Owner(new_journal(storage))
    storage.gate.clear()
    owner.journal.append(batch(1))
    owner.driver.kick()
    for offset in range(2, 30):
        owner.journal.append(batch(offset))
        owner.driver.kick()
    assert owner.journal.durable == 0
    storage.gate.set()
    await owner.driver.drain()
    assert owner.durable == [1, 29]
    assert owner.journal.statistics().sync_jobs == 2
    await owner.driver.stop()


async def test_sync_now_waits_for_the_thread_and_the_thread_finds_it_done() -> None:
    storage = GatedStorage()
    owner = Owner(new_journal(storage))
    storage.gate.clear()
    owner.journal.append(batch(1))
    owner.driver.kick()
    owner.journal.append(note("epoch 7"))
    threading.Timer(0.02, storage.gate.set).start()
    owner.driver.sync_now()
    assert owner.journal.durable == 2
    assert owner.durable == []
    owner.journal.append(batch(2))
    owner.driver.kick()  # the thread's word on the first job is still on its way
    await owner.driver.drain()
    assert owner.journal.durable == 3
    assert owner.durable[-1] == 2
    await owner.driver.stop()
    assert open_journal(storage)[0].frames == [batch(1), note("epoch 7"), batch(2)]


async def test_a_failed_sync_is_said_once_and_nothing_goes_on() -> None:
    storage = MemoryStorage()
    owner = Owner(new_journal(storage))
    storage.failing_syncs = 1
    owner.journal.append(batch(1))
    owner.driver.kick()
    with pytest.raises(JournalFailedError, match="simulated"):
        await owner.driver.drain()
    assert [str(error) for error in owner.failures] == ["[Errno 5] simulated fsync error"]
    assert owner.durable == []
    owner.driver.kick()
    owner.driver.drop_before(1)
    with pytest.raises(JournalFailedError):
        owner.driver.sync_now()
    await owner.driver.stop()
    assert len(owner.failures) == 1


async def test_a_failed_sync_now_is_said_too() -> None:
    storage = MemoryStorage()
    owner = Owner(new_journal(storage))
    storage.failing_syncs = 1
    owner.journal.append(note("epoch"))
    with pytest.raises(JournalFailedError):
        owner.driver.sync_now()
    assert len(owner.failures) == 1
    await owner.driver.stop()


async def test_spare_and_dropped_segments_are_made_and_removed_in_the_background(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    options = JournalOptions(segment_bytes=64 << 10, reserve_bytes=0)
    owner = Owner(new_journal(storage, options))
    for offset in range(1, 101):
        owner.journal.append(batch(offset, size=3000))
        owner.driver.kick()
        await owner.driver.drain()
    before = owner.journal.statistics()
    assert before.rolls >= 4
    owner.driver.drop_before(60)
    await owner.driver.stop()
    names = [name for name in storage.names() if name.endswith(".journal")]
    assert len(names) == before.segments - owner.journal.statistics().dropped_segments < before.segments
    storage.close()
    recorder, _ = open_journal(FileStorage(tmp_path), options)
    assert recorder.batches[-40:] == [batch(offset, size=3000) for offset in range(61, 101)]


async def test_what_was_written_is_not_held_until_there_is_more(tmp_path: Path) -> None:
    """A last group may be of many MiB, and the thread that has written it waits for the next one."""
    others = {id(each): each for each in gc.get_objects() if isinstance(each, SyncJob)}
    storage = FileStorage(tmp_path)
    owner = Owner(new_journal(storage))
    owner.journal.append(batch(1, size=30_000))
    owner.driver.kick()
    await owner.driver.drain()
    async with asyncio.timeout(30):
        while [each for each in gc.get_objects() if isinstance(each, SyncJob) and id(each) not in others]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the thread tells nobody when it lets go
    await owner.driver.stop()
    storage.close()


async def test_a_spare_grows_with_the_journal_and_the_next_roll_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    owner = Owner(new_journal(storage, JournalOptions(segment_bytes=2 << 20, reserve_bytes=0)))
    begun = []
    begin_spare = Journal.begin_spare

    def begins(self: Journal) -> SpareJob | None:
        if (job := begin_spare(self)) is not None:
            begun.append(job)
        return job

    monkeypatch.setattr(Journal, "begin_spare", begins)
    for offset in range(1, 240):
        owner.journal.append(batch(offset, size=15_000))
        await owner.driver.drain()
        await _slice_done(owner)
        used, ready = _used(owner.journal), owner.journal.statistics().spare_ready
        assert ready if used > 5 / 8 else not (ready and used < 3 / 8), (offset, used)
    assert owner.journal.statistics().rolls == 1
    assert len(begun) >= 8
    await owner.driver.stop()
    storage.close()


async def _slice_done(owner: Owner) -> None:
    async with asyncio.timeout(30):
        while owner.driver._spare_job is not None:  # noqa: ASYNC110  # a thread does it, and tells the driver alone
            await asyncio.sleep(0.001)


def _used(journal: Journal) -> float:
    newest = journal._segments[-1]
    return (newest.durable_end - newest.data_start) / newest.size_bytes


async def test_stop_does_not_wait_for_a_spare(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    owner = Owner(new_journal(storage, JournalOptions(segment_bytes=64 << 10, reserve_bytes=0)))
    owner.journal._spare._size_bytes = 64 << 20
    owner.journal.append(batch(1, size=20_000))
    await owner.driver.drain()
    spare = owner.driver._spare_job
    assert spare is not None
    await owner.driver.stop()
    filled = spare.filled
    assert filled <= 256 << 10
    spare.allowed = 64 << 20
    spare.run()
    assert (spare.filled, spare.finished) == (filled, False)


async def test_a_failed_drop_is_said() -> None:
    class Stubborn(MemoryStorage):
        def remove(self, name: str) -> None:
            raise OSError(5, "will not go")

    owner = Owner(new_journal(Stubborn()))
    for offset in range(1, 10):
        owner.journal.append(batch(offset, size=2400))
    await owner.driver.drain()
    owner.driver.drop_before(6)
    await owner.failed.wait()
    assert "will not go" in str(owner.failures[0])
    await owner.driver.stop()


async def test_stop_syncs_what_is_buffered_and_ends_the_threads() -> None:
    storage = MemoryStorage()
    owner = Owner(new_journal(storage))
    before = {thread.name for thread in threading.enumerate()}
    assert "journal-sync" in before
    owner.journal.append(batch(1))
    await owner.driver.stop()
    await owner.driver.stop()
    assert owner.durable == [1]
    assert not owner.driver._sync_thread.is_alive()
    owner.driver.kick()
    with pytest.raises(JournalFailedError, match="is closed"):
        owner.journal.append(batch(2))


async def test_a_sync_that_fails_at_the_very_end_is_said() -> None:
    """The failed group is that of closing: all else is on the disk, but such a disk ends the process with 74."""
    storage = MemoryStorage()
    owner = Owner(new_journal(storage))
    owner.journal.append(batch(1))
    await owner.driver.drain()
    storage.failing_syncs = 1
    with pytest.raises(JournalFailedError, match="simulated fsync error"):
        await owner.driver.stop()
    assert len(owner.failures) == 1


async def test_a_closed_loop_ends_the_thread() -> None:
    loop = asyncio.new_event_loop()
    journal = new_journal(MemoryStorage())
    driver = JournalDriver(journal, loop, lambda: None, lambda error: None, 0)
    loop.close()
    journal.append(batch(1))
    driver.kick()
    await asyncio.to_thread(driver._sync_thread.join)
    assert not driver._sync_thread.is_alive()
