"""Field tables: the typed maps in method arguments and message headers, with the type codes RabbitMQ puts on the wire.

The codes differ from the printed specification (RabbitMQ's "AMQP 0-9-1 errata", and `lapin`, `amqplib`, `pika` agree):

    code  value on the wire          decoded as      encoded from
    t     boolean octet              bool            bool
    b B   8 bit signed, unsigned     int
    s u   16 bit signed, unsigned    int
    I i   32 bit signed, unsigned    int             int of 32 bits (I)
    l L   64 bit signed, both        int             int of 64 bits (l)
    f d   IEEE 754, 32 and 64 bit    float           float (d)
    D     scale octet, 32 bit        Decimal         Decimal
    S     u32 length, octets         str             str
    x     u32 length, octets         bytes           bytes, bytearray, memoryview
    T     64 bit seconds since 1970  datetime (UTC)  datetime (naive is taken for UTC), Timestamp
    A     u32 length, values         list            list, tuple
    F     u32 length, fields         dict            any mapping
    V     nothing                    None            None

A string that is not UTF-8 is decoded with `surrogateescape`, so any octets survive a round trip. Integers are written
as I or l only: the smaller codes save three octets and have cost interoperability (old clients do not read B, u and i).
A value keeps its meaning in a round trip, not its code; who must keep the code works on the raw octets
(`properties.with_header`). Of two fields with one name the later one wins.

Whatever the octets, decoding returns or raises `MalformedFrameError`; whatever the values, encoding returns or raises
`UnencodableValueError`, which is one too. Tables and arrays may be nested `MAX_DEPTH` deep, in both directions: the
recursion here must end before Python's does, and a table that holds itself must end at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, Final, TypeAlias

from understudy.broker.amqp.errors import MalformedFrameError, UnencodableValueError
from understudy.broker.amqp.shortstr import encode_loose_shortstr


class Long(int):
    """An integer that is written as a 64 bit one (code ``l``), however small: typed clients expect that of some fields."""


class Timestamp(int):
    """Seconds since 1970 that no `datetime` can hold (after the year 9999); some clients send milliseconds here."""


Scalar: TypeAlias = bool | int | float | Decimal | str | bytes | datetime | None
FieldValue: TypeAlias = "Scalar | list[FieldValue] | dict[str, FieldValue]"
FieldTable: TypeAlias = dict[str, FieldValue]

MAX_DEPTH: Final = 64
"""Levels of tables and arrays in one another, the outermost table included."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_DATETIME_S: Final = 253_402_300_799
"""9999-12-31 23:59:59 UTC."""

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_F64: Final = Struct(">d")
_DECIMAL: Final = Struct(">Bi")

_STRING: Final = ord("S")
_BYTES: Final = ord("x")
_TABLE: Final = ord("F")
_DECIMAL_CODE: Final = ord("D")
_TIME: Final = ord("T")
_NESTED: Final = b"AF"
_WITH_LENGTH: Final = b"SxAF"

_NUMBER_LAYOUTS: Final = {
    "t": Struct(">?"),
    "b": Struct(">b"),
    "B": Struct(">B"),
    "s": Struct(">h"),
    "u": Struct(">H"),
    "I": _I32,
    "i": _U32,
    "l": _I64,
    "L": _I64,
    "f": Struct(">f"),
    "d": _F64,
}
_NUMBERS: Final = {ord(code): layout.unpack_from for code, layout in _NUMBER_LAYOUTS.items()}
_SIZES: Final = {
    **{ord(code): 1 + layout.size for code, layout in _NUMBER_LAYOUTS.items()},
    **dict.fromkeys(_WITH_LENGTH, 5),
    _DECIMAL_CODE: 6,
    _TIME: 9,
    ord("V"): 1,
}
"""Octets of a value with its code, without what a length announces."""


# decoding -----------------------------------------------------------------------------------------


def decode_table(buf: bytes, at: int = 0) -> tuple[FieldTable, int]:
    """Read the table whose length field is at ``at`` in ``buf``.

    Returns:
        The fields in the order of the wire, and the position after the table.

    Raises:
        MalformedFrameError: the table or a value in it is cut off, has an unknown code or is nested too deep.
    """
    start, end = table_span(buf, at, len(buf))
    return _decode_fields(buf, start, end, 1), end


def table_span(buf: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return (start, end) of what a u32 length at ``at`` announces; used for tables, arrays and long strings alike.

    Raises:
        MalformedFrameError: it goes past ``limit``, which is at most ``len(buf)``.
    """
    start = at + 4
    if start > limit:
        raise MalformedFrameError(f"length at octet {at} goes past the end at {limit}")
    end = start + int.from_bytes(buf[at:start])
    if end > limit:
        raise MalformedFrameError(f"{end - start} octets announced at octet {at}, {limit - start} are there")
    return start, end


def find_field(buf: bytes, start: int, end: int, name: bytes) -> tuple[int, int, int] | None:
    """Find the last field called ``name`` among the fields in ``buf[start:end]``, reading no value.

    Returns:
        (start of the field, start of its value, end of the field), or None.

    Raises:
        MalformedFrameError: the fields cannot be told apart; not noticed if the octets of ``name`` occur nowhere in them.
    """
    if buf.find(name, start, end) < 0:
        return None
    found = None
    at = start
    while at < end:
        value_at = at + 1 + buf[at]
        after = _skip_value(buf, value_at, end)
        if buf[at + 1 : value_at] == name:
            found = (at, value_at, after)
        at = after
    return found


def without_field(fields: bytes, name: bytes) -> bytes:
    """Return ``fields`` without those called ``name``, reading no value.

    Raises:
        MalformedFrameError: as `find_field`.
    """
    if name not in fields:
        return fields
    kept: list[bytes] = []
    at = begun = 0
    while at < len(fields):
        value_at = at + 1 + fields[at]
        after = _skip_value(fields, value_at, len(fields))
        if fields[at + 1 : value_at] == name:
            kept.append(fields[begun:at])
            begun = after
        at = after
    kept.append(fields[begun:])
    return b"".join(kept)


def decode_field_value(buf: bytes, at: int, end: int) -> FieldValue:
    """Read the value (code and octets) at ``at``, found by `find_field`, which ends at or before ``end``."""
    return _decode_value(buf, at, end, 1)[0]


def _decode_fields(buf: bytes, at: int, end: int, depth: int) -> FieldTable:
    fields: FieldTable = {}
    while at < end:
        value_at = at + 1 + buf[at]
        # A name that goes past the end is cut here, and its value missing there.
        name = buf[at + 1 : value_at].decode("utf-8", "surrogateescape")
        fields[name], at = _decode_value(buf, value_at, end, depth)
    return fields


def _decode_value(buf: bytes, at: int, end: int, depth: int) -> tuple[FieldValue, int]:
    after = _skip_value(buf, at, end)
    code = buf[at]
    if code == _STRING:
        return buf[at + 5 : after].decode("utf-8", "surrogateescape"), after
    number = _NUMBERS.get(code)
    if number is not None:
        value: int | float | bool = number(buf, at + 1)[0]
        return value, after
    if code == _BYTES:
        return buf[at + 5 : after], after
    if code not in _NESTED:
        return _decode_special(code, buf, at + 1), after
    if depth >= MAX_DEPTH:
        raise MalformedFrameError(f"tables and arrays nested deeper than {MAX_DEPTH}")
    at += 5
    if code == _TABLE:
        return _decode_fields(buf, at, after, depth + 1), after
    items: list[FieldValue] = []
    while at < after:
        item, at = _decode_value(buf, at, after, depth + 1)
        items.append(item)
    return items, after


def _decode_special(code: int, buf: bytes, at: int) -> FieldValue:
    if code == _TIME:
        return decode_timestamp(buf, at)
    if code == _DECIMAL_CODE:
        # The specification has no sign here and RabbitMQ forwards 32 opaque bits; the Java client
        # writes and reads a signed number.
        scale, unscaled = _DECIMAL.unpack_from(buf, at)
        return Decimal(f"{unscaled}e-{scale}")  # Exact whatever the decimal context, which scaleb() is not.
    return None


def decode_timestamp(buf: bytes, at: int) -> datetime | Timestamp:
    """Read the 64 bit seconds at ``at``; the caller has seen that 8 octets are there."""
    seconds: int = _U64.unpack_from(buf, at)[0]
    return _EPOCH + timedelta(seconds=seconds) if seconds <= _LAST_DATETIME_S else Timestamp(seconds)


def _skip_value(buf: bytes, at: int, end: int) -> int:
    """Return the position after the value whose code is at ``at``, which is seen to be known and whole."""
    if at >= end:
        raise MalformedFrameError(f"field goes past the end at {end}")
    code = buf[at]
    size = _SIZES.get(code)
    if size is None:
        raise MalformedFrameError(f"unknown field type 0x{code:02x} at octet {at}")
    after = at + size
    if size == 5 and code in _WITH_LENGTH:
        after += int.from_bytes(buf[at + 1 : after])
    if after > end:
        raise MalformedFrameError(f"value of type {chr(code)!r} at octet {at} goes past the end at {end}")
    return after


# encoding -----------------------------------------------------------------------------------------


def encode_table(fields: Mapping[str, Any]) -> bytes:
    """Return ``fields`` as a table with its u32 length.

    Args:
        fields: names of at most 255 octets of UTF-8; values as in the table at the head of this file. Order is kept.

    Raises:
        UnencodableValueError: a name or value has no form on the wire, or the nesting is too deep.
    """
    if not fields:
        return b"\x00\x00\x00\x00"
    return _encode_fields(fields, 1)


def encode_field(name: str, value: object) -> bytes:
    """Return one field of an outermost table: name, code and value."""
    return encode_loose_shortstr(name) + _encode_value(value, 1)


def encode_timestamp(value: datetime | int) -> bytes:
    """Return the 64 bit seconds of ``value``, a time (naive is taken for UTC, fractions are cut) or seconds since 1970."""
    if isinstance(value, datetime):
        aware = value if value.utcoffset() is not None else value.replace(tzinfo=UTC)
        value = (aware - _EPOCH) // timedelta(seconds=1)
    try:
        return _U64.pack(value)
    except struct.error:
        raise UnencodableValueError(f"{value!r} is no time in seconds since 1970 of 64 bits") from None


def _encode_fields(fields: Mapping[str, Any], depth: int) -> bytes:
    parts: list[bytes] = []
    for name, value in fields.items():
        parts.append(encode_loose_shortstr(name))
        parts.append(_encode_value(value, depth))
    return _with_length(b"".join(parts))


def _encode_value(value: object, depth: int) -> bytes:
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        # An enum, a str or dict subclass, another mapping: the first base that is known decides.
        encoder = next((known for kind, known in _ENCODERS.items() if isinstance(value, kind)), None)
        if encoder is None:
            raise UnencodableValueError(f"no field type for {value!r} of type {type(value).__name__}")
    return encoder(value, depth)


def _encode_int(value: int, _depth: int) -> bytes:
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return b"I" + _I32.pack(value)
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return b"l" + _I64.pack(value)
    raise UnencodableValueError(f"{value} does not fit in 64 bits signed")


def _encode_decimal(value: Decimal, _depth: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    # Looked at before the number is built: 1E+999999999 is short to write and long to compute.
    if not isinstance(exponent, int) or not -255 <= exponent <= 9 or len(digits) > 10:
        raise UnencodableValueError(f"decimal {value} needs a scale of 0..255 and 32 bits")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    try:
        return b"D" + _DECIMAL.pack(max(-exponent, 0), -unscaled if sign else unscaled)
    except struct.error:
        raise UnencodableValueError(f"decimal {value} needs a scale of 0..255 and 32 bits") from None


def _encode_str(value: str, _depth: int) -> bytes:
    try:
        return b"S" + _with_length(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise UnencodableValueError(f"string {value[:40]!r} has no UTF-8 form") from None


def _encode_array(value: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    _go_deeper(depth)
    return b"A" + _with_length(b"".join([_encode_value(item, depth + 1) for item in value]))


def _encode_nested_table(value: Mapping[str, Any], depth: int) -> bytes:
    _go_deeper(depth)
    return b"F" + _encode_fields(value, depth + 1)


def _go_deeper(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise UnencodableValueError(f"tables and arrays nested deeper than {MAX_DEPTH}")


def _with_length(octets: bytes) -> bytes:
    try:
        return _U32.pack(len(octets)) + octets
    except struct.error:
        raise UnencodableValueError(f"{len(octets)} octets do not fit a 32 bit length") from None


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    # The order matters for subclasses: bool, Timestamp and Long are ints.
    bool: lambda value, _depth: b"t\x01" if value else b"t\x00",
    Timestamp: lambda value, _depth: b"T" + encode_timestamp(value),
    Long: lambda value, _depth: b"l" + _I64.pack(value),
    int: _encode_int,
    float: lambda value, _depth: b"d" + _F64.pack(value),
    Decimal: _encode_decimal,
    str: _encode_str,
    bytes: lambda value, _depth: b"x" + _with_length(value),
    bytearray: lambda value, _depth: b"x" + _with_length(bytes(value)),
    memoryview: lambda value, _depth: b"x" + _with_length(bytes(value)),
    datetime: lambda value, _depth: b"T" + encode_timestamp(value),
    list: _encode_array,
    tuple: _encode_array,
    dict: _encode_nested_table,
    Mapping: _encode_nested_table,
    type(None): lambda _value, _depth: b"V",
}
