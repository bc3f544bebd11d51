"""The table of methods, and its compiled layouts against octets written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.broker.amqp import (
    FrameError,
    MalformedFrameError,
    UnencodableValueError,
    decode_method,
    encode_method,
    method_name,
    methods,
)
from understudy.broker.amqp.layouts import Field, compile_layout, parse_fields

GOLDEN: list[tuple[int, tuple[Any, ...], bytes]] = [
    (methods.TX_COMMIT, (), b"\x00\x5a\x00\x14"),
    (methods.TX_COMMIT_OK, (), b"\x00\x5a\x00\x15"),
    (methods.CONNECTION_TUNE, (2047, 131072, 60), b"\x00\x0a\x00\x1e\x07\xff\x00\x02\x00\x00\x00\x3c"),
    (methods.CONNECTION_OPEN, ("/",), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    (methods.CONNECTION_OPEN_OK, (), b"\x00\x0a\x00\x29\x00"),
    (methods.CONNECTION_SECURE_OK, (b"\x00\xff",), b"\x00\x0a\x00\x15\x00\x00\x00\x02\x00\xff"),
    (
        methods.CONNECTION_START,
        (0, 9, {"a": True}, b"PLAIN", b"en_US"),
        b"\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x04\x01at\x01\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US",
    ),
    (
        methods.CONNECTION_CLOSE,
        (320, "bye", 60, 40),
        b"\x00\x0a\x00\x32\x01\x40\x03bye\x00\x3c\x00\x28",
    ),
    (methods.CHANNEL_OPEN, (), b"\x00\x14\x00\x0a\x00"),
    (methods.CHANNEL_OPEN_OK, (), b"\x00\x14\x00\x0b\x00\x00\x00\x00"),
    (methods.CHANNEL_FLOW, (True,), b"\x00\x14\x00\x14\x01"),
    (
        methods.EXCHANGE_DECLARE,
        ("e", "topic", False, True, False, True, False, {}),
        b"\x00\x28\x00\x0a\x00\x00\x01e\x05topic\x0a\x00\x00\x00\x00",
    ),
    (methods.EXCHANGE_UNBIND_OK, (), b"\x00\x28\x00\x33"),
    (
        methods.QUEUE_DECLARE,
        ("q", True, False, True, False, True, {"x-max-length": 5}),
        b"\x00\x32\x00\x0a\x00\x00\x01q\x15\x00\x00\x00\x12\x0cx-max-lengthI\x00\x00\x00\x05",
    ),
    (methods.QUEUE_DECLARE_OK, ("q", 7, 2), b"\x00\x32\x00\x0b\x01q\x00\x00\x00\x07\x00\x00\x00\x02"),
    (methods.QUEUE_DELETE, ("q", False, True, False), b"\x00\x32\x00\x28\x00\x00\x01q\x02"),
    (methods.BASIC_QOS, (0, 10, True), b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x0a\x01"),
    (methods.BASIC_PUBLISH, ("e", "k", True, False), b"\x00\x3c\x00\x28\x00\x00\x01e\x01k\x01"),
    (methods.BASIC_GET_EMPTY, (), b"\x00\x3c\x00\x48\x00"),
    (
        methods.BASIC_DELIVER,
        ("c", 2**64 - 1, True, "e", "k"),
        b"\x00\x3c\x00\x3c\x01c\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01e\x01k",
    ),
    (methods.BASIC_NACK, (1, False, True), b"\x00\x3c\x00\x78\x00\x00\x00\x00\x00\x00\x00\x01\x02"),
    (methods.BASIC_RECOVER_ASYNC, (False,), b"\x00\x3c\x00\x64\x00"),
    (methods.CONFIRM_SELECT, (False,), b"\x00\x55\x00\x0a\x00"),
]


@pytest.mark.parametrize(("key", "args", "payload"), GOLDEN, ids=[method_name(key) for key, _, _ in GOLDEN])
def test_golden_octets_both_ways(key: int, args: tuple[Any, ...], payload: bytes) -> None:
    assert decode_method(payload) == (key, args)
    assert encode_method(0x0102, key, *args) == b"\x01\x01\x02" + len(payload).to_bytes(4) + payload + b"\xce"


def test_names_of_keys() -> None:
    assert method_name(methods.QUEUE_DECLARE) == "queue.declare"
    assert method_name(methods.BASIC_GET_OK) == "basic.get-ok"
    assert method_name(60 << 16 | 99) == "method 60.99"
    assert method_name(8) == "heartbeat"


def test_what_carries_content_and_what_expects_an_answer() -> None:
    assert {key for key, row in methods.METHODS.items() if row.content} == {
        methods.BASIC_PUBLISH,
        methods.BASIC_RETURN,
        methods.BASIC_DELIVER,
        methods.BASIC_GET_OK,
    }
    assert methods.METHODS[methods.BASIC_GET].answers == (methods.BASIC_GET_OK, methods.BASIC_GET_EMPTY)
    assert methods.METHODS[methods.QUEUE_DECLARE].synchronous
    assert not methods.METHODS[methods.BASIC_ACK].synchronous
    answers = {answer for row in methods.METHODS.values() for answer in row.answers}
    assert answers <= methods.METHODS.keys()
    assert not any(methods.METHODS[answer].synchronous for answer in answers)


def test_each_row_is_reachable_by_the_constant_of_its_name() -> None:
    for key, row in methods.METHODS.items():
        assert getattr(methods, row.name.upper().replace(".", "_").replace("-", "_")) == key


@pytest.mark.parametrize("string", [str, bytes])
def test_long_strings_are_read_as_octets_and_written_from_either(string: type) -> None:
    secret: str | bytes = "sécret" if string is str else "sécret".encode()
    frame = encode_method(0, methods.CONNECTION_SECURE, secret)
    assert decode_method(frame[7:-1])[1] == ("sécret".encode(),)


def test_reserved_arguments_are_skipped_whatever_they_hold() -> None:
    assert decode_method(b"\x00\x14\x00\x0b\x00\x00\x00\x03abc") == (methods.CHANNEL_OPEN_OK, ())
    assert decode_method(b"\x00\x14\x00\x0a\x03abc") == (methods.CHANNEL_OPEN, ())
    assert decode_method(b"\x00\x0a\x00\x28\x01/\x03abc\x01") == (methods.CONNECTION_OPEN, ("/",))
    assert decode_method(b"\x00\x3c\x00\x28\x12\x34\x01e\x01k\x02")[1] == ("e", "k", False, True)


@pytest.mark.parametrize(
    ("payload", "reply_code"),
    [
        (b"", 502),
        (b"\x00\x3c\x00", 502),
        (b"\x00\x65\x00\x0a", 503),
        (b"\x00\x00\x00\x08", 503),
        (b"\x00\x3c\x00\x63", 540),
        (b"\x00\x3c\x00\x50\x00", 502),
        (b"\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00", 502),
        (b"\x00\x5a\x00\x14\x00", 502),
        (b"\x00\x3c\x00\x28\x00\x00\x01e\x05k\x01", 502),
        (b"\x00\x3c\x00\x28\x00\x00\x01e\x01k", 502),
        (b"\x00\x3c\x00\x28\x00\x00\x01\xff\x01k\x00", 502),
        (b"\x00\x0a\x00\x15\x00\x00\x00\x05abc", 502),
        (b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x03\x01aZ", 502),
        (b"\x00\x14\x00\x0a\x05abc", 502),
        (b"\x00\x14\x00\x0b\x00\x00\x00\x05abc", 502),
    ],
)
def test_malformed_and_unknown_methods(payload: bytes, reply_code: int) -> None:
    with pytest.raises(FrameError) as error:
        decode_method(payload)
    assert error.value.reply_code == reply_code
    if len(payload) >= 4:
        assert error.value.key == int.from_bytes(payload[:4])


@pytest.mark.parametrize(
    ("key", "args"),
    [
        (methods.TX_COMMIT, (1,)),
        (methods.BASIC_ACK, (1,)),
        (methods.BASIC_ACK, (-1, False)),
        (methods.BASIC_ACK, ("1", False)),
        (methods.CONNECTION_TUNE, (65536, 0, 0)),
        (methods.BASIC_CANCEL, ("c" * 256, False)),
        (methods.BASIC_CANCEL, (b"c", False)),
        (methods.BASIC_CANCEL, ("\udcff", False)),
        (methods.CONNECTION_SECURE, (7,)),
        (methods.CONNECTION_START_OK, ({"a": object()}, "", b"", "")),
        (methods.CONNECTION_START_OK, (7, "", b"", "")),
    ],
)
def test_arguments_without_a_form_are_refused(key: int, args: tuple[Any, ...]) -> None:
    with pytest.raises(UnencodableValueError) as error:
        encode_method(1, key, *args)
    assert method_name(key) in error.value.text


def test_a_channel_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnencodableValueError):
        encode_method(65536, methods.TX_COMMIT)


def test_bits_share_octets_eight_by_eight_and_a_number_ends_the_octet() -> None:
    bits = " ".join(f"b{n}:bit" for n in range(10))
    layout = compile_layout(
        parse_fields(f"{bits} reserved_1:bit n:short c:bit reserved_2:octet d:bit s:shortstr e:bit")
    )
    args = (*(n in {0, 7, 9} for n in range(10)), 0x1234, True, False, "x", True)
    octets = b"\x81\x02\x12\x34\x01\x00\x00\x01x\x01"
    assert layout.write(args) == octets
    assert layout.read(octets, 0) == args


def test_a_layout_with_an_unknown_type_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="bits"):
        Field("a", "bits")


def test_a_further_class_is_added_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    start = methods.define(101, 20, "later.start", "xid:shortstr join:bit resume:bit", answers=(21,))
    start_ok = methods.define(101, 21, "later.start-ok")
    assert start == 101 << 16 | 20
    assert methods.METHODS[start].answers == (start_ok,)
    frame = encode_method(1, start, "x1", False, True)
    assert decode_method(frame[7:-1]) == (start, ("x1", False, True))
    with pytest.raises(AssertionError):
        methods.define(101, 20, "later.begin")


def test_errors_say_which_method_and_what() -> None:
    with pytest.raises(MalformedFrameError, match=r"502 basic\.ack: arguments end after 0 of 2"):
        decode_method(b"\x00\x3c\x00\x50")
