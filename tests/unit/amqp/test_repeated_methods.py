"""Payloads that were read before are not read again; what they say is the same."""

from __future__ import annotations

import pytest

from understudy.broker.amqp.errors import MalformedFrameError
from understudy.broker.amqp.methods import BASIC_GET, decode_method, encode_method


def payload(queue: str, no_ack: bool) -> bytes:
    return encode_method(1, BASIC_GET, queue, no_ack)[7:-1]


def test_a_payload_that_comes_again_says_the_same() -> None:
    for _ in range(2):
        assert decode_method(payload("a queue", True)) == (BASIC_GET, ("a queue", True))
    for number in range(3_000):  # more than are remembered
        assert decode_method(payload(f"queue {number}", False)) == (BASIC_GET, (f"queue {number}", False))
    assert decode_method(payload("a queue", True)) == (BASIC_GET, ("a queue", True))


def test_a_malformed_one_is_malformed_each_time() -> None:
    for _ in range(2):
        with pytest.raises(MalformedFrameError):
            decode_method(payload("a queue", True)[:-1])
