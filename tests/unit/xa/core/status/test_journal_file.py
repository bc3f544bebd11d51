"""The status file of engine `journal` under every crash of a short trace, and under damage."""

from __future__ import annotations

import pytest

from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.records_kit import entry, life, states
from understudy.xa.core.errors import StatusFileError
from understudy.xa.core.register.entry import Begun, Ended
from understudy.xa.core.status.durable_mark import SHARDS
from understudy.xa.core.status.journal_file import StatusFile
from understudy.xa.core.status.journal_log import HEADER_OCTETS, frame, image_frame, replay
from understudy.xa.core.status.mirrored_file import MirroredFile
from understudy.xa.core.status.shards import MIRROR, STATUS, shards_on


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("rotate_octets", [10**9, 600])
@pytest.mark.parametrize("group", [1, 3])
def test_a_crash_anywhere_leaves_all_that_was_durable_and_a_prefix(
    group: int, rotate_octets: int, marked: bool
) -> None:
    """And is never taken for a loss, also in a folder that says of each shard that it has a mark."""
    records = [record for pair in zip(life(1), life(2), strict=True) for record in pair]
    wanted = states(records)
    appended = durable = crashes = 0

    def crash() -> None:
        nonlocal crashes
        for disk in world.after_crash():
            crashes += 1
            found = StatusFile(disk, 0).open()
            assert found in wanted[durable : appended + 1], (durable, appended)
            again = StatusFile(disk, 0)
            assert again.open() == found
            again.append([Begun(entry(99))])
            again.sync()
            assert StatusFile(disk, 0).open() == {**found, entry(99).gid: entry(99)}

    world = CrashDisk(crash)
    if marked:
        world.put(SHARDS, b"1\n")
    file = StatusFile(world, 0, rotate_octets=rotate_octets)
    file.open()
    for at in range(0, len(records), group):
        some = records[at : at + group]
        appended += len(some)
        file.append(some)
        if (at // group) % 4 != 3:
            continue  # four groups share a sync
        if file.wants_rotation:
            file.rotate(list(wanted[appended].values()))
        else:
            file.sync()
        durable = appended
        if (at // group) % 8 == 7:
            file.tick()
        elif marked and group == 3:  # the process is killed, and the next one finds what the system has in its cache
            file = StatusFile(world, 0, rotate_octets=rotate_octets)
            assert file.open() == wanted[appended]
            durable = appended
    assert crashes > 100
    (name,) = set(world.names()) - {"status-0.mark", SHARDS}
    assert (name != "status-0.0") == (rotate_octets == 600)


@pytest.mark.parametrize("marked", [False, True])
def test_a_crash_during_the_first_format_formats_anew(marked: bool) -> None:
    seen = 0

    def crash() -> None:
        nonlocal seen
        for disk in world.after_crash():
            seen += 1
            assert StatusFile(disk, 0).open() == {}

    world = CrashDisk(crash)
    if marked:
        world.put(SHARDS, b"1\n")
    StatusFile(world, 0).open()
    assert seen > 10


def test_damage_of_what_was_durable_is_refused_at_every_octet() -> None:
    disk = CrashDisk()
    file = StatusFile(disk, 0)
    file.open()
    for record in life(1)[:4]:
        file.append([record])
        file.sync()
    data = disk.read("status-0.0")
    last = len(frame(file.sequence, 0, [life(1)[3]]))
    whole = replay(data, "status-0.0", 0)
    for at in range(len(data) - last):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(StatusFileError, match=r"status-0\.0"):
            replay(bytes(damaged), "status-0.0", 0)
    for at in range(len(data) - last, len(data)):  # the last frame: as if it was torn
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        assert replay(bytes(damaged), "status-0.0", 0).good_octets < whole.good_octets


def test_damaged_files_are_kept_as_they_are() -> None:
    disk = CrashDisk()
    StatusFile(disk, 0).open()
    data = bytearray(disk.read("status-0.0"))
    data[HEADER_OCTETS] ^= 1
    disk.put("status-0.0", bytes(data))
    with pytest.raises(StatusFileError, match="first frame is damaged"):
        StatusFile(disk, 0).open()
    assert disk.read("status-0.0") == bytes(data)


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    data = image_frame(1, 0, []).replace(b"\xa6format\x01", b"\xa6format\x02")
    payload = data[HEADER_OCTETS:]
    with pytest.raises(StatusFileError, match="format 2, and this server reads format 1"):
        replay(reframed(payload), "status-0.0", 0)


def test_a_record_of_a_newer_server_is_refused() -> None:
    payload = frame(2, 1, [Ended("x")])[HEADER_OCTETS:].replace(b"ended", b"other")
    with pytest.raises(StatusFileError, match="a newer state server wrote it"):
        replay(image_frame(1, 0, []) + reframed(payload, 2, 1), "status-0.0", 0)


def reframed(payload: bytes, sequence: int = 1, durable: int = 1) -> bytes:
    """A payload with a header that fits."""
    import struct
    import zlib

    crc = zlib.crc32(payload, zlib.crc32(struct.pack(">IQQ", len(payload), sequence, durable)))
    return struct.pack(">4sIQQI", b"UXSL", len(payload), sequence, durable, crc) + payload


def test_a_file_of_another_shard_is_refused() -> None:
    with pytest.raises(StatusFileError, match="is of shard 1, and stands where that of shard 0 belongs"):
        replay(image_frame(1, 1, []), "status-0.0", 0)


def test_shards_are_counted_and_a_missing_one_is_named() -> None:
    disk = CrashDisk()
    assert shards_on(disk, STATUS) == 0
    for shard in (0, 1, 3):
        StatusFile(disk, shard).open()
    with pytest.raises(StatusFileError, match=r"shards \[0, 1, 3\], and none of \[2\]"):
        shards_on(disk, STATUS)
    mirrored = CrashDisk()
    assert shards_on(mirrored, MIRROR) == 0
    MirroredFile(mirrored, 1).open()
    with pytest.raises(StatusFileError, match=r"shards \[1\], and none of \[0\]"):
        shards_on(mirrored, MIRROR)


def test_one_sync_makes_a_group_durable() -> None:
    disk = CrashDisk()
    file = StatusFile(disk, 0)
    file.open()
    before = disk.syncs
    for record in life(1)[:4]:
        file.append([record])
    file.sync()
    assert (disk.syncs - before, file.durable) == (1, file.sequence)
