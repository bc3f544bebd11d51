"""The codec against pamqp as oracle, against itself cut into pieces, and against garbage.

Four claims: what we write pamqp reads with the same meaning, and the other way round, for every method, table and set of
properties; events and error do not depend on how a stream is cut; the fast way through the parser says what the plain one says,
of streams that are right and of streams that were damaged; whatever the octets, only the declared errors come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base as pamqp_base
from pamqp import commands, decode, encode, frame, header, heartbeat

from understudy.broker.amqp import (
    HEARTBEAT,
    HEARTBEAT_FRAME,
    Event,
    FrameError,
    FrameParser,
    MalformedFrameError,
    Timestamp,
    UnencodableValueError,
    ack_frame,
    decode_method,
    decode_properties,
    decode_table,
    deliver_frames,
    encode_method,
    encode_properties,
    encode_shortstr,
    encode_table,
    get_ok_frames,
    methods,
    nack_frame,
    properties,
    publish_frames,
    return_frames,
    split_protocol_header,
)
from understudy.broker.amqp.methods import METHODS

# values ---------------------------------------------------------------------------------------------------------------

# pamqp sorts and truncates field names, takes seconds beyond 2106 for milliseconds and has no sign in decimals it reads. What is
# common to both is compared with it, the rest with ourselves.
names = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"))
    | st.integers(0, 2**32 - 1).map(lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
    | st.builds(lambda digits, scale: Decimal(digits).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 15))
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )
    return st.dictionaries(names, values, max_size=6)


written_by_us = nested(scalars | st.floats(allow_nan=False) | st.binary())
written_by_pamqp = nested(scalars | st.floats(allow_nan=False, width=32) | st.binary().map(bytearray))
all_of_ours = nested(
    scalars
    | st.floats(allow_nan=False)
    | st.binary()
    | st.binary().map(lambda octets: octets.decode("utf-8", "surrogateescape"))
    | st.integers(-(2**31), 2**31 - 1).map(lambda digits: Decimal(f"{digits}e-255"))
    | st.integers(253402300800, 2**64 - 1).map(Timestamp)
    | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)).map(lambda time: time.replace(microsecond=0))  # noqa: DTZ001
)

FIELD_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    # pamqp takes delivery tags for signed.
    "longlong": st.integers(0, 2**63 - 1),
    # pamqp has opinions about the names of queues and exchanges; here is what it lets pass everywhere.
    "shortstr": st.text("abcXYZ019-_.:", max_size=60),
    "longstr": st.text(st.characters(codec="utf-8")),
    "table": st.dictionaries(names, scalars, max_size=3),
}


OURS_ALONE = 100
"""Class dtx: no library knows it."""
STANDARD = {key for key in METHODS if key >> 16 != OURS_ALONE}
any_key = st.sampled_from(sorted(METHODS))
standard_key = st.sampled_from(sorted(STANDARD))


@st.composite
def calls(draw: st.DrawFn, keys: st.SearchStrategy[int] = any_key) -> tuple[int, tuple[Any, ...]]:
    """A method and its arguments; long strings as str, which pamqp wants."""
    key = draw(keys)
    return key, tuple(draw(FIELD_TYPES[field.type]) for field in METHODS[key].fields if not field.reserved)


def in_octets(key: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as we read them: long strings are octets."""
    types = [field.type for field in METHODS[key].fields if not field.reserved]
    return tuple(arg.encode() if kind == "longstr" else arg for arg, kind in zip(args, types, strict=True))


# methods --------------------------------------------------------------------------------------------------------------


def test_the_table_of_methods_is_pamqps() -> None:
    assert commands.INDEX_MAPPING.keys() == STANDARD
    theirs: Any
    for key, theirs in commands.INDEX_MAPPING.items():
        ours = METHODS[key]
        assert [field.type for field in ours.fields] == [theirs.amqp_type(name) for name in theirs.attributes()]
        assert plain(ours.name) == plain(theirs.name)
        assert ours.synchronous == theirs.synchronous
        answers = {plain(methods.method_name(answer)) for answer in ours.answers}
        assert answers == {plain(name) for name in theirs.valid_responses}


def plain(name: str) -> str:
    return name.lower().replace("-", "").replace(".", "")


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")  # basic.recover-async
@given(st.integers(0, 65535), calls(standard_key))
def test_pamqp_reads_the_methods_we_write(channel: int, call: tuple[int, tuple[Any, ...]]) -> None:
    key, args = call
    octets = encode_method(channel, key, *args)
    size, their_channel, theirs = frame.unmarshal(octets)
    assert (size, their_channel) == (len(octets), channel)
    assert isinstance(theirs, pamqp_base.Frame)
    assert theirs.index == key
    values = [value for _, value in theirs]
    assert tuple(value for value, field in zip(values, METHODS[key].fields, strict=True) if not field.reserved) == args


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")  # basic.recover-async
@given(st.integers(0, 65535), calls(standard_key))
def test_we_read_the_methods_pamqp_writes(channel: int, call: tuple[int, tuple[Any, ...]]) -> None:
    key, args = call
    kind: Any = commands.INDEX_MAPPING[key]
    given_names = [
        name for name, field in zip(kind.attributes(), METHODS[key].fields, strict=True) if not field.reserved
    ]
    octets = frame.marshal(kind(**dict(zip(given_names, args, strict=True))), channel)
    assert decode_method(octets[7:-1]) == (key, in_octets(key, args))
    if not METHODS[key].content:
        assert FrameParser(0).feed(octets) == [(channel, key, in_octets(key, args))]


@given(st.integers(0, 65535), calls())
def test_what_we_write_we_read(channel: int, call: tuple[int, tuple[Any, ...]]) -> None:
    key, args = call
    octets = encode_method(channel, key, *args)
    assert decode_method(octets[7:-1]) == (key, in_octets(key, args))
    if not METHODS[key].content:
        assert FrameParser(0).feed(octets) == [(channel, key, in_octets(key, args))]


# tables ---------------------------------------------------------------------------------------------------------------


@given(written_by_us)
def test_pamqp_reads_the_tables_we_write(fields: dict[str, Any]) -> None:
    octets = encode_table(fields)
    assert decode.field_table(octets) == (len(octets), fields)


@given(written_by_pamqp)
def test_we_read_the_tables_pamqp_writes(fields: dict[str, Any]) -> None:
    octets = encode.field_table(fields)
    assert decode_table(octets) == (fields, len(octets))


@given(all_of_ours, st.binary(), st.binary())
def test_tables_survive_a_round_trip_in_the_midst_of_other_octets(
    fields: dict[str, Any], before: bytes, after: bytes
) -> None:
    octets = encode_table(fields)
    read, at = decode_table(before + octets + after, len(before))
    assert read == fields
    assert list(read) == list(fields)
    assert at == len(before) + len(octets)
    assert encode_table(read) == octets


anything = st.recursive(
    st.sampled_from([object(), {1}, b"x" * 300, range(3), len, NotImplemented, Decimal("sNaN")])
    | st.text(st.characters(), max_size=300)
    | st.integers()
    | st.decimals()
    | st.datetimes()
    | st.complex_numbers()
    | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(), max_size=300) | st.integers(), anything, max_size=5))
def test_encoding_a_table_returns_or_raises_what_is_declared(fields: dict[Any, Any]) -> None:
    try:
        octets = encode_table(fields)
    except UnencodableValueError:
        return
    decode_table(octets)


# properties -----------------------------------------------------------------------------------------------------------

short = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
PROPERTIES: Mapping[str, st.SearchStrategy[Any]] = {
    "headers": st.dictionaries(names, scalars, min_size=1, max_size=4),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "timestamp": st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 hypothesis wants them naive
        lambda time: time.replace(microsecond=0, tzinfo=UTC)
    ),
    **{
        name: short
        for name in properties.PROPERTY_NAMES
        if name not in {"headers", "delivery_mode", "priority", "timestamp", "cluster_id"}
    },
}
property_sets = st.fixed_dictionaries({}, optional=dict(PROPERTIES))


def in_pamqp(fields: dict[str, Any]) -> commands.Basic.Properties:
    """The same properties; pamqp calls the type message_type."""
    return commands.Basic.Properties(
        **{"message_type" if name == "type" else name: value for name, value in fields.items()}
    )


@given(property_sets, st.integers(0, 2**64 - 1))
def test_pamqp_reads_the_properties_we_write(fields: dict[str, Any], body_size: int) -> None:
    raw = encode_properties(fields)
    payload = b"\x00\x3c\x00\x00" + body_size.to_bytes(8) + raw
    _, _, theirs = frame.unmarshal(b"\x02\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce")
    assert isinstance(theirs, header.ContentHeader)
    assert theirs.body_size == body_size
    assert theirs.properties == in_pamqp(fields)


@given(property_sets)
def test_we_read_the_properties_pamqp_writes(fields: dict[str, Any]) -> None:
    raw = in_pamqp(fields).marshal()
    assert decode_properties(raw) == fields
    properties.check_properties(raw)


@given(property_sets)
def test_single_properties_are_those_of_the_whole(fields: dict[str, Any]) -> None:
    raw = encode_properties(fields)
    assert properties.delivery_mode(raw) == fields.get("delivery_mode", 1)
    assert properties.is_persistent(raw) == (fields.get("delivery_mode") == 2)
    assert properties.headers(raw) == fields.get("headers", {})
    assert properties.has_headers(raw) == ("headers" in fields)
    for name in ("priority", "content_type", "correlation_id", "reply_to", "expiration", "message_id", "user_id"):
        assert getattr(properties, name)(raw) == fields.get(name)
    for name, value in fields.get("headers", {}).items():
        assert properties.header(raw, name) == value


@given(property_sets, names, scalars)
def test_with_header_changes_one_header(fields: dict[str, Any], name: str, value: Any) -> None:
    changed = properties.with_header(encode_properties(fields), name, value)
    assert decode_properties(changed) == {**fields, "headers": {**fields.get("headers", {}), name: value}}
    assert properties.header(changed, name) == value


@given(property_sets, names)
def test_without_header_takes_out_one_header(fields: dict[str, Any], name: str) -> None:
    raw = encode_properties(fields)
    there = fields.get("headers", {})
    for each in {name, *list(there)[:1]}:
        changed = properties.without_header(raw, each)
        kept = {**fields, "headers": {key: value for key, value in there.items() if key != each}} if there else fields
        assert decode_properties(changed) == kept
        assert (changed == raw) is (each not in there)


# streams --------------------------------------------------------------------------------------------------------------

# Octet by octet a stream may take longer than Hypothesis grants on a busy machine.
unhurried = settings(deadline=None)


class PlainParser(FrameParser):
    """The parser without its fast way: frame after frame."""

    __slots__ = ()

    def _parse(self, buf: bytes, events: list[Event]) -> int:
        at = 0
        while (after := self._take_frame(buf, at, events)) >= 0:
            at = after
        return at


FRAME_MAX = 200
MAX_BODY = 900
octets_of_properties = st.sampled_from(
    [b"\x00\x00", properties.PERSISTENT, encode_properties(headers={"a": 1}, expiration="5")]
)
without_content = calls(st.sampled_from([key for key, row in METHODS.items() if not row.content]))
routes = st.sampled_from(["", "e", "amq.topic", "é"])
bodies = st.binary(max_size=5) | st.integers(0, MAX_BODY).map(lambda size: (bytes(range(256)) * 4)[:size])


@st.composite
def said(draw: st.DrawFn, channel: int) -> tuple[Event, bytes]:
    """One thing said on a channel: its event and its frames."""
    kind = draw(
        st.sampled_from(["method", "ack", "nack", "publish", "publish", "deliver", "deliver", "get-ok", "return"])
    )
    tag = draw(st.integers(0, 2**64 - 1))
    flag, flag_2 = draw(st.booleans()), draw(st.booleans())
    if kind == "ack":
        return (channel, methods.BASIC_ACK, (tag, flag)), ack_frame(channel, tag, flag)
    if kind == "nack":
        return (channel, methods.BASIC_NACK, (tag, flag, flag_2)), nack_frame(channel, tag, flag, flag_2)
    if kind == "method":
        key, args = draw(without_content)
        return (channel, key, in_octets(key, args)), encode_method(channel, key, *args)
    route = (draw(routes), draw(routes))
    raw, body = draw(octets_of_properties), draw(bodies)
    content = (*route, raw, body, FRAME_MAX)
    if kind == "publish":
        octets = publish_frames(channel, *content, flag, flag_2)
        return (channel, methods.BASIC_PUBLISH, (*route, flag, flag_2), raw, body), octets
    if kind == "deliver":
        octets = deliver_frames(channel, encode_shortstr("ctag"), tag, flag, *content)
        return (channel, methods.BASIC_DELIVER, ("ctag", tag, flag, *route), raw, body), octets
    if kind == "get-ok":
        octets = get_ok_frames(channel, tag, flag, *route, 7, raw, body, FRAME_MAX)
        return (channel, methods.BASIC_GET_OK, (tag, flag, *route, 7), raw, body), octets
    octets = return_frames(channel, 312, "NO_ROUTE", *content)
    return (channel, methods.BASIC_RETURN, (312, "NO_ROUTE", *route), raw, body), octets


def frames_of(octets: bytes) -> list[bytes]:
    frames = []
    while octets:
        end = int.from_bytes(octets[3:7]) + 8
        frames.append(octets[:end])
        octets = octets[end:]
    return frames


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], bytes]:
    """Events of three channels, frame by frame in one stream with heartbeats; an event counts with its last frame."""
    waiting: list[list[tuple[bytes, Event | None]]] = []
    for channel in (1, 2, 65535):
        frames: list[tuple[bytes, Event | None]] = []
        for event, octets in draw(st.lists(said(channel), max_size=4)):
            *first, last = frames_of(octets)
            frames += [(one, None) for one in first]
            frames.append((last, event))
        waiting.append(frames)
    waiting.append([(HEARTBEAT_FRAME, (0, HEARTBEAT, ()))] * draw(st.integers(0, 2)))
    stream, events = [], []
    while waiting := [frames for frames in waiting if frames]:
        frames = draw(st.sampled_from(waiting))
        # Mostly whole messages, as on real connections, and sometimes not.
        for _ in range(draw(st.sampled_from([1, 3, 3, 3, 9]))):
            if frames:
                octets, said_now = frames.pop(0)
                stream.append(octets)
                if said_now is not None:
                    events.append(said_now)
    return events, b"".join(stream)


def read(
    make: Callable[[int, int], FrameParser], pieces: list[bytes]
) -> tuple[list[Event], tuple[int, str, int] | None]:
    parser = make(FRAME_MAX, MAX_BODY)
    events: list[Event] = []
    for piece in pieces:
        before = parser.error
        events += parser.feed(piece)
        assert before is None or parser.error is before
    error = parser.error
    return events, None if error is None else (error.reply_code, error.text, error.key)


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


@unhurried
@given(streams(), st.data())
def test_a_stream_says_the_same_however_it_is_cut(
    said_and_stream: tuple[list[Event], bytes], data: st.DataObject
) -> None:
    events, stream = said_and_stream
    assert read(FrameParser, [stream]) == (events, None)
    assert read(FrameParser, cut(data, stream)) == (events, None)
    assert read(FrameParser, [stream[at : at + 1] for at in range(len(stream))]) == (events, None)
    assert read(PlainParser, cut(data, stream)) == (events, None)


def damaged(data: st.DataObject, stream: bytes) -> bytes:
    octets = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(octets)))
        kind = data.draw(st.sampled_from(["set", "set", "small", "insert", "remove", "repeat", "end"]))
        if kind == "set" and at < len(octets):
            octets[at] = data.draw(st.integers(0, 255))
        elif kind == "small" and at < len(octets):
            octets[at] = (octets[at] + data.draw(st.sampled_from([-1, 1, 128]))) % 256
        elif kind == "insert":
            octets[at:at] = data.draw(st.binary(max_size=20))
        elif kind == "remove":
            del octets[at : at + data.draw(st.integers(1, 30))]
        elif kind == "repeat":
            octets[at:at] = octets[at : at + data.draw(st.integers(1, 60))]
        elif kind == "end":
            del octets[at:]
    return bytes(octets)


@unhurried
@given(streams(), st.data())
def test_both_ways_through_the_parser_judge_damage_alike(
    said_and_stream: tuple[list[Event], bytes], data: st.DataObject
) -> None:
    stream = damaged(data, said_and_stream[1])
    plainly = read(PlainParser, [stream])
    assert read(FrameParser, [stream]) == plainly
    assert read(FrameParser, cut(data, stream)) == plainly
    assert read(FrameParser, [stream[at : at + 1] for at in range(len(stream))]) == plainly
    assert plainly[1] is None or plainly[1][0] in {501, 502, 503, 505, 540}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 2), st.binary(max_size=40))))
def test_frames_with_senseless_payloads(frames: list[tuple[int, int, bytes]]) -> None:
    stream = b"".join(
        bytes((kind, 0, channel)) + len(payload).to_bytes(4) + payload + b"\xce" for kind, channel, payload in frames
    )
    assert read(FrameParser, [stream]) == read(PlainParser, [stream])


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
def test_methods_with_senseless_arguments(key: int, octets: bytes) -> None:
    payload = key.to_bytes(4) + octets
    stream = b"\x01\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce"
    assert read(FrameParser, [stream]) == read(PlainParser, [stream])


@given(st.lists(st.binary()))
def test_garbage(pieces: list[bytes]) -> None:
    assert read(FrameParser, pieces) == read(PlainParser, [b"".join(pieces)])


# garbage in the parts -------------------------------------------------------------------------------------------------

table_octets = st.binary(max_size=60).map(lambda fields: len(fields).to_bytes(4) + fields) | st.lists(
    st.sampled_from([*(bytes((code,)) for code in b"tbBsuIilLfdDSATFVx"), b"\x00\x00\x00", b"\x01", b"\x02", b"a"]),
    max_size=40,
).map(lambda parts: (sum(map(len, parts))).to_bytes(4) + b"".join(parts))


@given(table_octets, st.integers(0, 10))
def test_decoding_a_table_returns_or_raises_what_is_declared(octets: bytes, at: int) -> None:
    try:
        fields, end = decode_table(octets, at)
    except MalformedFrameError:
        return
    assert decode_table(encode_table(fields))[0].keys() == fields.keys()
    assert at + 4 <= end <= len(octets)


raw_properties = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda flags, rest: (flags & 0xFFFC).to_bytes(2) + rest, st.integers(0, 65535), st.binary(max_size=60)),
    st.builds(lambda flags, fields: (flags & 0xFFC).to_bytes(2) + fields, st.integers(0, 65535), table_octets),
    st.builds(lambda fields, rest: b"\x20\x00" + fields + rest, table_octets, st.binary(max_size=2)),
)


@given(raw_properties, st.sampled_from(["a", "", "x-death"]))
def test_reading_properties_returns_or_raises_what_is_declared(raw: bytes, name: str) -> None:
    single: list[Callable[[bytes], Any]] = [
        *(
            properties.delivery_mode,
            properties.is_persistent,
            properties.has_headers,
            properties.headers,
            properties.priority,
        ),
        *(properties.content_type, properties.correlation_id, properties.reply_to, properties.expiration),
        *(properties.message_id, properties.user_id, decode_properties),
        lambda octets: properties.header(octets, name),
        lambda octets: properties.with_header(octets, name, 1),
    ]
    try:
        properties.check_properties(raw)
        sound = True
    except MalformedFrameError:
        sound = False
    for accessor in single:
        try:
            accessor(raw)
        except MalformedFrameError:
            assert not sound
    if sound:
        assert encode_properties(decode_properties(raw))[:2] == raw[:2]


@given(st.binary() | st.binary().map(lambda rest: b"AMQP\x00\x00\x09\x01" + rest))
def test_a_protocol_header_or_not(octets: bytes) -> None:
    whole = octets.startswith(b"AMQP\x00\x00\x09\x01")
    try:
        rest = split_protocol_header(octets)
    except FrameError:
        assert not whole
    else:
        assert rest == (octets[8:] if whole else None)


def test_pamqp_and_we_agree_on_the_heartbeat() -> None:
    assert heartbeat.Heartbeat().marshal() == HEARTBEAT_FRAME
