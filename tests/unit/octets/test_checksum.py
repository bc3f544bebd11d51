"""The checksum is zlib's, whoever computes it."""

from __future__ import annotations

import platform
import zlib

from hypothesis import given
from hypothesis import strategies as st

from understudy.broker.octets import checksum


@given(st.binary(max_size=5_000), st.integers(0, 2**32 - 1))
def test_it_is_zlib_s(octets: bytes, start: int) -> None:
    assert checksum.crc32(octets, start) == zlib.crc32(octets, start)
    assert checksum.crc32(memoryview(octets)[1:]) == zlib.crc32(octets[1:])
    assert checksum.crc32(bytearray(octets)) == zlib.crc32(octets)


def test_the_quick_one_is_there_where_it_can_be() -> None:
    quick = checksum.crc32 is not zlib.crc32
    assert quick is (platform.machine() in {"x86_64", "aarch64", "arm64"})
    assert ("isal" if quick else "zlib") == checksum.SOURCE
