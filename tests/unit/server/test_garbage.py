"""GarbageCollector: nothing is collected by itself, everything in the end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from understudy.broker.server.garbage import EVERY_S, THAW_AT_STALE, THAW_EVERY_S, WORTH_IT, GarbageCollector


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
