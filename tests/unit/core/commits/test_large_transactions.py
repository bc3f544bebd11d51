"""Bodies of a transaction beyond ``tx.memory_bytes`` leave the memory, on whoever holds it, and come back when they are wanted."""

from __future__ import annotations

import pytest

from tests.simulator.memory_spill import MemorySpill
from tests.unit.core.core_kit import publish
from tests.unit.core.life.recovery_kit import KeptCore
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_CONSUME, BASIC_DELIVER, TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.clients.transacting import FLUSH_ACCEPTS
from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.raw_records import EMPTY_TABLE
from understudy.broker.log import frame, record
from understudy.broker.log.record import Prepare
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer

QUEUE = (1 << 40) + 1
TX = (1 << 40) + 2
BODIES = [bytes([65 + number]) * 100 for number in range(6)]


def with_queue() -> tuple[BrokerState, MemorySpill]:
    spill = MemorySpill()
    state = BrokerState(spill=spill, tx_memory_bytes=250)
    state.taking.append_record(record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY_TABLE))
    state.log.close_batch()
    state.log.apply_up_to(1)
    return state, spill


def message(body: bytes) -> Message:
    return Message("", "q", b"\0\0", body, True)


def test_a_primary_logs_the_body_and_then_lets_it_go() -> None:
    state, spill = with_queue()
    recorder, tx = TransactionRecorder(state), TxBuffer(TX)
    for body in BODIES:
        recorder.enqueue(tx, [state.queues[QUEUE]], [0], message(body))
    assert [isinstance(one.body, bytes) for one in tx.messages()] == [True, True, False, False, False, False]
    assert spill.live == 4
    batch = state.log.close_batch()
    assert batch is not None
    assert all(body in batch.frame for body in BODIES), "backups and journal get every one"
    assert [one.content() for one in tx.messages()] == BODIES


def test_a_backup_does_the_same_and_hands_out_what_was_written() -> None:
    state, spill = with_queue()
    records = [
        record.encode_tx_enqueue(TX, [(QUEUE, place, 0)], message(body), False) + b"\0\0" + body
        for place, body in enumerate(BODIES)
    ]
    state.taking.receive_batch(frame.encode_batch(1, 2, len(records), 1, records))
    tx = state.transactions[TX]
    assert spill.live == 4
    assert tx.size_bytes == 6 * 102
    prepare = Prepare(TX, 1, "", 0, {QUEUE: (7, 6)}, 6, tx.digest, 6, tx.durable_digest)
    closing = [record.encode_prepare(prepare), record.encode_commit(TX, 1, 0)]
    state.taking.receive_batch(frame.encode_batch(1, 8, 2, 1, closing))
    state.log.apply_up_to(9)
    del tx
    entries = state.queues[QUEUE].entries
    assert [entry.message.content() for entry in entries.values()] == BODIES
    for entry_id in list(entries):
        state.queues[QUEUE].remove(entry_id)
    assert spill.live == 0, "a body ends with its message"


def test_a_tail_that_is_cut_takes_its_bodies_along() -> None:
    state, spill = with_queue()
    records = [
        record.encode_tx_enqueue(TX, [(QUEUE, place, 0)], message(body), False) + b"\0\0" + body
        for place, body in enumerate(BODIES)
    ]
    for place, one in enumerate(records):
        state.taking.receive_batch(frame.encode_batch(1, 2 + place, 1, 1, [one]))
    state.taking.cut(4)
    assert spill.live == 1
    assert [one.content() for one in state.transactions[TX].messages()] == BODIES[:3]


def test_without_a_place_everything_stays_in_memory() -> None:
    state = BrokerState(tx_memory_bytes=250)
    state.taking.append_record(record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, EMPTY_TABLE))
    state.log.close_batch()
    state.log.apply_up_to(1)
    recorder, tx = TransactionRecorder(state), TxBuffer(TX)
    for body in BODIES:
        recorder.enqueue(tx, [state.queues[QUEUE]], [0], message(body))
    assert [one.body for one in tx.messages()] == BODIES


@pytest.mark.parametrize(
    ("publishes", "acks"), [(1, 0), (10_000, 0), (0, FLUSH_ACCEPTS), (0, 20 * FLUSH_ACCEPTS), (10_000, 10_000)]
)
def test_what_closes_a_transaction_is_as_long_for_any_number_of_events(publishes: int, acks: int) -> None:
    """Everything has gone to the journal, and to backups, before: the commit writes PREPARE, and COMMIT when that is stable.

    What the brokers of a group say then, and acknowledgements that are still gathered: ``simulation/test_large_transactions.py``.
    """
    core = KeptCore()
    client = core.client()
    core.queue(client, "in")
    core.queue(client, "q")
    client.send(*[publish("in", b"x") for _ in range(acks)])
    core.sync()
    client.method(TX_SELECT)
    assert client.heard() == ["tx.select-ok"]
    client.method(BASIC_CONSUME, "in", "c", False, False, False, False, {})
    tags = [event[2][1] for event in client.events() if event[1] == BASIC_DELIVER]
    assert len(tags) == acks
    client.send(*[encode_method(1, BASIC_ACK, tag, False) for tag in tags])
    for _ in range(publishes):
        client.publish("q", b"x" * 100)
    core.sync()
    before = len(core.journal.frames)
    client.method(TX_COMMIT)
    core.sync()
    core.sync()
    written = core.journal.frames[before:]
    assert client.heard() == ["tx.commit-ok"]
    assert len(written) == 2
    assert sum(map(len, written)) < 300
    assert [len(queue.entries) for queue in core.node.state.queues.values()] == [0, publishes]
