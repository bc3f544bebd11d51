"""SpaceWatch tells the core while the disk is nearly full, with numbers, and once when it is not any more."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.server.files.space_watch import SpaceWatch
from understudy.testing.disk import MemoryStorage

MIB = 1 << 20
SEGMENT = 1 * MIB
RESERVE = 4 * MIB


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("/data")


@pytest.fixture
def told() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def watch(storage: MemoryStorage, told: list[tuple[str, int]]) -> SpaceWatch:
    options = JournalOptions(segment_bytes=SEGMENT, reserve_bytes=RESERVE)
    journal = Journal(storage, JournalIdentity(group_id="g", broker_id="b"), options)
    return SpaceWatch("/data", journal, lambda reason, room: told.append((reason, room)))


def test_the_core_is_told_again_and_again_while_it_is_low(
    storage: MemoryStorage, told: list[tuple[str, int]], watch: SpaceWatch
) -> None:
    """A backup passes it on, and its link may have been another one the last time."""
    watch.look()
    assert told == []
    storage.capacity_bytes = 3 * MIB
    watch.look()
    watch.look()
    assert len(told) == 2
    reason, room = told[0]
    assert reason == ("disk space in /data is below the reserve: 3.0 MiB free, 4.0 MiB needed (journal.reserve_bytes)")
    assert room == 3 * MIB - RESERVE - 2 * SEGMENT


def test_the_core_is_told_once_that_there_is_room_again(
    storage: MemoryStorage, told: list[tuple[str, int]], watch: SpaceWatch
) -> None:
    storage.capacity_bytes = 3 * MIB
    watch.look()
    storage.capacity_bytes = 100 * MIB
    with capture_logs() as logs:
        watch.look()
        watch.look()
    assert told[1:] == [("", -1)]
    (line,) = logs
    assert line["event"] == "enough disk space again"
    assert line["reason"] == "disk space in /data: 100 MiB free, 4.0 MiB needed (journal.reserve_bytes)"


def test_a_small_change_of_the_free_space_is_no_news(
    storage: MemoryStorage, told: list[tuple[str, int]], watch: SpaceWatch
) -> None:
    """Clients that are blocked are told the reason anew when it changes."""
    for free in (3 * MIB, 3 * MIB - 4096, 2 * MIB):
        storage.capacity_bytes = free
        watch.look()
    reasons = [reason for reason, _ in told]
    assert reasons[0] == reasons[1] != reasons[2]
