"""GarbageCollector: nothing is collected by itself, everything in the end, and no look takes long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.broker.config import parse
from understudy.broker.core.life.let_go import SLICE
from understudy.broker.core.queues.queue import Queue
from understudy.broker.message import Message
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process.garbage import (
    EVERY_S,
    FORCED_AT_ENDS,
    FULL_AT_ENDS,
    FULL_EVERY_S,
    FULL_RETRY_S,
    STEP,
    GarbageCollector,
)
from understudy.broker.server.turn.node_driver import NodeDriver

ALL = 1 << 60
"""Memory blocks: a process that runs tests has more than a broker."""


class Cycle:
    def __init__(self) -> None:
        self.me = self
        self.rest = [[] for _ in range(10)]  # type: ignore[var-annotated]


def made(few_blocks: int = ALL) -> Iterator[GarbageCollector]:
    yield GarbageCollector(few_blocks)
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    yield from made()


@pytest.fixture
def full_collector() -> Iterator[GarbageCollector]:
    """Of a process that holds many messages."""
    yield from made(few_blocks=0)


def make_many() -> list[list[int]]:
    return [[] for _ in range(STEP + 100)]


def dead_and_frozen(collector: GarbageCollector, now_s: float) -> weakref.ref[Cycle]:
    """A cycle that became garbage when it was frozen already."""
    old = Cycle()
    assert collector.look(now_s)
    return weakref.ref(old)


def test_young_garbage_goes_at_the_next_look(collector: GarbageCollector) -> None:
    gone = weakref.ref(Cycle())
    assert gone() is not None
    assert collector.look(1.0)
    assert gone() is None
    statistics = collector.statistics()
    assert (statistics.young_looks, statistics.full_looks, statistics.unseen_freezes) == (1, 0, 0)
    assert statistics.found >= 1
    assert 0 < statistics.longest_ms <= statistics.total_ms


def test_blocks_are_not_counted_while_messages_come(
    full_collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting walks over all the memory of small objects, and while so many are young it decides nothing."""
    monkeypatch.delattr("understudy.broker.server.process.garbage.sys.getallocatedblocks")
    kept = make_many()
    assert full_collector.look(1.0)
    assert kept


def test_looks_are_some_time_apart(collector: GarbageCollector) -> None:
    assert collector.look(1.0)
    assert not collector.look(1.0 + EVERY_S / 2)
    assert collector.look(1.0 + EVERY_S)


def test_many_new_objects_are_frozen_at_once_and_unseen(collector: GarbageCollector) -> None:
    assert collector.look(1.0)
    kept = make_many()
    assert collector.look(1.0 + EVERY_S / 10)
    assert gc.get_count()[0] < STEP
    statistics = collector.statistics()
    assert (statistics.young_looks, statistics.unseen_freezes) == (1, 1)
    assert len(kept) > STEP


def test_what_is_frozen_goes_by_its_reference_count(collector: GarbageCollector) -> None:
    class Message:
        pass

    kept = [Message()]
    gone = weakref.ref(kept[0])
    assert collector.look(1.0)
    kept.clear()
    assert gone() is None


def test_frozen_garbage_goes_after_enough_ends(collector: GarbageCollector) -> None:
    gone = dead_and_frozen(collector, 1.0)
    assert collector.look(100.0)
    assert gone() is not None
    for _ in range(FULL_AT_ENDS):
        collector.ended()
    assert collector.statistics().ends == FULL_AT_ENDS
    assert collector.look(200.0)
    assert gone() is None
    assert collector.statistics().ends == 0


def test_frozen_garbage_goes_after_ten_minutes(collector: GarbageCollector) -> None:
    gone = dead_and_frozen(collector, 1.0)
    assert collector.look(FULL_EVERY_S - 1)
    assert gone() is not None
    assert collector.look(FULL_EVERY_S)
    assert gone() is None


def test_no_look_while_much_is_alive(full_collector: GarbageCollector) -> None:
    """A full one would stop the broker for 0.4 s with a million messages. A young one may find a list of all of them."""
    collector = full_collector
    gone = dead_and_frozen(collector, 1.0)
    for _ in range(FULL_AT_ENDS):
        collector.ended()
    assert collector.look(2 * FULL_EVERY_S)
    assert gone() is not None
    statistics = collector.statistics()
    assert (statistics.young_looks, statistics.full_looks, statistics.unseen_freezes) == (0, 0, 2)
    assert statistics.longest_ms == 0
    assert statistics.ends == FULL_AT_ENDS


def test_what_many_ends_may_have_left_is_bounded(full_collector: GarbageCollector) -> None:
    collector = full_collector
    gone = dead_and_frozen(collector, 1.0)
    for _ in range(FORCED_AT_ENDS):
        collector.ended()
    assert collector.look(100.0)
    assert gone() is None


def test_a_core_that_was_dropped_goes_as_soon_as_nobody_refers_to_it(collector: GarbageCollector) -> None:
    """The core used to stay for ten minutes, without clients for ever: with all messages, and each step-down left another."""
    core = Cycle()
    assert collector.look(1.0)
    gone = weakref.ref(core)
    collector.dropped(core)
    lingering = [core]
    del core
    assert collector.look(100.0)
    assert gone() is not None
    lingering.clear()
    assert collector.look(200.0)
    assert gone() is None
    assert collector.look(200.0 + 2 * FULL_RETRY_S)
    assert collector.statistics().full_looks == 2, "there is nothing left to look for"


@pytest.mark.asyncio
async def test_a_core_that_is_dropped_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages go by their reference counts; the collector is told of the rest."""
    monkeypatch.setattr("understudy.broker.server.turn.node_driver.TICK_S", 3600.0)
    storage = FileStorage(tmp_path)
    toml = f'[broker]\ndata = "{tmp_path}"\n[journal]\nsegment_bytes = "64KiB"\nreserve_bytes = "1MiB"\n'
    driver = NodeDriver(parse(toml), storage, Plugins())
    driver.garbage = GarbageCollector(ALL)
    try:
        await driver.open()
        assert driver.node is not None
        gone = weakref.ref(driver.node)
        queue = Queue(1, "/", "q", durable=True, auto_delete=False, arguments={}, live=driver.node.state.live)
        driver.node.state.queues[1] = queue
        for entry_id in range(3 * SLICE):
            queue.enqueue(entry_id, Message("", "q", b"", b"body", True), 0)
        driver.garbage.look(0.0)
        await driver.close("CONNECTION_FORCED", "as a step-down does")
        while queue.entries:
            await driver.turned()
        del queue
        await driver.open()
        assert gone() is not None
        driver.garbage.look(100.0)
        assert gone() is None
    finally:
        await driver.close("CONNECTION_FORCED", "the end")
        storage.close()
        gc.unfreeze()
        gc.enable()
