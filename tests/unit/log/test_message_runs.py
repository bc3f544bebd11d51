"""Messages that are taken in one go do what the same records do one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any, Final

import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, message_runs, record
from understudy.broker.log.message_runs import decode_tx_run
from understudy.broker.message import DelayedMessage, Message, MovedMessage

QUEUES: Final = [1 << 40 | 1, 1 << 40 | 2, 1 << 40 | 3]
DELETED: Final = 1 << 40 | 4
TX: Final = 1 << 40 | 9
OTHER: Final = 1 << 40 | 10
EMPTY: Final = b"\x00\x00\x00\x00"
FIRST: Final = 1 + len(QUEUES)
"""Offset of the first record of the transactions."""


def enqueue(tx_id: int, targets: list[record.Target], message: Message, transient: bool = False) -> bytes:
    return record.encode_tx_enqueue(tx_id, targets, message, transient) + message.properties + message.content()


def plain(targets: list[record.Target], message: Message, transient: bool = False) -> bytes:
    return record.encode_enqueue(targets, message, transient) + message.properties + message.content()


def any_record(chance: Random, place: int) -> bytes:
    """A record of one of two transactions, or of none: mostly what a run takes."""
    kind = chance.choices([Message, MovedMessage, DelayedMessage], [20, 1, 1])[0]
    exchange, key = chance.choice([("", "q"), ("news", "key"), ("", "f\xfcnf")])
    body = bytes(chance.randrange(3) * 40)
    message = kind(exchange, key, b"\x10\0" + bytes([2] * chance.randrange(4)), body, chance.random() < 0.8)
    queues = chance.sample([*QUEUES, DELETED], chance.choices([1, 2, 3], [20, 1, 1])[0])
    tx_id = chance.choices([TX, OTHER], [5, 1])[0]
    if chance.random() < 0.05:
        return record.encode_tx_dequeue(tx_id, [(queues[0], (7, 8))])
    if chance.random() < 0.3:
        return plain([(queue, place, 0) for queue in queues], message, chance.random() < 0.04)
    limit = chance.choices([0, 60_000, record.FROM_COMMIT | 700], [10, 1, 1])[0]
    return enqueue(tx_id, [(queue, place, limit) for queue in queues], message, chance.random() < 0.04)


def with_queues(tx_memory_bytes: int = 1 << 30) -> BrokerState:
    state = BrokerState(tx_memory_bytes=tx_memory_bytes)
    for queue_id in QUEUES:
        state.taking.append_record(record.encode_queue_declare(queue_id, "/", f"q{queue_id}", record.DURABLE, EMPTY))
    state.log.append(record.BARRIER_RECORD)
    state.log.close_batch()
    state.log.apply_up_to(FIRST)
    return state


def in_one_batch(records: Sequence[bytes]) -> BrokerState:
    state = with_queues()
    state.taking.receive_batch(frame.encode_batch(1, FIRST + 1, len(records), 1, list(records)))
    return state


def one_by_one(records: Sequence[bytes]) -> BrokerState:
    state = with_queues()
    for raw in records:
        state.log.append(raw)
        state.taking.take_record(raw, state.log.end)
    return state


def content(state: BrokerState) -> dict[str, Any]:
    """Entries that wait to be applied; events, counts and digests of the transactions, and what queues count of them."""
    return {
        "pending": [
            (offset, change, fields(argument[0]), list(argument[1])) for offset, change, argument in state.log.pending
        ],
        "queues": {queue.id: queue.uncommitted for queue in state.queues.values()},
        "transactions": {
            tx.tx_id: (
                [(at, message and fields(message), list(targets)) for at, message, targets in tx.events],
                (tx.first_offset, tx.logged_events, tx.digest, tx.durable_events, tx.durable_digest),
                (tx.size_bytes, tx.transient_at, tx.enqueue_counts()),
            )
            for tx in state.transactions.values()
        },
    }


def fields(message: Message) -> list[Any]:
    return [message.__class__, *[getattr(message, name) for name in Message.__slots__]]


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_does_what_its_records_do(seed: int) -> None:
    chance = Random(seed)
    records = [any_record(chance, place) for place in range(120)]
    assert content(in_one_batch(records)) == content(one_by_one(records))


@pytest.mark.parametrize("seed", range(4))
def test_a_log_is_cut_anywhere(seed: int) -> None:
    """A cut leaves of each transaction what its records up to there make; the log goes on from there."""
    chance = Random(seed)
    records = [any_record(chance, place) for place in range(40)]
    for kept, again in product(range(len(records)), (False, True)):
        state = in_one_batch(records)
        state.taking.cut(FIRST + kept)
        if again:
            rest = records[kept:]
            state.taking.receive_batch(frame.encode_batch(2, FIRST + kept + 1, len(rest), 1, rest))
            state.taking.cut(FIRST + kept + (len(rest) + 1) // 2)
        expected = one_by_one(records[: kept + (len(records) - kept + 1) // 2 if again else kept])
        assert content(state) == content(expected)


def test_a_batch_that_is_held_in_part_adds_the_rest() -> None:
    message = Message("", "q", b"\0\0", b"body", True)
    records = [enqueue(TX, [(QUEUES[0], place, 0)], message) for place in range(5)]
    records += [plain([(QUEUES[0], place, 0)], message) for place in range(5)]
    state = in_one_batch(records[:4])
    state.taking.receive_batch(frame.encode_batch(1, FIRST + 3, 5, 1, records[2:7]))
    state.taking.receive_batch(frame.encode_batch(1, FIRST + 7, 4, 1, records[6:]))
    assert content(state) == content(one_by_one(records))


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("at", range(3))
def test_a_length_that_is_wrong_takes_nothing(at: int, in_transaction: bool) -> None:
    """The properties of one message do not end within its record."""
    message = Message("", "q", b"\0\0", b"", True)
    targets = [[(QUEUES[0], place, 0)] for place in range(3)]
    records = [enqueue(TX, each, message) if in_transaction else plain(each, message) for each in targets]
    properties = len(records[at]) - 2 - 4
    records[at] = records[at][:properties] + b"\0\0\0\3" + records[at][properties + 4 :]
    before = content(with_queues())
    state = with_queues()
    with pytest.raises(record.RecordError, match="properties end at"):
        state.taking.receive_batch(frame.encode_batch(1, FIRST + 1, 3, 1, records))
    assert content(state) == before
    assert state.log.end == FIRST


def test_names_of_any_number_are_not_remembered() -> None:
    for number in range(10_000):
        raw = enqueue(TX, [(QUEUES[0], 0, 0)], Message("", str(number), b"\0\0", b"", True))
        found = decode_tx_run(raw, 0, 5)
        assert found is not None
        run, end, count = found
        ((offset, message, targets),) = run.events
        assert (offset, message.routing_key, targets) == (5, str(number), [(QUEUES[0], 0, 0)])
        assert (end, count) == (len(raw), 1)
    assert len(message_runs._TAILS) <= message_runs._TAILS_LIMIT
