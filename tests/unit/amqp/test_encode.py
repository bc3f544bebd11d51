"""The hand-written encoders against octets written by hand."""

from __future__ import annotations

import pytest

from understudy.broker.amqp import (
    HEARTBEAT_FRAME,
    PERSISTENT,
    FrameParser,
    UnencodableValueError,
    ack_frame,
    deliver_frames,
    encode_shortstr,
    get_ok_frames,
    nack_frame,
    publish_frames,
    return_frames,
)
from understudy.broker.amqp.encode import _CACHE_ENTRIES, _publish_frames, _routes

HEADER_OF_3 = b"\x02\x00\x05\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x10\x00\x02\xce"
BODY = b"\x03\x00\x05\x00\x00\x00\x03abc\xce"


def test_publish() -> None:
    assert publish_frames(5, "e", "k", PERSISTENT, b"abc", 0, mandatory=True) == (
        b"\x01\x00\x05\x00\x00\x00\x0b\x00\x3c\x00\x28\x00\x00\x01e\x01k\x01\xce" + HEADER_OF_3 + BODY
    )
    assert publish_frames(5, "e", "k", PERSISTENT, b"abc", 0, immediate=True)[17:18] == b"\x02"
    assert publish_frames(5, "e", "k", PERSISTENT, b"abc", 0)[17:18] == b"\x00"


def test_deliver() -> None:
    assert deliver_frames(5, encode_shortstr("tag"), 7, True, "e", "k", PERSISTENT, b"abc", 4096) == (
        b"\x01\x00\x05\x00\x00\x00\x15\x00\x3c\x00\x3c\x03tag\x00\x00\x00\x00\x00\x00\x00\x07\x01\x01e\x01k\xce"
        + HEADER_OF_3
        + BODY
    )


def test_get_ok() -> None:
    assert get_ok_frames(5, 7, False, "e", "k", 9, PERSISTENT, b"abc", 4096) == (
        b"\x01\x00\x05\x00\x00\x00\x15\x00\x3c\x00\x47\x00\x00\x00\x00\x00\x00\x00\x07\x00\x01e\x01k\x00\x00\x00\x09\xce"
        + HEADER_OF_3
        + BODY
    )


def test_return() -> None:
    assert return_frames(5, 312, "NO_ROUTE", "e", "k", PERSISTENT, b"abc", 4096) == (
        b"\x01\x00\x05\x00\x00\x00\x13\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE\x01e\x01k\xce" + HEADER_OF_3 + BODY
    )


def test_ack_and_nack_and_heartbeat() -> None:
    assert ack_frame(1, 258) == b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x01\x02\x00\xce"
    assert ack_frame(1, 1, True)[-2:] == b"\x01\xce"
    assert nack_frame(1, 1)[8:11] == b"\x3c\x00\x78"
    assert [nack_frame(1, 1, multiple, requeue)[-2] for multiple in (False, True) for requeue in (False, True)] == [
        0,
        2,
        1,
        3,
    ]
    assert HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_without_body_there_is_no_body_frame() -> None:
    frames = publish_frames(5, "e", "k", b"\x00\x00", b"", 4096)
    assert frames.endswith(b"\x02\x00\x05\x00\x00\x00\x0e\x00\x3c" + bytes(12) + b"\xce")


@pytest.mark.parametrize(
    ("size", "frame_max", "sizes"),
    [
        (4088, 4096, [4088]),
        (4089, 4096, [4088, 1]),
        (8176, 4096, [4088, 4088]),
        (10_000, 4096, [4088, 4088, 1824]),
        (10_000, 0, [10_000]),
    ],
)
def test_a_body_is_split_so_that_whole_frames_fit(size: int, frame_max: int, sizes: list[int]) -> None:
    body = bytes(range(256)) * 40
    frames = publish_frames(5, "e", "k", b"\x00\x00", body[:size], frame_max)
    at = 19 + 22
    for expected in sizes:
        assert frames[at : at + 3] == b"\x03\x00\x05"
        assert int.from_bytes(frames[at + 3 : at + 7]) == expected
        at += expected + 8
    assert at == len(frames)
    assert FrameParser(frame_max).feed(frames)[0][4:] == (body[:size],)


def test_names_without_a_form_are_refused() -> None:
    for wrong in ("x" * 256, "\ud800"):
        with pytest.raises(UnencodableValueError):
            publish_frames(1, wrong, "k", PERSISTENT, b"", 0)
        with pytest.raises(UnencodableValueError):
            deliver_frames(1, b"\x00", 1, False, "e", wrong, PERSISTENT, b"", 0)
        with pytest.raises(UnencodableValueError):
            return_frames(1, 312, wrong, "e", "k", PERSISTENT, b"", 0)
    with pytest.raises(UnencodableValueError):
        encode_shortstr(5)  # type: ignore[arg-type]


def test_the_caches_are_bounded() -> None:
    for n in range(_CACHE_ENTRIES + 10):
        publish_frames(1, "e", f"key {n}", PERSISTENT, b"", 0)
        assert len(_publish_frames) <= _CACHE_ENTRIES
        assert len(_routes) <= _CACHE_ENTRIES
