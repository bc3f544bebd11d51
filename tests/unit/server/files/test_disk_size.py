"""How large the reserve is by itself, and which disks are refused at the start, with the numbers that an operator needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from understudy.broker.config.schema import JournalConfig
from understudy.broker.server.files.disk_size import DiskTooSmallError, check_disk, least_bytes, reserve_bytes
from understudy.broker.server.files.file_storage import FileStorage

MIB = 1 << 20


class Disk(FileStorage):
    """A data directory on a disk of another size."""

    capacity = free = 0

    def capacity_bytes(self) -> int:
        return self.capacity

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "data")
    yield disk
    disk.close()


@pytest.mark.parametrize(
    ("capacity_mib", "segment_mib", "reserve_mib"),
    [(100, 64, 64), (512, 64, 64), (1_400, 64, 175), (2_048, 64, 256), (1 << 20, 64, 256), (1 << 20, 1_024, 256)],
)
def test_the_reserve_is_an_eighth_of_the_disk_within_bounds(
    capacity_mib: int, segment_mib: int, reserve_mib: int
) -> None:
    section = JournalConfig(segment_bytes=segment_mib * MIB)
    assert reserve_bytes(section, capacity_mib * MIB) == reserve_mib * MIB


@pytest.mark.parametrize("given", [0, 1, 300 * MIB])
def test_what_the_operator_says_is_not_changed(given: int) -> None:
    assert reserve_bytes(JournalConfig(reserve_bytes=given), 512 * MIB) == given


def test_a_disk_that_is_too_small_is_refused_with_numbers_and_keys(disk: Disk) -> None:
    disk.capacity, disk.free = 200 * MIB, 190 * MIB
    with pytest.raises(DiskTooSmallError) as refused:
        check_disk(disk, JournalConfig())
    assert str(refused.value) == (
        f"the disk of data directory {disk} is too small: 200 MiB in all, 190 MiB free, 257 MiB needed for "
        "journal.reserve_bytes (64 MiB, kept and as much free beside it) and journal.segment_bytes (64 MiB, the newest "
        "and the next one); use a larger disk, or lower these keys"
    )


def test_a_reserve_that_is_given_is_kept_or_refused(disk: Disk) -> None:
    disk.capacity = disk.free = 500 * MIB
    check_disk(disk, JournalConfig())
    with pytest.raises(DiskTooSmallError, match="641 MiB needed"):
        check_disk(disk, JournalConfig(reserve_bytes=256 * MIB))


def test_a_disk_that_others_fill_is_an_error_in_the_log(disk: Disk) -> None:
    disk.capacity, disk.free = 4_096 * MIB, 100 * MIB
    with capture_logs() as logs:
        check_disk(disk, JournalConfig())
    (entry,) = logs
    assert entry["log_level"] == "error"
    assert (entry["directory"], entry["free_mib"], entry["needed_mib"]) == (str(disk), "100", "641")
    assert "journal.reserve_bytes" in entry["needed_for"]


def test_what_the_broker_holds_itself_is_room(disk: Disk) -> None:
    """A journal that fills its disk is said when it does (`SpaceWatch`), not at each start."""
    disk.capacity, disk.free = 4_096 * MIB, 100 * MIB
    (disk.directory / "held").touch()
    with (disk.directory / "held").open("r+b") as file:
        file.truncate(541 * MIB)
    with capture_logs() as logs:
        check_disk(disk, JournalConfig())
    assert logs == []


def test_a_file_that_goes_while_they_are_counted(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the feed renames its hold into place. That stopped the start."""
    disk.capacity = disk.free = 4_096 * MIB
    monkeypatch.setattr(disk, "names", lambda: ["a.hold.new"])
    check_disk(disk, JournalConfig())


def test_without_a_reserve_two_segments_are_enough() -> None:
    assert least_bytes(0, 64 * MIB) == 129 * MIB
