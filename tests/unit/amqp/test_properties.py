"""Message properties: whole sets and single ones, read from raw octets."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from understudy.broker.amqp import (
    PERSISTENT,
    MalformedFrameError,
    UnencodableValueError,
    decode_properties,
    encode_properties,
    properties,
)
from understudy.broker.amqp.field_table import encode_field

NONE = b"\x00\x00"
ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": [True]},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c-1",
    "reply_to": "amq.gen-1",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": datetime(2024, 5, 6, tzinfo=UTC),
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "",
}
ALL_OCTETS = (
    b"\xff\xfc\x0atext/plain\x05utf-8\x00\x00\x00\x10\x01aI\x00\x00\x00\x01\x01bA\x00\x00\x00\x02t\x01\x02\x09\x03c-1"
    b"\x09amq.gen-1\x0560000\x03m-1\x00\x00\x00\x00\x66\x38\x1d\x80\x05order\x05guest\x04shop\x00"
)


def test_golden_octets() -> None:
    assert PERSISTENT == b"\x10\x00\x02"
    assert encode_properties() == NONE
    assert encode_properties(ALL) == ALL_OCTETS
    assert decode_properties(ALL_OCTETS) == ALL
    assert decode_properties(NONE) == {}


def test_each_property_alone_is_found_where_it_stands() -> None:
    for name, value in ALL.items():
        raw = encode_properties({name: value})
        assert decode_properties(raw) == {name: value}
        properties.check_properties(raw)


def test_names_can_be_given_either_way_and_none_is_absent() -> None:
    assert encode_properties({"priority": 1, "type": None}, delivery_mode=2, priority=3) == b"\x18\x00\x02\x03"
    assert encode_properties(timestamp=86400) == encode_properties(timestamp=datetime(1970, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"delivery_mode": "2"},
        {"delivery_mode": 256},
        {"priority": -1},
        {"headers": 5},
        {"headers": {"a": object()}},
        {"timestamp": "now"},
        {"timestamp": -1},
        {"correlation_id": 5},
        {"correlation_id": "x" * 256},
    ],
)
def test_refuses_what_has_no_form(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnencodableValueError):
        encode_properties(wrong)


ACCESSORS: list[tuple[Callable[[bytes], Any], Any, Any]] = [
    (properties.delivery_mode, 2, 1),
    (properties.is_persistent, True, False),
    (properties.has_headers, True, False),
    (properties.headers, ALL["headers"], {}),
    (properties.priority, 9, None),
    (properties.content_type, "text/plain", None),
    (properties.correlation_id, "c-1", None),
    (properties.reply_to, "amq.gen-1", None),
    (properties.expiration, "60000", None),
    (properties.message_id, "m-1", None),
    (properties.user_id, "guest", None),
]


@pytest.mark.parametrize(("accessor", "value", "absent"), ACCESSORS)
def test_single_properties(accessor: Callable[[bytes], Any], value: Any, absent: Any) -> None:
    for _ in range(2):  # The second time some come from a cache.
        assert accessor(ALL_OCTETS) == value
        assert accessor(NONE) == absent
    others = {name: given for name, given in ALL.items() if name not in (accessor.__name__, "delivery_mode", "headers")}
    assert accessor(encode_properties(others)) == absent


@pytest.mark.parametrize("mode", [0, 1, 3, 255])
def test_only_delivery_mode_2_is_persistent(mode: int) -> None:
    raw = encode_properties(delivery_mode=mode)
    assert properties.delivery_mode(raw) == mode
    assert not properties.is_persistent(raw)


def test_delivery_mode_after_each_combination_of_what_may_stand_before_it() -> None:
    for bits in range(8):
        before = {
            name: ALL[name] for at, name in enumerate(("content_type", "content_encoding", "headers")) if bits >> at & 1
        }
        assert properties.is_persistent(encode_properties(before, delivery_mode=2, message_id="m"))
        assert not properties.is_persistent(encode_properties(before, message_id="m"))


def test_a_cut_anywhere_is_malformed() -> None:
    for at in range(len(ALL_OCTETS)):
        raw = ALL_OCTETS[:at]
        with pytest.raises(MalformedFrameError):
            decode_properties(raw)
        with pytest.raises(MalformedFrameError):
            properties.check_properties(raw)
        for accessor, value, absent in ACCESSORS:
            with suppress(MalformedFrameError):
                assert accessor(raw) in (value, absent)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x10",
        b"\x10\x00",
        b"\x00\x01\x00\x00",
        b"\x00\x02",
        NONE + b"rest",
        b"\x20\x00\x00\x00\x00\x03\x01aZ",
        b"\x20\x00\xff\xff\xff\xff",
    ],
)
def test_check_refuses_what_decode_refuses(raw: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode_properties(raw)
    with pytest.raises(MalformedFrameError):
        properties.check_properties(raw)


def test_the_caches_take_only_short_ones_and_not_many() -> None:
    long = encode_properties(headers={"a": "x" * 300})
    properties.check_properties(long)
    assert long not in properties._checked
    long = encode_properties(headers={"a": "x" * 300}, expiration="5")
    assert properties.expiration(long) == "5"
    assert long not in properties._expirations
    for n in range(properties._REPEATED_ENTRIES + 10):
        raw = encode_properties(expiration=str(n))
        properties.check_properties(raw)
        assert properties.expiration(raw) == str(n)
        assert raw in properties._checked
    assert len(properties._checked) <= properties._REPEATED_ENTRIES
    assert len(properties._expirations) <= properties._REPEATED_ENTRIES


def test_strings_that_are_not_utf8_survive() -> None:
    raw = b"\x04\x00\x02\xff\xfe"
    assert encode_properties(decode_properties(raw)) == raw


# headers --------------------------------------------------------------------------------------------------------------


def test_one_header() -> None:
    assert properties.header(ALL_OCTETS, "a") == 1
    assert properties.header(ALL_OCTETS, "b") == [True]
    assert properties.header(ALL_OCTETS, "c") is None
    assert properties.header(PERSISTENT, "a") is None


def test_one_header_is_found_behind_one_that_cannot_be_read() -> None:
    raw = b"\x20\x00\x00\x00\x00\x0f\x01aF\x00\x00\x00\x01x\x01bI\x00\x00\x00\x05"
    assert properties.header(raw, "b") == 5
    for name in ("a", "x"):
        if name == "a":
            with pytest.raises(MalformedFrameError):
                properties.header(raw, name)
        else:
            assert properties.header(raw, name) is None


def test_with_header_adds_the_first_one_in_its_place() -> None:
    raw = encode_properties(content_type="a", delivery_mode=2, message_id="m")
    changed = properties.with_header(raw, "x", 1)
    assert decode_properties(changed) == {**decode_properties(raw), "headers": {"x": 1}}
    assert changed == encode_properties(decode_properties(changed))


def test_with_header_replaces_and_keeps_the_octets_of_the_others() -> None:
    fields = b"\x01as\x00\x05" + b"\x01xV" + b"\x01bf\x3f\xc0\x00\x00" + b"\x01xt\x01"
    raw = b"\x30\x00" + len(fields).to_bytes(4) + fields + b"\x02"
    changed = properties.with_header(raw, "x", "new")
    kept = b"\x01as\x00\x05" + b"\x01bf\x3f\xc0\x00\x00" + b"\x01xS\x00\x00\x00\x03new"
    assert changed == b"\x30\x00" + len(kept).to_bytes(4) + kept + b"\x02"


def test_without_header_takes_out_each_of_that_name_and_keeps_the_octets_of_the_others() -> None:
    fields = b"\x01xV" + b"\x01as\x00\x05" + b"\x01xt\x01" + b"\x01xV" + b"\x01bf\x3f\xc0\x00\x00" + b"\x01xV"
    raw = b"\x30\x00" + len(fields).to_bytes(4) + fields + b"\x02"
    kept = b"\x01as\x00\x05" + b"\x01bf\x3f\xc0\x00\x00"
    assert properties.without_header(raw, "x") == b"\x30\x00" + len(kept).to_bytes(4) + kept + b"\x02"
    assert properties.without_header(raw, "y") is raw
    assert properties.without_header(PERSISTENT, "x") is PERSISTENT
    assert properties.without_header(b"\x20\x00\x00\x00\x00\x03\x01xV", "x") == b"\x20\x00\x00\x00\x00\x00"


def test_without_header_takes_one_pass_for_any_number_of_them() -> None:
    """A frame holds fifteen thousand: a pass for each of them would stop the broker for minutes."""
    fields = b"\x03BCCV" * 15_000
    raw = b"\x20\x00" + len(fields).to_bytes(4) + fields
    begun_s = time.process_time()
    assert properties.without_header(raw, "BCC") == b"\x20\x00\x00\x00\x00\x00"
    assert time.process_time() - begun_s < 2


@pytest.mark.parametrize("given", [{}, {"headers": {}}, {"headers": {"a": "xx", "x": 1, "b": "y"}, "priority": 3}])
def test_with_fields_is_with_header_of_each(given: dict[str, Any]) -> None:
    raw = encode_properties({"delivery_mode": 2, "app_id": "p", **given})
    fields = {"x": 2, "xx": [{"q": "w"}]}
    one_by_one = raw
    for name, value in fields.items():
        one_by_one = properties.with_header(one_by_one, name, value)
    encoded = b"".join(encode_field(name, value) for name, value in fields.items())
    assert properties.with_fields(raw, encoded, [name.encode() for name in fields]) == one_by_one


def test_with_header_refuses_what_is_wrong_on_either_side() -> None:
    with pytest.raises(UnencodableValueError):
        properties.with_header(PERSISTENT, "x", object())
    with pytest.raises(MalformedFrameError):
        properties.with_header(b"\x20\x00\x00\x00\x00\x09\x01x", "x", 1)
    with pytest.raises(MalformedFrameError):
        properties.with_header(b"\x80", "x", 1)
