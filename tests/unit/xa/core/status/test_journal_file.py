"""The status file of engine `journal` under damage, and of newer servers. `test_status_contract` has what all engines promise."""

from __future__ import annotations

import pytest

from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.records_kit import life
from understudy.xa.core.errors import StatusFileError
from understudy.xa.core.register.entry import Ended
from understudy.xa.core.status.journal_file import StatusFile
from understudy.xa.core.status.journal_log import HEADER_OCTETS, frame, image_frame, replay
from understudy.xa.core.status.mirrored_file import MirroredFile
from understudy.xa.core.status.shards import MIRROR, STATUS, shards_on


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
