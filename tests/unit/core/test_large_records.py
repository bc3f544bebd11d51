"""A large record without a body has ids to its end: no part of it may be passed over."""

from __future__ import annotations

from understudy.broker.chunks import LargeBuffer
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record

MESSAGES = record.HEAD_OF_LARGE_BYTES // 8 + 1_000


def test_a_purge_of_many_messages_is_taken_whole() -> None:
    """Of 262,144 messages and more each backup refused it, and its link with it, for ever."""
    ids = tuple(range(1, MESSAGES + 1))
    raw = record.encode_dequeue(record.PURGED, [(7, ids)])
    large = LargeBuffer()
    large.take(frame.encode_batch(1, 1, 1, 0, [raw], 0))
    state = BrokerState()
    state.receive_batch(large)  # type: ignore[arg-type]  # as `FrameReader` gives it
    ((_, _, groups),) = state.log.pending
    assert groups == [(7, ids)]
