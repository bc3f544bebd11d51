"""Why a transaction was rolled back may quote a client's names, whatever their alphabet."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import CHANNEL_CLOSE, TX_SELECT
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState


def test_a_missing_exchange_of_a_long_name_ends_the_channel_and_its_transaction() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.publish("q", b"x")
    client.events()
    client.send(publish_frames(1, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 120, "k", PERSISTENT, b"x", FRAME_MAX))
    (event,) = client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 404
    core.sync()
    assert not core.node.state.transactions
    other = core.client()
    other.send(publish("q", b"y"))
    core.sync()
    (queue,) = core.node.state.queues.values()
    assert [entry.message.content() for entry in queue.entries.values()] == [b"y"]


@pytest.mark.parametrize("reason", ["x" * 300, "\N{SNOWMAN}" * 200, "ab" + "\N{GRINNING FACE}" * 100, "\udcff" * 255])
def test_a_reason_is_cut_to_what_a_record_holds(reason: str) -> None:
    raw = record.encode_rollback(7, 1, "name", reason)
    tx_id, _, name, kept = record.decode_rollback(raw, 5)
    assert (tx_id, name) == (7, "name")
    assert len(kept.encode()) <= record.REASON_BYTES
    assert reason.startswith(kept) or "\udcff" in reason


def test_a_transaction_that_comes_behind_its_rollback_is_rolled_back() -> None:
    """A catch-up may bring a backup a transaction whose ROLLBACK stands in its log, and is not stable yet."""
    state = BrokerState()
    records = [record.encode_epoch(1, "b1", False, 0), record.encode_rollback(7, 1, "name", "refused")]
    state.taking.receive_batch(frame.encode_batch(1, 1, 2, 0, records))
    late = state.transactions[7] = TxBuffer(7)
    state.log.note_durable(2)
    state.log.apply_up_to(2)
    assert late.state is TxState.ROLLED_BACK
    assert not state.transactions
