"""A transaction to a queue that is not durable: it was deleted before PREPARE, and the log of a restart has a hole there."""

from __future__ import annotations

from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.raw_records import EMPTY_TABLE
from understudy.broker.log import frame, record
from understudy.broker.log.record import Prepare
from understudy.broker.message import Message

KEPT, GONE = (1 << 40) + 1, (1 << 40) + 2
TX = (1 << 40) + 3


def test_what_prepare_gave_no_id_to_is_not_enqueued() -> None:
    state = BrokerState()
    for queue_id, name in ((KEPT, "kept"), (GONE, "gone")):
        state.taking.append_record(record.encode_queue_declare(queue_id, "/", name, record.DURABLE, EMPTY_TABLE))
    state.log.close_batch()
    state.log.apply_up_to(2)
    message = Message("", "kept", b"\0\0", b"x", True)
    both = record.encode_tx_enqueue(TX, [(KEPT, 0, 0), (GONE, 0, 0)], message, False) + b"\0\0x"
    state.taking.receive_batch(frame.encode_batch(1, 3, 2, 1, [both, record.encode_holes(1)]))
    tx = state.transactions[TX]
    prepare = Prepare(TX, 1, "", 0, {KEPT: (7, 1)}, 1, tx.digest, 1, tx.durable_digest)
    closing = [record.encode_prepare(prepare), record.encode_commit(TX, 1, 0)]
    state.taking.receive_batch(frame.encode_batch(1, 5, 2, 1, closing))
    state.log.apply_up_to(6)
    assert list(state.queues[KEPT].entries) == [7]
    assert list(state.queues[GONE].entries) == []
    assert state.queues[GONE].uncommitted == 0
