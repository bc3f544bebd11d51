"""Lists of ids and of queues of any length leave nothing behind."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import error

import pytest

from understudy.broker.log import record
from understudy.broker.message import Message

Encode = Callable[[list[record.Target]], bytes]
MESSAGE = Message("news", "key", b"\x10\0\x02", b"body", True)


def enqueue(targets: list[record.Target]) -> bytes:
    return record.encode_enqueue(targets, MESSAGE, False) + MESSAGE.properties + MESSAGE.content()


def tx_enqueue(targets: list[record.Target]) -> bytes:
    return record.encode_tx_enqueue(7, targets, MESSAGE, False) + MESSAGE.properties + MESSAGE.content()


def targets_of(raw: bytes, end: int) -> list[record.Target]:
    if raw[0] == record.ENQUEUE:
        return record.decode_enqueue(raw, 5, end)[0]
    return record.decode_tx_enqueue(raw, 5, end)[1]


def decoded(raw: bytes) -> list[record.Target]:
    return targets_of(raw, len(raw))


def test_acknowledgements_of_any_number_are_not_remembered() -> None:
    for count in (0, 1, 7, 1_000, 65_537):
        ids = tuple(range(count))
        raw = record.encode_dequeue(record.ACKNOWLEDGED, [(1, ids)])
        reason, ((queue_id, found),) = record.decode_dequeue(raw, 5)
        assert (reason, queue_id, tuple(found)) == (record.ACKNOWLEDGED, 1, ids)
    tracemalloc.start()
    for count in range(100_000, 100_010):
        record.decode_dequeue(record.encode_dequeue(record.ACKNOWLEDGED, [(1, tuple(range(count)))]), 5)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000


@pytest.mark.parametrize("encode", [enqueue, tx_enqueue])
def test_fan_outs_of_any_width_are_not_remembered(encode: Encode) -> None:
    tracemalloc.start()
    for width in range(1_000, 1_020):
        decoded(encode([(i, i, 0) for i in range(width)]))
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000


@pytest.mark.parametrize("encode", [enqueue, tx_enqueue])
@pytest.mark.parametrize("width", [0, 1, 2, 9, 1_000, record.MAX_TARGETS])
def test_each_queue_of_a_fan_out_is_named(encode: Encode, width: int) -> None:
    targets = [(i << 40 | 1, i, i << 41) for i in range(width)]
    assert decoded(encode(targets)) == targets


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("width", [1, 2, 9, 1_000])
def test_a_time_to_live_in_a_transaction_makes_a_record_of_its_own_kind(width: int, transient: bool) -> None:
    """In all else it is the same record: one that has none of them has the kind that any program reads."""
    untimed = [(i, i, 0) for i in range(width)]
    timed = [*untimed[:-1], (width - 1, width - 1, record.FROM_COMMIT | 60_000)]
    bit = record.TRANSIENT if transient else 0
    for targets, kind in ((untimed, record.TX_ENQUEUE), (timed, record.TX_ENQUEUE_TIMED)):
        raw = record.encode_tx_enqueue(7, targets, MESSAGE, transient) + MESSAGE.properties + MESSAGE.content()
        assert raw[0] == kind | bit
        assert record.decode_tx_enqueue(raw, 5, len(raw))[:2] == (7, targets)


@pytest.mark.parametrize(
    ("said", "deadline_ms"),
    [(0, 0), (1_234, 1_234), (record.FROM_COMMIT, 5_000), (record.FROM_COMMIT | 700, 5_700)],
)
def test_what_a_target_says_becomes_a_deadline_at_the_commit(said: int, deadline_ms: int) -> None:
    assert record.deadline_at(said, 5_000) == deadline_ms


@pytest.mark.parametrize(("encode", "first", "each"), [(enqueue, 7, 24), (tx_enqueue, 15, 20)])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_a_record_that_ends_among_its_targets_is_refused(encode: Encode, first: int, each: int, width: int) -> None:
    whole = encode([(i, i, 0) for i in range(width)])
    for place in range(width):
        for end in (first + each * place, first + each * place + 3):
            with pytest.raises((record.RecordError, error)):
                decoded(whole[:end])
            with pytest.raises((record.RecordError, error)):
                targets_of(whole, end)  # what stands behind it is another record's
