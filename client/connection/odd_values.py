r"""Values that pamqp cannot read: it raises an error, and aiormq then closes the connection, for all its channels.

The broker would hand the message out again, and no worker could ever take it, nor anything behind it. So each value is read:

* a time above the year 9999 as the number that it is;
* a short string, and the name of a header, that is no UTF-8 as text with ``\xff`` for each such octet. Text that would be too
  long to be written again is ``octets-`` and a hash of the octets;
* a table or an array that is nested deeper than `MOST_NESTED` as its octets. Python's recursion would end at some hundred levels.

Values that pamqp can read are read as before.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

from pamqp import decode

from understudy.client.connection.core.values import MOST_NESTED

MOST: Final = (1 << 63) - 1
"""The largest number that pamqp writes."""
LONGEST_SHORT: Final = 255
"""Octets of a short string."""
LONGEST_NAME: Final = 128
"""Octets of a header's name that pamqp writes."""
_LENGTH: Final = struct.Struct(">I")
_NESTED: Final = (b"A", b"F")

_strict_timestamp = decode.timestamp


def read_odd_values() -> None:
    """From now on pamqp reads every time, short string and header's name, in this process."""
    decode.TABLE_MAPPING[b"T"] = _timestamp
    decode.METHODS["timestamp"] = _timestamp
    decode.METHODS["table"] = _table
    decode.METHODS["shortstr"] = _short


def _timestamp(value: bytes) -> tuple[int, Any]:
    """A time, or seconds since 1970 as a number if no time has them."""
    try:
        return _strict_timestamp(value)
    except (ValueError, OverflowError, OSError):
        (seconds,) = struct.unpack_from(">Q", value)
        return 8, min(seconds, MOST)


def _short(value: bytes) -> tuple[int, str]:
    if not value:
        raise ValueError("a short string has no octet for its length")
    end = value[0] + 1
    return end, _text(value[1:end], LONGEST_SHORT)


def _table(value: bytes, most: int = MOST_NESTED) -> tuple[int, dict[str, Any]]:
    """Names and values. Tables and arrays within it are read ``most`` levels deep.

    Raises:
        ValueError: the table has fewer octets than it says.
    """
    try:
        end = _end(value)
        at, found = _LENGTH.size, {}
        while at < end:
            name_at, at = at + 1, at + 1 + value[at]
            if at > end:
                raise ValueError(f"a name ends at octet {at} of a table of {end}")
            name = _text(value[name_at:at], LONGEST_NAME)
            used, found[name] = _value(value[at:], most)
            at += used
    except (struct.error, TypeError) as error:
        raise ValueError(f"a table cannot be read: {error}") from error
    return end, found


def _array(value: bytes, most: int) -> tuple[int, list[Any]]:
    end = _end(value)
    at, found = _LENGTH.size, []
    while at < end:
        used, item = _value(value[at:], most)
        at += used
        found.append(item)
    return end, found


def _value(value: bytes, most: int) -> tuple[int, Any]:
    """A value behind the octet that tells its kind, and how many octets both have."""
    kind = value[:1]
    if kind not in _NESTED:
        return decode.embedded_value(value)
    if not most:
        end = _end(value[1:])
        return end + 1, bytes(value[1 + _LENGTH.size : 1 + end])
    used, found = (_table if kind == b"F" else _array)(value[1:], most - 1)
    return used + 1, found


def _end(value: bytes) -> int:
    """How many octets a table or an array has, with those of its length."""
    end: int = _LENGTH.unpack_from(value)[0] + _LENGTH.size
    if end > len(value):
        raise ValueError(f"a table or an array of {end} octets has {len(value)}")
    return end


def _text(octets: bytes, most: int) -> str:
    """The octets as text: of UTF-8 exactly, else of at most so many octets in UTF-8."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        text = octets.decode("utf-8", "backslashreplace")
        if len(text.encode()) <= most:
            return text
        return f"octets-{hashlib.blake2b(octets, digest_size=16).hexdigest()}"
