"""GarbageCollector: nothing is collected by itself, everything in the end."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.broker.config import parse
from understudy.broker.server.file_storage import FileStorage
from understudy.broker.server.garbage import EVERY_S, THAW_AT_STALE, THAW_EVERY_S, WORTH_IT, GarbageCollector
from understudy.broker.server.node_driver import NodeDriver


class Cycle:
    def __init__(self) -> None:
        self.me = self
        self.rest = [[] for _ in range(10)]  # type: ignore[var-annotated]


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    made = GarbageCollector()
    yield made
    gc.unfreeze()
    gc.enable()


def make_work() -> list[list[int]]:
    return [[] for _ in range(WORTH_IT + 100)]


def test_new_garbage_goes_when_it_is_worth_it(collector: GarbageCollector) -> None:
    gone = weakref.ref(Cycle())
    assert not collector.look(1.0)
    assert gone() is not None
    kept = make_work()
    assert collector.look(2.0)
    assert gone() is None
    assert len(kept) > WORTH_IT


def test_not_more_often_than_every_few_seconds(collector: GarbageCollector) -> None:
    kept = [make_work()]
    assert collector.look(1.0)
    kept.append(make_work())
    assert not collector.look(1.0 + EVERY_S / 2)
    assert collector.look(1.0 + EVERY_S * 2)


def test_frozen_garbage_goes_after_enough_of_it(collector: GarbageCollector) -> None:
    old = Cycle()
    born = collector.generation
    kept = make_work()
    assert collector.look(1.0)
    gone = weakref.ref(old)
    del old
    kept += make_work()
    assert collector.look(100.0)
    assert gone() is not None
    for _ in range(THAW_AT_STALE):
        collector.ended(born)
    assert collector.look(200.0)
    assert gone() is None


def test_frozen_garbage_goes_after_ten_minutes(collector: GarbageCollector) -> None:
    old, born = Cycle(), collector.generation
    kept = make_work()
    assert collector.look(1.0)
    gone = weakref.ref(old)
    del old
    collector.ended(born)
    assert not collector.look(THAW_EVERY_S - 1)
    assert collector.look(THAW_EVERY_S)
    assert gone() is None
    assert kept


def test_a_core_that_was_dropped_goes_as_soon_as_nobody_refers_to_it(collector: GarbageCollector) -> None:
    """It stayed for ten minutes, and without clients for ever: with all messages, and each step-down left another."""
    core = Cycle()
    kept = make_work()
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
    assert not collector.look(300.0), "there is nothing left to look for"
    assert kept


@pytest.mark.asyncio
async def test_a_driver_tells_of_the_core_that_it_drops(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    toml = f'[broker]\ndata = "{tmp_path}"\n[journal]\nsegment_bytes = "64KiB"\nreserve_bytes = "1MiB"\n'
    driver = NodeDriver(parse(toml), storage, [])
    driver._housekeeping_at = math.inf  # else it may have looked by itself already
    try:
        await driver.open()
        gone = weakref.ref(driver.node)
        gc.collect()
        gc.freeze()
        await driver.close("CONNECTION_FORCED", "as a step-down does")
        await driver.open()
        assert gone() is not None
        driver.garbage.look(100.0)
        assert gone() is None
    finally:
        await driver.close("CONNECTION_FORCED", "the end")
        storage.close()
        gc.unfreeze()
        gc.enable()
