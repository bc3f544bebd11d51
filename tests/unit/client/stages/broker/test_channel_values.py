"""Values of headers that the client library reads, and must be able to write again."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pamqp import decode, encode, frame, header

from understudy.client.stages.broker.arrival import sendable
from understudy.client.stages.broker.channel import rounded_ms


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"\xff\xfe", bytearray(b"\xff\xfe")),
        ({"a": [b"\xff", {"b": b"\xfe"}]}, {"a": [bytearray(b"\xff"), {"b": bytearray(b"\xfe")}]}),
        (1e300, "1e+300"),
        (Decimal(4_294_967_295) * Decimal(10) ** -2, "42949672.95"),
        (Decimal(2_147_483_647) * Decimal(10) ** -2, Decimal("21474836.47")),
        ([1.5, float("inf"), True, None, "text"], [1.5, float("inf"), True, None, "text"]),
    ],
)
def test_what_came_can_be_sent_again(value: Any, sent: Any) -> None:
    """A text that is no UTF-8 ended the worker that was to repeat its message, and the next worker, too."""
    made = sendable(value)
    assert made == sent
    assert decode.field_table(encode.field_table({"h": made}))[1] == {"h": made}


@pytest.mark.parametrize(("delay_ms", "waits_ms"), [(1, 1), (31, 31), (33, 34), (1_000, 1_024), (959, 960)])
def test_few_queues_wait_and_none_too_short(delay_ms: int, waits_ms: int) -> None:
    assert rounded_ms(delay_ms) == waits_ms
    for each in range(1, 5_000):
        assert each <= rounded_ms(each) <= each * 17 / 16
    assert len({rounded_ms(each) for each in range(900, 1_000)}) <= 5


def read_again(octets: bytes) -> Any:
    """The properties of a message, as they come, and as they come after they were sent again."""
    seen = []
    for _ in range(2):
        payload = b"\x00\x3c\x00\x00" + bytes(8) + octets
        whole = b"\x02\x00\x01" + struct.pack(">I", len(payload)) + payload + b"\xce"
        _, _, found = frame.unmarshal(whole)
        assert isinstance(found, header.ContentHeader)
        seen.append((found.properties.message_id, sendable(found.properties.headers)))
        found.properties.headers = seen[-1][1]
        octets = found.properties.marshal()
    assert seen[0] == seen[1]
    return seen[0]


def short(octets: bytes) -> bytes:
    return bytes([len(octets)]) + octets


def table(name: bytes, value: bytes) -> bytes:
    rows = short(name) + value
    return struct.pack(">I", len(rows)) + rows


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"m\xff", "m\\xff"),
        ("Größe".encode(), "Größe"),
        (b"\xff" * 63 + b"abc", "\\xff" * 63 + "abc"),
        (b"\xff" * 64, None),
        (b"\xc3" + b"\xc3\xa4" * 127, None),
    ],
)
def test_a_short_string_and_a_name_that_are_no_utf8_close_no_connection(octets: bytes, text: str | None) -> None:
    """One did, for every channel of its worker, and the broker handed the message out again for ever."""
    flags = struct.pack(">H", 0x2080)  # headers, message_id
    found = read_again(flags + table(b"a", b"t\x01") + short(octets))
    if text is None:
        assert found[0].startswith("octets-")
        assert len(found[0]) == 39
    else:
        assert found == (text, {"a": True})
    name = octets[:100]
    inner = read_again(flags + table(b"in", b"F" + table(name, b"S" + struct.pack(">I", 1) + b"x")) + short(b"m"))
    (found_name,) = inner[1]["in"]
    assert len(found_name.encode()) <= 128
    assert inner == ("m", {"in": {found_name: "x"}})
    if text is not None and len(text) <= 100:
        assert found_name == text


def nested(kind: bytes, depth: int) -> bytes:
    """A value within so many tables or arrays."""
    value = b"t\x01"
    for _ in range(depth):
        rows = value if kind == b"A" else short(b"a") + value
        value = kind + struct.pack(">I", len(rows)) + rows
    return value


@pytest.mark.parametrize("kind", [b"A", b"F"])
@pytest.mark.parametrize(("depth", "is_read"), [(64, True), (65, False), (5_000, False)])
def test_a_value_that_is_nested_deep_closes_no_connection(kind: bytes, depth: int, is_read: bool) -> None:
    """Python's recursion ended, and with it the connection; the broker handed the message out again for ever."""
    flags = struct.pack(">H", 0x2080)  # headers, message_id
    _, headers = read_again(flags + table(b"a", nested(kind, depth)) + short(b"m"))
    found = headers["a"]
    for _ in range(64):
        (found,) = found if kind == b"A" else found.values()
    assert found is True if is_read else isinstance(found, bytearray)


@pytest.mark.parametrize("octets", [b"", b"\0\0\0\x05\x01a", b"\0\0\0\x02\x09a", b"\0\0\0\x04\x01at"])
def test_a_table_that_is_cut_is_a_value_error(octets: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # as pamqp raises
        decode.by_type(octets, "table")


@pytest.mark.parametrize("seconds", [1 << 60, (1 << 63) - 1, (1 << 64) - 1])
def test_a_time_out_of_range_closes_no_connection(seconds: int) -> None:
    """An error there made the broker hand the message out again: its stage stood still for ever."""
    time = b"T" + struct.pack(">Q", seconds)
    rows = b"\x04when" + time
    found = decode.field_table(struct.pack(">I", len(rows)) + rows)[1]
    assert found == {"when": min(seconds, (1 << 63) - 1)}
    assert decode.field_table(encode.field_table({"when": sendable(found["when"])}))[1] == found
    assert decode.by_type(time[1:], "timestamp") == (8, found["when"])
    now = struct.pack(">Q", 1_764_288_000)
    assert decode.by_type(now, "timestamp")[1] == datetime(2025, 11, 28, tzinfo=UTC)
