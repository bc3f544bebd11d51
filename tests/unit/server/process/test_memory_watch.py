"""MemoryWatch: publishers wait while messages fill the memory that the broker may use."""

from __future__ import annotations

import pytest

from understudy.broker.server.process.memory_watch import MemoryWatch, ram_bytes, resident_bytes

MIB = 1 << 20


class Machine:
    """Memory as a test wants it."""

    def __init__(self) -> None:
        self.resident = 10 * MIB
        self.returned = 0
        self.holds = True
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.resident -= self.returned


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def watch(machine: Machine, told: list[str]) -> MemoryWatch:
    return MemoryWatch(100 * MIB, told.append, lambda: machine.holds, machine.trim, lambda: machine.resident)


def test_work_is_refused_above_the_limit_and_taken_again_below_it(
    watch: MemoryWatch, machine: Machine, told: list[str]
) -> None:
    watch.look()
    assert told == []
    machine.resident = 101 * MIB
    watch.look()
    assert told == ["101 MiB of memory are in use, limits.memory_ratio allows 100 MiB"]
    machine.resident = 99 * MIB
    watch.look()
    assert told[1].startswith("99 MiB"), "it would come and go with every message"
    machine.resident = 90 * MIB
    watch.look()
    watch.look()
    assert told[2:] == [""]


def test_what_the_allocator_keeps_is_given_back_first(watch: MemoryWatch, machine: Machine, told: list[str]) -> None:
    machine.resident, machine.returned = 150 * MIB, 60 * MIB
    watch.look()
    assert told == []
    assert machine.trims == 1
    machine.resident = 50 * MIB
    watch.look()
    assert machine.trims == 1


def test_the_allocator_is_not_asked_at_each_look(watch: MemoryWatch, machine: Machine) -> None:
    machine.resident = 150 * MIB
    for _ in range(20):
        watch.look()
    assert machine.trims == 2


def test_without_messages_nobody_waits_for_memory_that_no_consumer_can_free(
    watch: MemoryWatch, machine: Machine, told: list[str]
) -> None:
    machine.resident = 150 * MIB
    watch.look()
    machine.holds = False
    watch.look()
    assert told[1:] == [""]
    machine.holds = True
    watch.look()
    assert len(told) == 3


def test_the_readings_are_of_this_machine() -> None:
    assert 1 * MIB < resident_bytes() < ram_bytes()
    assert ram_bytes() > 256 * MIB
