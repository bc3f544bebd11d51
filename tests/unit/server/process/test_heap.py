"""Heap: what was freed goes back to the kernel, in portions, and takes a small share of the time."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import structlog.testing

from understudy.broker.server.process.heap import (
    EVERY_S,
    GROWTH,
    LOOKS_SHARE,
    PORTION,
    REMAINDER,
    REMAINDER_AFTER_S,
    REST_S,
    TRIMS_SHARE,
    Glibc,
    Heap,
    glibc,
)
from understudy.broker.server.process.memory_watch import resident_bytes

MIB = 1 << 20


class Pages:
    """An allocator as a test wants it."""

    def __init__(self) -> None:
        self.free = 10 * MIB
        self.trims = 0
        self.looks = 0
        self.resident = 100 * MIB

    def free_bytes(self) -> int:
        self.looks += 1
        return self.free

    def trim(self) -> None:
        self.trims += 1


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def heap(pages: Pages) -> Heap:
    return Heap(pages, lambda: pages.resident)


def test_a_portion_is_given_back_once(heap: Heap, pages: Pages) -> None:
    heap.look(0.0)
    pages.free += PORTION - 1
    heap.look(100.0)
    assert pages.trims == 0
    pages.free += 1
    heap.look(200.0)
    assert pages.trims == 1
    heap.look(300.0)  # the pieces are as free as they were, but not in memory any more
    assert pages.trims == 1
    assert heap.statistics().trims == 1
    assert heap.statistics().free_bytes == 10 * MIB + PORTION


def test_the_remainder_of_what_was_freed_in_slices_goes_too(heap: Heap, pages: Pages) -> None:
    heap.look(0.0)
    pages.free += PORTION
    heap.look(100.0)
    pages.free += 2 * REMAINDER
    heap.look(100.0 + REMAINDER_AFTER_S - EVERY_S)
    assert pages.trims == 1
    heap.look(100.0 + 2 * REMAINDER_AFTER_S)
    assert pages.trims == 2
    pages.free += REMAINDER - 1
    heap.look(200.0)
    pages.free += 1
    heap.look(300.0)  # much later: no remainder of that any more
    assert pages.trims == 2


def test_what_was_taken_again_counts_when_it_is_freed_again(heap: Heap, pages: Pages) -> None:
    pages.free += PORTION
    heap.look(0.0)
    pages.free -= PORTION // 2
    heap.look(100.0)
    pages.free += PORTION // 2
    heap.look(200.0)
    assert pages.trims == 1
    pages.free -= PORTION
    heap.look(300.0)
    pages.free += PORTION
    heap.look(400.0)
    assert pages.trims == 2


def times_of(monkeypatch: pytest.MonkeyPatch, *clock: float) -> None:
    """Set the results of the next calls of the processor clock."""
    times = iter(clock)
    monkeypatch.setattr("understudy.broker.server.process.heap.time.thread_time", lambda: next(times))


def test_looks_take_a_small_share_of_the_time(heap: Heap, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    times_of(monkeypatch, 0.0, 0.005, 0.0, 0.0, 0.0)  # a look of 5 ms, one of none and a trim
    heap.look(1.0)
    assert heap.statistics().longest_ms == 5
    pages.free += PORTION
    heap.look(0.9 + 0.005 * LOOKS_SHARE)
    assert pages.trims == 0
    heap.look(1.1 + 0.005 * LOOKS_SHARE)
    assert pages.trims == 1


def test_trims_take_a_small_share_of_the_time(heap: Heap, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    times_of(monkeypatch, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0)  # a trim of 100 ms, one of none
    pages.free += PORTION
    heap.look(1.0)
    assert heap.statistics().longest_ms == 100
    pages.free += PORTION
    heap.look(0.9 + 0.1 * TRIMS_SHARE)
    assert pages.trims == 1
    heap.look(1.1 + 0.1 * TRIMS_SHARE)
    assert pages.trims == 2


def test_looks_are_some_time_apart(heap: Heap, pages: Pages) -> None:
    heap.look(1.0)
    pages.free += PORTION
    heap.look(1.0 + EVERY_S / 2)
    assert pages.trims == 0


def test_while_the_process_grows_the_allocator_is_not_asked(heap: Heap, pages: Pages) -> None:
    """Its answer takes 20 ms when many pieces are free, and a queue that grows has nothing to give back."""
    heap.look(0.0)
    looks = pages.looks
    for second in range(1, 10):
        pages.resident += GROWTH
        heap.look(second)
    heap.look(9.0 + REST_S / 2)
    assert pages.looks == looks
    heap.look(9.0 + REST_S)
    assert pages.looks == looks + 1


def test_what_growth_has_taken_again_counts_when_it_is_freed(heap: Heap, pages: Pages) -> None:
    """Memory that was given back is free, and not resident: a process that takes it grows."""
    pages.free += 2 * PORTION
    heap.look(0.0)
    assert pages.trims == 1
    pages.free -= PORTION
    pages.resident += PORTION
    heap.look(1.0)
    pages.free += PORTION
    heap.look(2.0)
    assert pages.trims == 2


def test_another_c_library_is_left_alone_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        def __init__(self, _: Any) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Musl)
    with structlog.testing.capture_logs() as logs:
        heap = Heap(glibc())
        for second in range(3):
            heap.look(second)
        heap.give_back()
    assert [entry["event"].partition(":")[0] for entry in logs] == ["freed memory is not given back"]
    assert heap.statistics().trims == 0


def test_glibc_gives_back_what_lies_in_the_middle_of_the_heap() -> None:
    allocator = glibc()
    if allocator is None:
        pytest.skip("not glibc 2.33 or newer")
    assert isinstance(allocator, Glibc)
    heap = Heap(allocator)
    heap.give_back()
    bodies = [bytes(1_000) for _ in range(3 * PORTION // 1_000)]
    last = bytes(1_000)
    heap.look(0.0)
    full = resident_bytes()
    bodies.clear()
    heap.look(1_000.0)
    assert heap.statistics().trims == 2
    assert full - resident_bytes() > 2 * PORTION
    assert last
