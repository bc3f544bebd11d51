"""A large record without a body has ids to its end: no part of it may be passed over."""

from __future__ import annotations

import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.message import Message
from understudy.broker.octets.chunks import LARGE_BYTES, LargeBuffer

MESSAGES = record.HEAD_OF_LARGE_BYTES // 8 + 1_000


def test_a_purge_of_many_messages_is_taken_whole() -> None:
    """Of 262,144 messages and more each backup refused it, and its link with it, for ever."""
    ids = tuple(range(1, MESSAGES + 1))
    raw = record.encode_dequeue(record.PURGED, [(7, ids)])
    large = LargeBuffer()
    large.take(frame.encode_batch(1, 1, 1, 0, [raw], 0))
    state = BrokerState()
    state.taking.receive_batch(large)  # type: ignore[arg-type]  # as `FrameReader` gives it
    ((_, _, groups),) = state.log.pending
    ((queue_id, taken),) = groups
    assert (queue_id, tuple(taken)) == (7, ids)


@pytest.mark.parametrize("limit_ms", [0, 1_700_000_000_000, record.FROM_COMMIT | 60_000])
def test_a_large_body_in_a_transaction_is_not_copied(limit_ms: int) -> None:
    """A time to live changes nothing: one that begins with the commit has a record of its own kind."""
    body = bytes(2 * LARGE_BYTES)
    message = Message("", "q", b"", body, persistent=True)
    head = record.encode_tx_enqueue(1 << 40, [(7, 0, limit_ms)], message, False)
    large = LargeBuffer()
    large.take(frame.encode_batch(1, 1, 1, 0, [head, message.properties, body], 0))
    state = BrokerState()
    state.taking.receive_batch(large)  # type: ignore[arg-type]  # as `FrameReader` gives it
    ((_, taken, targets),) = state.transactions[1 << 40].events
    assert taken is not None
    assert taken.size == len(body)
    assert taken.body.__class__ is not bytes
    assert targets == [(7, 0, limit_ms)]
