"""Times out of range: pamqp raises an error for a year above 9999, and aiormq then closes the connection.

The broker would hand the message out again, and no worker could ever take it, nor anything behind it. So such a time is read as
the number that it is. Only values that raised an error are read otherwise.
"""

from __future__ import annotations

import struct
from typing import Any

from pamqp import decode

MOST = (1 << 63) - 1
"""The largest number that pamqp writes."""

_strict = decode.timestamp


def read_odd_times() -> None:
    """From now on pamqp reads every time, in this process."""
    decode.TABLE_MAPPING[b"T"] = _timestamp
    decode.METHODS["timestamp"] = _timestamp


def _timestamp(value: bytes) -> tuple[int, Any]:
    """A time, or seconds since 1970 as a number if no time has them."""
    try:
        return _strict(value)
    except (ValueError, OverflowError, OSError):
        (seconds,) = struct.unpack_from(">Q", value)
        return 8, min(seconds, MOST)
