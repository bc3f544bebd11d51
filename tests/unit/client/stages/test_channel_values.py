"""Values of headers that the client library reads, and must be able to write again."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import decode, encode

from understudy.client.stages.channel import rounded_ms, sendable


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"\xff\xfe", bytearray(b"\xff\xfe")),
        ({"a": [b"\xff", {"b": b"\xfe"}]}, {"a": [bytearray(b"\xff"), {"b": bytearray(b"\xfe")}]}),
        (1e300, "1e+300"),
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


@pytest.mark.parametrize("seconds", [1 << 60, (1 << 63) - 1, (1 << 64) - 1])
def test_a_time_out_of_range_closes_no_connection(seconds: int) -> None:
    """It did, and the broker handed the message out again: its stage stood still for ever."""
    time = b"T" + struct.pack(">Q", seconds)
    table = b"\x04when" + time
    found = decode.field_table(struct.pack(">I", len(table)) + table)[1]
    assert found == {"when": min(seconds, (1 << 63) - 1)}
    assert decode.field_table(encode.field_table({"when": sendable(found["when"])}))[1] == found
    assert decode.by_type(time[1:], "timestamp") == (8, found["when"])
    now = struct.pack(">Q", 1_764_288_000)
    assert decode.by_type(now, "timestamp")[1] == datetime(2025, 11, 28, tzinfo=UTC)
