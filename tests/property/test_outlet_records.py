"""Each value that AMQP can carry as a property becomes headers of a Kafka record that every client can read."""

from __future__ import annotations

import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from understudy.broker.message import Message
from understudy.observers.outlet.reading.units import Outgoing, Unit
from understudy.observers.outlet.sending.records import RecordMaker, property_headers

_NAMES = st.binary(max_size=40).map(lambda raw: bytes([len(raw)]) + raw)
_LONG = st.binary(max_size=60).map(lambda raw: struct.pack(">I", len(raw)) + raw)


def _sized(code: bytes, size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size).map(lambda raw: code + raw)


def _contained(code: bytes, parts: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[bytes]:
    return parts.map(b"".join).map(lambda raw: code + struct.pack(">I", len(raw)) + raw)


_SCALARS = st.one_of(
    *(_sized(code, 1) for code in (b"t", b"b", b"B")),
    *(_sized(code, 2) for code in (b"s", b"u")),
    *(_sized(code, 4) for code in (b"I", b"i", b"f")),
    *(_sized(code, 8) for code in (b"l", b"L", b"d", b"T")),
    st.integers(1_600_000_000_000, 1_900_000_000_000).map(lambda ms: b"T" + struct.pack(">Q", ms)),
    _sized(b"D", 5),
    st.just(b"V"),
    _LONG.map(lambda raw: b"S" + raw),
    _LONG.map(lambda raw: b"x" + raw),
)
"""One value of each code of `broker/amqp/field_table.py`, with any octets; milliseconds where seconds belong, too."""
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        _contained(b"A", st.lists(inner, max_size=4)),
        _contained(b"F", st.lists(st.tuples(_NAMES, inner).map(b"".join), max_size=4)),
    ),
    max_leaves=8,
)
_TABLES = _contained(b"", st.lists(st.tuples(_NAMES, _VALUES).map(b"".join), max_size=6))
_HEADERS, _TIMESTAMP, _MESSAGE_ID = 0x2000, 0x0040, 0x0080


def _checked(headers: list[tuple[str, bytes]]) -> None:
    for name, value in headers:
        assert name.encode().decode() == name
        value.decode()


@given(table=_TABLES, timestamp=st.integers(0, (1 << 64) - 1), name=_NAMES)
def test_every_value_of_every_field_type_becomes_text(table: bytes, timestamp: int, name: bytes) -> None:
    flags = struct.pack(">H", _HEADERS | _MESSAGE_ID | _TIMESTAMP)
    raw = flags + table + name + struct.pack(">Q", timestamp)
    headers = property_headers(raw)
    found = dict(headers)
    assert int(found["amqp-timestamp"]) == timestamp
    assert "amqp-properties" not in found
    _checked(headers)


@given(value=_VALUES)
def test_what_is_no_text_is_json(value: bytes) -> None:
    table = b"\x01k" + value
    (header,) = property_headers(struct.pack(">HI", _HEADERS, len(table)) + table)
    assert header[0] == "amqp-header-k"
    if value[:1] != b"S":
        json.loads(header[1])


@given(raw=st.binary(max_size=80), text=st.binary(max_size=40))
def test_any_octets_and_names_make_a_record(raw: bytes, text: bytes) -> None:
    name = text.decode("utf-8", "surrogateescape")
    message = Message(name, name, raw, b"body", persistent=True)
    unit = Unit(epoch=1, offset=2, tx="f/1.2", name=name, messages=(Outgoing("/", name, 1, message),))
    maker = RecordMaker("g")
    record = maker.record(unit, maker.unit_headers(unit), 0, "t")
    _checked(record.headers)
    assert record.value == b"body"
