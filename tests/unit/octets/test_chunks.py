"""Large content lies in several buffers, and its octets and checksums are those of the joined form."""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core
from understudy.broker.amqp.encode import deliver_frames, get_ok_frames, publish_frames, return_frames, with_large_body
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import BASIC_GET, BASIC_PUBLISH
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.log import TRANSIENT_BATCH, journal_form
from understudy.broker.message import Message
from understudy.broker.octets.chunks import LARGE_BYTES, Chunks, LargeBuffer, as_chunks, as_large, crc32_combine, flat
from understudy.replicator import snapshot, wire
from understudy.replicator.direct.framing import MESSAGE, FrameReader, FramingError, frame_head, large_frame_head

BODY = random.Random(1).randbytes(LARGE_BYTES + 12_345)


def gathered(octets: bytes, skip: int = 0, piece_bytes: int = 100_000) -> LargeBuffer:
    buffer = LargeBuffer(skip)
    for at in range(0, len(octets), piece_bytes):
        buffer.take(octets[at : at + piece_bytes])
    return buffer


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_are_combined(first: bytes, second: bytes) -> None:
    assert crc32_combine(crc32(first), crc32(second), len(second)) == crc32(first + second)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(1, 50))
def test_the_checksum_of_what_is_gathered(octets: bytes, skip: int, piece_bytes: int) -> None:
    buffer = gathered(octets, skip, piece_bytes)
    assert bytes(buffer) == octets
    assert buffer.crc == crc32(octets[skip:])


def test_chunks() -> None:
    chunks = Chunks((b"abc", b"de"))
    assert (len(chunks), chunks[1], chunks[:2], bytes(chunks)) == (5, ord("b"), b"ab", b"abcde")
    assert flat([b"x", chunks]) == [b"x", b"abc", b"de"]  # type: ignore[list-item]


# -- batches ---------------------------------------------------------------------------------------------------------


def enqueue(body: bytes, transient: bool) -> list[bytes]:
    message = Message("e", "k", PERSISTENT, body, not transient)
    return [record.encode_enqueue([(1, 2, 0)], message, transient), PERSISTENT, body]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_a_large_batch_has_the_octets_of_the_joined_one(messages: list[tuple[bool, bool]]) -> None:
    """(large, transient) of each message; the journal's form too."""
    chunks = [
        part
        for large, transient in messages
        for part in enqueue(gathered(BODY) if large else b"small", transient)  # type: ignore[arg-type]
    ]
    place = (3, 100, len(messages), 90)
    joined = frame.encode_batch(*place, [bytes(chunk) for chunk in chunks], TRANSIENT_BATCH)
    large = frame.encode_large_batch(*place, chunks, TRANSIENT_BATCH)
    assert bytes(large) == joined
    last = 100 + len(messages) - 1
    assert bytes(journal_form(Batch(100, last, 3, large))) == journal_form(Batch(100, last, 3, joined))


def test_a_large_batch_that_is_larger_than_a_frame_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_FRAME_BYTES", 1_000)
    with pytest.raises(frame.FrameTooLargeError):
        frame.encode_large_batch(1, 1, 1, 0, [b"x" * 1_000])


# -- links -----------------------------------------------------------------------------------------------------------


def large_batch() -> bytes:
    return frame.encode_large_batch(3, 100, 2, 90, [*enqueue(gathered(BODY), False), *enqueue(b"s", False)])  # type: ignore[arg-type]


def on_the_wire(message: bytes) -> bytes:
    chunks = as_chunks(message)
    assert chunks is not None
    return large_frame_head(chunks) + bytes(message)


def read(octets: bytes, piece_bytes: int) -> list[tuple[int, bytes]]:
    reader = FrameReader(1 << 30)
    found = []
    for at in range(0, len(octets), piece_bytes):
        reader.add(octets[at : at + piece_bytes])
        while reader.more and (each := reader.next_frame()) is not None:
            found.append(each)
    return found


@pytest.mark.parametrize("piece_bytes", [1_000, 65_536, 1 << 30])
def test_a_large_batch_on_a_link(piece_bytes: int) -> None:
    message = wire.encode_batch(95, large_batch())
    joined = wire.encode_batch(95, bytes(large_batch()))
    assert on_the_wire(message) == frame_head(MESSAGE, joined) + joined
    small = wire.encode_ack(7)
    found = read(on_the_wire(message) + frame_head(MESSAGE, small) + small, piece_bytes)
    assert found == [(MESSAGE, joined), (MESSAGE, small)]
    large = as_large(found[0][1])
    if piece_bytes < len(joined):
        assert large is not None
        view = memoryview(large)[9:]
        assert frame.verify_large_batch(view, large.crc) == frame.verify_batch(bytes(large_batch()))


@pytest.mark.parametrize("at", [0, 9, 9 + 5, 9 + 33, 9 + 37, 9 + 40, 500_000])
def test_a_large_batch_that_is_damaged(at: int) -> None:
    octets = bytearray(on_the_wire(wire.encode_batch(95, large_batch())))
    octets[at + 9] ^= 1
    if at < 9:
        with pytest.raises(FramingError):
            read(bytes(octets), 65_536)
        return
    ((_, message),) = read(bytes(octets), 65_536)
    large = as_large(message)
    assert large is not None
    with pytest.raises(frame.FrameError):
        frame.verify_large_batch(memoryview(large)[9:], large.crc)


def test_a_backup_takes_a_large_batch_as_any_other() -> None:
    states = [BrokerState(), BrokerState()]
    for state, data in zip(states, (bytes(large_batch()), memoryview(bytes(large_batch()))), strict=True):
        state.log.restart_at(99, [(3, 1)])
        state.taking.receive_batch(data)  # type: ignore[arg-type]
    taken = [[argument for _, _, argument in state.log.pending] for state in states]
    assert [targets for _, targets in taken[0]] == [targets for _, targets in taken[1]]
    for (one, _), (other, _) in zip(*taken, strict=True):
        assert (one.exchange, one.routing_key, one.properties, one.size, one.offset) == (
            other.exchange, other.routing_key, other.properties, other.size, other.offset,
        )  # fmt: skip
        assert one.content() == other.content()


# -- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_max", [0, 4096, FRAME_MAX])
@pytest.mark.parametrize(
    "frames",
    [
        lambda body, frame_max: deliver_frames(5, b"\1t", 9, True, "e", "k", PERSISTENT, body, frame_max),
        lambda body, frame_max: get_ok_frames(5, 9, True, "e", "k", 3, PERSISTENT, body, frame_max),
        lambda body, frame_max: return_frames(5, 312, "NO_ROUTE", "e", "k", PERSISTENT, body, frame_max),
    ],
)
def test_a_large_body_in_the_frames_of_a_delivery(frames: Callable[[bytes, int], bytes], frame_max: int) -> None:
    large = with_large_body(frames(b"", frame_max), 5, PERSISTENT, gathered(BODY), frame_max)  # type: ignore[arg-type]
    assert bytes(large) == frames(BODY, frame_max)


def test_a_large_message_is_gathered_with_its_checksum() -> None:
    parser = FrameParser(FRAME_MAX)
    octets = publish_frames(1, "", "q", PERSISTENT, BODY, FRAME_MAX)
    events = [event for at in range(0, len(octets), 70_000) for event in parser.feed(octets[at : at + 70_000])]
    assert events == [(1, BASIC_PUBLISH, ("", "q", False, False), PERSISTENT, BODY)]
    large = as_large(events[0][-1])
    assert large is not None
    assert large.crc == crc32(BODY)


def test_a_large_message_through_a_broker() -> None:
    """Published, journaled, applied, handed out; nothing joins it on the way."""
    core = Core(Limits())
    client = core.client()
    core.queue(client, "q")
    closed: list[bytes] = []
    append = core.node.gate.append_batch

    def watched(data: bytes, last_offset: int) -> None:
        closed.append(data)
        append(data, last_offset)

    core.node.gate.append_batch = watched  # type: ignore[method-assign]
    octets = publish_frames(1, "", "q", PERSISTENT, BODY, FRAME_MAX)
    for at in range(0, len(octets), 70_000):
        client.connection.receive(octets[at : at + 70_000])
    core.sync()
    assert [as_chunks(data) is not None for data in closed] == [True]
    frame.verify_batch(bytes(closed[0]))
    client.method(BASIC_GET, "q", True)
    client.core.sync()
    (event,) = client.events()
    assert event[-1] == BODY


def test_a_large_message_in_a_piece_of_a_catch_up() -> None:
    """The message travels beside the log, under the checksum of its link."""
    message = Message("e", "k", PERSISTENT, gathered(BODY), True)  # type: ignore[arg-type]
    entries = [Entry(7, message, 0, False), Entry(8, Message("e", "k", PERSISTENT, b"small", True), 0, False)]
    piece = snapshot.encode_queue_piece(wire.QUEUE, 3, False, entries)
    assert as_chunks(piece) is not None
    octets = bytes(piece)
    assert on_the_wire(piece) == frame_head(MESSAGE, octets) + octets
    ((_, taken),) = read(on_the_wire(piece), 65_536)
    assert [each[3].content() for each in snapshot.decode_queue_piece(taken)[2]] == [BODY, b"small"]
