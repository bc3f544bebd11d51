"""The frame parser: what it says about streams written by hand, right and wrong."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from understudy.broker.amqp import (
    HEARTBEAT,
    HEARTBEAT_FRAME,
    PERSISTENT,
    PROTOCOL_HEADER,
    Event,
    FrameParser,
    ProtocolHeaderError,
    ack_frame,
    deliver_frames,
    encode_method,
    encode_shortstr,
    get_ok_frames,
    methods,
    publish_frames,
    return_frames,
    split_protocol_header,
)
from understudy.broker.amqp.constants import TOO_LARGE
from understudy.broker.amqp.frames import CONTENT_BYTES
from understudy.broker.amqp.hot_arguments import CACHE_ENTRIES, ROUTES

NO_PROPERTIES = b"\x00\x00"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def publish_method(channel: int = 1, exchange: bytes = b"e", routing_key: bytes = b"k", bits: int = 0) -> bytes:
    route = bytes((len(exchange),)) + exchange + bytes((len(routing_key),)) + routing_key
    return frame(1, channel, b"\x00\x3c\x00\x28\x00\x00" + route + bytes((bits,)))


def header(channel: int, body_size: int, properties: bytes = NO_PROPERTIES, class_and_weight: int = 60 << 16) -> bytes:
    return frame(2, channel, class_and_weight.to_bytes(4) + body_size.to_bytes(8) + properties)


def body(channel: int, octets: bytes) -> bytes:
    return frame(3, channel, octets)


def published(channel: int, octets: bytes, properties: bytes = NO_PROPERTIES) -> Event:
    return (channel, methods.BASIC_PUBLISH, ("e", "k", False, False), properties, octets)


def read(*pieces: bytes, frame_max: int = 4096, max_body: int = 1 << 20) -> tuple[list[Event], FrameParser]:
    parser = FrameParser(frame_max, max_body)
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    return events, parser


def octet_by_octet(stream: bytes) -> Iterable[bytes]:
    return (stream[at : at + 1] for at in range(len(stream)))


# right ----------------------------------------------------------------------------------------------------------------


def test_a_message_in_one_buffer() -> None:
    stream = publish_method(bits=1) + header(1, 5, PERSISTENT) + body(1, b"hello")
    events, parser = read(stream)
    assert events == [(1, methods.BASIC_PUBLISH, ("e", "k", True, False), PERSISTENT, b"hello")]
    assert parser.error is None
    assert parser.buffered_bytes == 0


def test_the_kinds_of_events() -> None:
    stream = b"".join(
        (
            HEARTBEAT_FRAME,
            encode_method(0, methods.CONNECTION_OPEN, "/"),
            publish_frames(2, "e", "k", PERSISTENT, b"x", 4096, immediate=True),
            ack_frame(3, 7, multiple=True),
            ack_frame(3, 8),
            encode_method(65535, methods.TX_COMMIT),
            encode_method(1, methods.TX_COMMIT_OK),
            deliver_frames(1, encode_shortstr("tag"), 9, True, "e", "k", NO_PROPERTIES, b"yz", 4096),
            get_ok_frames(1, 10, False, "e", "k", 3, NO_PROPERTIES, b"", 4096),
            return_frames(1, 312, "NO_ROUTE", "e", "k", NO_PROPERTIES, b"r", 4096),
            HEARTBEAT_FRAME,
        )
    )
    expected: list[Event] = [
        (0, HEARTBEAT, ()),
        (0, methods.CONNECTION_OPEN, ("/",)),
        (2, methods.BASIC_PUBLISH, ("e", "k", False, True), PERSISTENT, b"x"),
        (3, methods.BASIC_ACK, (7, True)),
        (3, methods.BASIC_ACK, (8, False)),
        (65535, methods.TX_COMMIT, ()),
        (1, methods.TX_COMMIT_OK, ()),
        (1, methods.BASIC_DELIVER, ("tag", 9, True, "e", "k"), NO_PROPERTIES, b"yz"),
        (1, methods.BASIC_GET_OK, (10, False, "e", "k", 3), NO_PROPERTIES, b""),
        (1, methods.BASIC_RETURN, (312, "NO_ROUTE", "e", "k"), NO_PROPERTIES, b"r"),
        (0, HEARTBEAT, ()),
    ]
    assert read(stream)[0] == expected
    assert read(*octet_by_octet(stream))[0] == expected


def test_every_cut_in_two() -> None:
    stream = (
        HEARTBEAT_FRAME
        + publish_method()
        + header(1, 5, PERSISTENT)
        + body(1, b"hel")
        + body(1, b"lo")
        + publish_frames(1, "e", "k", NO_PROPERTIES, b"whole", 4096)
        + publish_method()
        + header(1, 0)
    )
    expected = read(stream)[0]
    assert len(expected) == 4
    for at in range(len(stream)):
        assert read(stream[:at], stream[at:])[0] == expected


def test_a_body_of_several_frames_some_of_them_empty() -> None:
    stream = publish_method() + header(1, 6) + b"".join(body(1, piece) for piece in (b"ab", b"", b"c", b"def"))
    assert read(stream)[0] == [published(1, b"abcdef")]


def test_without_body_the_header_completes_the_message() -> None:
    assert read(publish_method() + header(1, 0, PERSISTENT))[0] == [published(1, b"", PERSISTENT)]


def test_contents_of_different_channels_and_heartbeats_may_interleave() -> None:
    events, _ = read(
        publish_method(1) + publish_method(2) + header(2, 4) + header(1, 2) + body(2, b"ab"),
        HEARTBEAT_FRAME + body(1, b"AB") + publish_frames(3, "e", "k", NO_PROPERTIES, b"3", 4096) + body(2, b"cd"),
    )
    assert events == [(0, HEARTBEAT, ()), published(1, b"AB"), published(3, b"3"), published(2, b"abcd")]


def test_arguments_are_read_alike_the_first_time_and_from_the_caches() -> None:
    for exchange, key in ((b"", b"q"), (b"e", b""), (b"", b""), (b"x" * 255, b"k" * 255), ("é".encode(), "→".encode())):
        stream = publish_method(1, exchange, key, 2) + header(1, 1) + body(1, b"b")
        delivered = deliver_frames(1, b"\x00", 5, False, exchange.decode(), key.decode(), NO_PROPERTIES, b"b", 4096)
        for _ in range(3):
            events, _ = read(stream + delivered)
            assert events == [
                (1, methods.BASIC_PUBLISH, (exchange.decode(), key.decode(), False, True), NO_PROPERTIES, b"b"),
                (1, methods.BASIC_DELIVER, ("", 5, False, exchange.decode(), key.decode()), NO_PROPERTIES, b"b"),
            ]


def test_the_caches_are_bounded() -> None:
    parser = FrameParser(4096)
    for n in range(CACHE_ENTRIES + 10):
        parser.feed(publish_frames(1, "e", f"key {n}", NO_PROPERTIES, b"x", 4096))
        assert len(ROUTES) <= CACHE_ENTRIES
    assert parser.error is None


def test_equal_names_are_one_object() -> None:
    events, _ = read(*[publish_frames(1, "e", "k", NO_PROPERTIES, b"x", 4096)] * 2)
    assert events[0][2] is events[1][2]


def test_frame_max_need_not_count_the_overhead_and_can_be_changed() -> None:
    """RabbitMQ reads such frames, too (rabbit_reader.erl: FRAME_SIZE_FUDGE is EMPTY_FRAME_SIZE): some clients send them."""
    parser = FrameParser(4096)
    largest = publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 4096, 0)
    assert len(parser.feed(largest)) == 1
    assert [event for octet in largest for event in parser.feed(bytes((octet,)))] == [published(1, b"x" * 4096)]
    parser.tune(8192)
    assert parser.frame_max == 8192
    assert len(parser.feed(publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 8192, 0))) == 1
    parser.tune(0)
    assert len(parser.feed(publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 100_000, 0))) == 1
    parser.tune(4096)
    assert parser.feed(publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 4097, 0)) == []
    assert parser.error is not None


class CountingParser(FrameParser):
    """Counts how often the held octets are joined and looked at."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__(0)
        self.looks = 0

    def _parse(self, buf: bytes, events: list[Event]) -> int:
        self.looks += 1
        return super()._parse(buf, events)


@pytest.mark.parametrize(
    ("stream", "first"),
    [
        (publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 50_000, 0), 0),
        (publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * 50_000, 0), 60),
        (publish_method() + header(1, 50_001) + body(1, b"x") + body(1, b"x" * 50_000), 0),
    ],
)
def test_a_large_frame_in_tiny_pieces_takes_linear_time(stream: bytes, first: int) -> None:
    # It is not looked at again until it is whole: what is held would be copied for every octet that arrives.
    parser = CountingParser()
    pieces = (stream[:first], *octet_by_octet(stream[first:]))
    events = [event for piece in pieces for event in parser.feed(piece)]
    assert len(events) == 1
    assert parser.looks < 60


@pytest.mark.parametrize("size", [3, 4])
def test_max_body_holds_for_bodies_of_one_frame_too(size: int) -> None:
    events, parser = read(publish_frames(1, "e", "k", NO_PROPERTIES, b"x" * size, 0), max_body=3)
    expected = published(1, b"xxx") if size == 3 else (1, TOO_LARGE, (4, 3))
    assert (events, parser.error, parser.buffered_bytes) == ([expected], None, 0)


@pytest.mark.parametrize("frame_max", [0, 4096])
def test_a_message_that_is_too_large_is_told_by_its_header_and_not_kept(frame_max: int) -> None:
    whole = publish_frames(1, "e", "k", NO_PROPERTIES, bytes(9_000), frame_max)
    for pieces in ((whole + BEFORE,), octet_by_octet(whole + BEFORE)):
        events, parser = read(*pieces, frame_max=frame_max, max_body=8_999)
        assert events == [(1, TOO_LARGE, (9_000, 8_999)), published(1, b"before")]
        assert parser.buffered_bytes == 0


def test_a_method_ends_what_is_too_large() -> None:
    close_ok = encode_method(1, methods.CHANNEL_CLOSE_OK)
    begun = publish_method() + header(1, 10) + body(1, b"1234")
    events, parser = read(begun + close_ok + BEFORE, max_body=9)
    assert events == [(1, TOO_LARGE, (10, 9)), (1, methods.CHANNEL_CLOSE_OK, ()), published(1, b"before")]
    assert parser.error is None


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_content_that_is_dropped_is_not_kept(frames: int) -> None:
    parser = FrameParser(4096)
    parts = (publish_method(), header(1, 5), body(1, b"1234"), body(1, b"5"))
    parser.feed(b"".join(parts[:frames]))
    parser.drop_content(1)
    assert parser.buffered_bytes == 0
    assert parser.feed(b"".join((*parts[frames:], BEFORE))) == [published(1, b"before")]
    assert parser.error is None


def test_no_content_is_kept_from_now_on() -> None:
    parser = FrameParser(4096)
    parser.feed(publish_method() + header(1, 5))
    parser.keep_no_content()
    assert parser.feed(body(1, b"12345") + BEFORE) == [(1, TOO_LARGE, (6, 0))]
    assert (parser.buffered_bytes, parser.error) == (0, None)


def test_buffered_bytes_tells_what_is_held() -> None:
    parser = FrameParser(4096)
    parser.feed(publish_method() + header(1, 2000) + body(1, b"x" * 1000) + b"\x03\x00")
    assert parser.buffered_bytes - 1002 == CONTENT_BYTES + len(publish_method()) - 8 + len(header(1, 2000)) - 8
    parser.feed(body(1, b"x" * 1000)[2:])
    assert parser.buffered_bytes == 0


@pytest.mark.parametrize("size", [1, 3, 7, 29, 64])
def test_incomplete_says_whether_anything_is_held(size: int) -> None:
    """A read may end anywhere: in a head, a header, a body, between frames, between messages."""
    stream = BEFORE + publish_method() + header(1, 20) + body(1, b"x" * 9) + body(1, b"x" * 11) + BEFORE
    parser = FrameParser(4096)
    said = set()
    for at in range(0, len(stream), size):
        parser.feed(stream[at : at + size])
        assert parser.incomplete == (parser.buffered_bytes > 0)
        said.add(parser.incomplete)
    assert said == {True, False} or size == 64


def test_a_declared_size_allocates_nothing() -> None:
    _, parser = read(publish_method() + header(1, 1 << 40), max_body=1 << 41)
    assert parser.buffered_bytes < 2 * CONTENT_BYTES


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_messages_that_are_not_whole_are_bounded_on_all_channels_together(frames: int) -> None:
    parser = FrameParser(4096, max_gathered=100_000)
    for channel in range(1, 1_000):
        parser.feed(b"".join((publish_method(channel), header(channel, 5), body(channel, b"1234"))[:frames]))
        if parser.error is not None:
            break
    assert parser.error is not None
    assert parser.error.reply_code == 506
    assert "100000 are the most" in parser.error.text
    assert parser.buffered_bytes == 0


def test_events_do_not_keep_the_buffer() -> None:
    events, _ = read(publish_frames(1, "e", "k", PERSISTENT, b"x" * 100, 4096))
    assert all(type(part) in {int, tuple, bytes} for part in events[0])


# wrong ----------------------------------------------------------------------------------------------------------------

PUBLISH_K = b"\x00\x3c\x00\x28\x00\x00\x01e\x01k"
BEFORE = publish_frames(1, "e", "k", NO_PROPERTIES, b"before", 4096)

WRONG: list[tuple[str, int, bytes]] = [
    ("unknown frame type", 501, frame(4, 1, b"x")),
    ("protocol header in the stream", 501, PROTOCOL_HEADER),
    ("end octet of a method", 501, encode_method(1, methods.TX_COMMIT)[:-1] + b"\x00"),
    ("end octet of a publish", 501, publish_method()[:-1] + b"\x00" + header(1, 1) + body(1, b"x")),
    ("end octet of a header", 501, publish_method() + header(1, 1)[:-1] + b"\x00" + body(1, b"x")),
    ("end octet of a body", 501, publish_method() + header(1, 1) + body(1, b"x")[:-1] + b"\x00"),
    ("frame too large", 501, frame(3, 1, b"x" * 4097)),
    ("frame too large, told by its head", 501, b"\x01\x00\x01\xff\xff\xff\xff"),
    ("method too large", 501, frame(1, 1, b"\x00\x3c\x00\x28\x00\x00" + b"x" * 4091)),
    ("header too large", 501, publish_method() + header(1, 1, b"x" * 4085) + body(1, b"x")),
    (
        "body larger than max_body of what is no basic.publish",
        501,
        deliver_frames(1, b"\x01t", 1, False, "e", "k", NO_PROPERTIES, bytes((1 << 20) + 1), 4096),
    ),
    ("heartbeat on a channel", 505, frame(8, 1, b"")),
    ("heartbeat with payload", 501, frame(8, 0, b"x")),
    ("header on channel 0", 501, header(0, 1)),
    ("body on channel 0", 501, body(0, b"x")),
    ("content on channel 0", 501, publish_method(0) + header(0, 1) + body(0, b"x")),
    ("header without method", 505, header(1, 1)),
    ("body without method", 505, body(1, b"x")),
    ("body without header", 505, publish_method() + body(1, b"x")),
    ("two headers", 505, publish_method() + header(1, 1) + header(1, 1)),
    ("method in place of header", 505, publish_method() + encode_method(1, methods.TX_COMMIT)),
    ("publish in place of header", 505, publish_method() + publish_method()),
    ("method in place of body", 505, publish_method() + header(1, 1) + encode_method(1, methods.TX_COMMIT)),
    ("short method in place of body", 505, publish_method() + header(1, 1) + frame(1, 1, b"\x00")),
    ("header of class 10", 505, publish_method() + header(1, 1, class_and_weight=10 << 16) + body(1, b"x")),
    ("header with weight", 505, publish_method() + header(1, 1, class_and_weight=60 << 16 | 1) + body(1, b"x")),
    ("body after empty body", 505, publish_method() + header(1, 0) + body(1, b"")),
    ("body larger than announced", 505, publish_method() + header(1, 1) + body(1, b"xy")),
    ("second body frame too large", 505, publish_method() + header(1, 2) + body(1, b"x") + body(1, b"xy")),
    ("method frame without method", 502, frame(1, 1, b"\x00\x3c\x00")),
    ("header without flags", 502, publish_method() + frame(2, 1, b"\x00\x3c" + bytes(11)) + body(1, b"x")),
    ("publish cut off", 502, frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01e\x01k")),
    ("publish with nothing", 502, frame(1, 1, b"\x00\x3c\x00\x28")),
    ("publish with rest", 502, frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01e\x01k\x00\x00")),
    ("whole publish, method with rest", 502, frame(1, 1, PUBLISH_K + b"\x00\x00") + header(1, 1) + body(1, b"x")),
    ("whole publish, method cut off", 502, frame(1, 1, PUBLISH_K) + header(1, 1) + body(1, b"x")),
    ("publish with exchange past its end", 502, frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\xc8e\x01k\x00")),
    ("publish whose key is not UTF-8", 502, publish_method(routing_key=b"\xff") + header(1, 1) + body(1, b"x")),
    ("publish whose exchange is not UTF-8", 502, publish_method(exchange=b"\xff") + header(1, 1) + body(1, b"x")),
    ("deliver with nothing", 502, frame(1, 1, b"\x00\x3c\x00\x3c")),
    ("deliver cut off", 502, frame(1, 1, b"\x00\x3c\x00\x3c\x01c" + bytes(9))),
    ("ack cut off", 502, frame(1, 1, b"\x00\x3c\x00\x50" + bytes(8))),
    ("commit with rest", 502, frame(1, 1, b"\x00\x5a\x00\x14\x00")),
    ("unknown class", 503, frame(1, 1, b"\x00\x3d\x00\x0a")),
    ("unknown method", 540, frame(1, 1, b"\x00\x3c\x00\x0c")),
]


@pytest.mark.parametrize(("reply_code", "wrong"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_frame_ends_the_stream_and_loses_nothing_before_it(reply_code: int, wrong: bytes) -> None:
    for pieces in ((BEFORE + wrong,), (BEFORE, wrong), octet_by_octet(BEFORE + wrong)):
        events, parser = read(*pieces)
        assert events[:1] == [published(1, b"before")]
        assert parser.error is not None
        assert parser.error.reply_code == reply_code
        told = (parser.error.reply_code, parser.error.text)
        assert parser.feed(BEFORE) == []
        assert (parser.error.reply_code, parser.error.text) == told


def test_a_size_is_refused_before_its_octets_arrive() -> None:
    _, parser = read(b"\x03\x00\x01\x00\x10\x00\x00")
    assert parser.error is not None
    assert "frame of 1048584 bytes on channel 1, 4096 is the most" in parser.error.text


def test_the_error_names_the_method_at_fault() -> None:
    _, parser = read(publish_method() + header(1, 2) + encode_method(1, methods.QUEUE_PURGE, "q", False))
    assert parser.error is not None
    assert parser.error.key == methods.BASIC_PUBLISH
    assert parser.error.text == "queue.purge on channel 1 in the middle of the content of basic.publish"


def test_the_error_holds_no_stack_and_with_it_no_buffer() -> None:
    _, parser = read(publish_method(2) + publish_method(routing_key=b"\xff"))
    error = parser.error
    assert error is not None
    assert error.__traceback__ is None
    assert error.__cause__ is None
    assert error.__context__ is None
    assert parser.buffered_bytes == 0


# the protocol header --------------------------------------------------------------------------------------------------


def test_the_protocol_header_is_taken_off() -> None:
    assert split_protocol_header(PROTOCOL_HEADER) == b""
    assert split_protocol_header(PROTOCOL_HEADER + b"rest") == b"rest"
    for at in range(8):
        assert split_protocol_header(PROTOCOL_HEADER[:at]) is None


@pytest.mark.parametrize(
    "received",
    [b"G", b"AMQP\x01\x01\x00\x09", b"AMQP\x00\x01\x00\x00", b"AMQP\x03", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"],
)
def test_another_protocol_is_recognised_at_its_first_wrong_octet(received: bytes) -> None:
    with pytest.raises(ProtocolHeaderError) as error:
        split_protocol_header(received)
    assert error.value.received == received[:8]
