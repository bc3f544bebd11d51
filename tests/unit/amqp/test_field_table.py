"""Field tables against octets written by hand from RabbitMQ's list of type codes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from understudy.broker.amqp import (
    FieldValue,
    MalformedFrameError,
    Timestamp,
    UnencodableValueError,
    decode_table,
    encode_table,
)
from understudy.broker.amqp.field_table import MAX_DEPTH, find_field


def table(fields: bytes) -> bytes:
    return len(fields).to_bytes(4) + fields


WRITTEN: list[tuple[bytes, FieldValue]] = [
    (b"t\x00", False),
    (b"t\x01", True),
    (b"I\xff\xff\xff\xff", -1),
    (b"I\x7f\xff\xff\xff", 2**31 - 1),
    (b"I\x80\x00\x00\x00", -(2**31)),
    (b"l\x00\x00\x00\x00\x80\x00\x00\x00", 2**31),
    (b"l\x80\x00\x00\x00\x00\x00\x00\x00", -(2**63)),
    (b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
    (b"S\x00\x00\x00\x03a\xc3\xa9", "aé"),
    (b"S\x00\x00\x00\x02\xff\xfe", "\udcff\udcfe"),
    (b"x\x00\x00\x00\x02\x00\xff", b"\x00\xff"),
    (b"T\x00\x00\x00\x00\x00\x01\x51\x80", datetime(1970, 1, 2, tzinfo=UTC)),
    (b"T\x00\x00\x01\x8b\xcf\xe5\x68\x00", Timestamp(1_700_000_000_000)),
    (b"A\x00\x00\x00\x03t\x01V", [True, None]),
    (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    (b"V", None),
]

ONLY_READ: list[tuple[bytes, FieldValue]] = [
    (b"t\x07", True),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65534),
    (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xff", -1),
    (b"f\x3f\xc0\x00\x00", 1.5),
    (b"D\x00\x00\x00\x00\x07", Decimal(7)),
    (b"D\xff\x00\x00\x00\x01", Decimal("1e-255")),
]


@pytest.mark.parametrize(("octets", "value"), WRITTEN + ONLY_READ)
def test_reads_each_type_code(octets: bytes, value: FieldValue) -> None:
    whole = b"before" + table(b"\x04name" + octets) + b"after"
    fields, at = decode_table(whole, 6)
    assert fields == {"name": value}
    assert type(fields["name"]) is type(value)
    assert whole[at:] == b"after"


@pytest.mark.parametrize(("octets", "value"), WRITTEN)
def test_writes_each_type(octets: bytes, value: FieldValue) -> None:
    assert encode_table({"name": value}) == table(b"\x04name" + octets)


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "same_as"),
    [
        (Level.HIGH, 3),
        (Colour.RED, "red"),
        (OrderedDict(a=1), {"a": 1}),
        ((1, 2), [1, 2]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (Decimal("1E+3"), Decimal(1000)),
        (Decimal("-0.25"), Decimal("-0.25")),
        (datetime(2020, 1, 1, 12, 0, 0, 999), datetime(2020, 1, 1, 12, tzinfo=UTC)),  # noqa: DTZ001 what shall be read as UTC
        (datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))), datetime(2020, 1, 1, 10, tzinfo=UTC)),
    ],
)
def test_writes_what_is_of_the_same_kind(value: object, same_as: FieldValue) -> None:
    assert decode_table(encode_table({"a": value}))[0] == {"a": same_as}


@pytest.mark.parametrize(
    "fields",
    [
        {"a": 2**63},
        {"a": -(2**63) - 1},
        {"a": object()},
        {"a": {1, 2}},
        {"a": Decimal("NaN")},
        {"a": Decimal("Infinity")},
        {"a": Decimal("1E+999999999")},
        {"a": Decimal("1E-256")},
        {"a": Decimal(2**31)},
        {"a": "\ud800"},
        {"a": datetime(1969, 1, 1, tzinfo=UTC)},
        {"a": Timestamp(-1)},
        {"a" * 256: 1},
        {1: 1},
        {"a": {"b": [object()]}},
    ],
)
def test_refuses_what_has_no_form(fields: Mapping[Any, Any]) -> None:
    with pytest.raises(UnencodableValueError):
        encode_table(fields)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x01",
        table(b"\x01"),
        table(b"\x01a"),
        table(b"\x05a"),
        table(b"\x01aI\x00\x00\x00"),
        table(b"\x01aT\x00\x00\x00"),
        table(b"\x01aS\x00\x00\x00"),
        table(b"\x01aS\x00\x00\x00\x02a"),
        table(b"\x01aS\xff\xff\xff\xffa"),
        table(b"\x01aA\x00\x00\x00\x02t\x01x"),
        table(b"\x01aA\x00\x00\x00\x01t\x01"),
        table(b"\x01aF\x00\x00\x00\x02\x01a"),
        table(b"\x01aZ"),
        table(b"\x01a\x00"),
    ],
)
def test_malformed_octets(octets: bytes) -> None:
    with pytest.raises(MalformedFrameError) as error:
        decode_table(octets)
    assert error.value.reply_code == 502


def test_a_value_may_not_reach_beyond_its_table_into_what_follows() -> None:
    with pytest.raises(MalformedFrameError):
        decode_table(table(b"\x01aI\x00\x00") + b"\x00\x00 and more")


def test_nesting_ends_at_the_same_depth_in_both_directions() -> None:
    fields: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        fields = {"f": fields}
    octets = encode_table(fields)
    assert decode_table(octets) == (fields, len(octets))
    with pytest.raises(UnencodableValueError):
        encode_table({"f": fields})
    with pytest.raises(UnencodableValueError):
        encode_table({"f": [fields]})
    with pytest.raises(MalformedFrameError):
        decode_table(table(b"\x01fF" + octets))
    with pytest.raises(MalformedFrameError):
        decode_table(table(b"\x01fA" + table(b"F" + octets)))


def test_a_table_that_holds_itself_is_refused() -> None:
    fields: dict[str, Any] = {}
    fields["again"] = fields
    with pytest.raises(UnencodableValueError):
        encode_table(fields)


def test_a_deep_bomb_is_refused_and_does_not_exhaust_the_stack() -> None:
    octets = table(b"")
    for _ in range(20_000):
        octets = table(b"\x00F" + octets)
    with pytest.raises(MalformedFrameError, match="nested"):
        decode_table(octets)


def test_the_later_of_two_fields_with_one_name_wins_everywhere() -> None:
    octets = table(b"\x01at\x00\x01bV\x01at\x01")
    assert decode_table(octets)[0] == {"a": True, "b": None}
    assert find_field(octets, 4, len(octets), b"a") == (11, 13, 15)


def test_find_field_steps_over_every_kind_of_value() -> None:
    fields = b"".join(b"\x01n" + octets for octets, _ in WRITTEN + ONLY_READ)
    octets = fields + b"\x06wantedt\x01"
    assert find_field(octets, 0, len(octets), b"wanted") == (len(fields), len(fields) + 7, len(octets))
    assert find_field(octets, 0, len(octets), b"other") is None
    assert find_field(octets, 0, len(octets), b"want") is None
    with pytest.raises(MalformedFrameError):
        find_field(octets, 0, len(octets) - 1, b"wanted")
