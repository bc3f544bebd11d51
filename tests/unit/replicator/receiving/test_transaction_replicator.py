"""TransactionReplicator: a transaction's buffer from pieces, in whatever order they come."""

from __future__ import annotations

import gc
import random
from time import process_time

import pytest

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.record import Prepare
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator.receiving.transaction_replicator import TransactionReplicator

TX = 1 << 40 | 1


def events(count: int) -> list[tuple[int, bytes]]:
    """Enqueue events of one transaction, at every second offset."""
    made = []
    for place in range(count):
        message = Message("", "q", b"\x00\x00", b"%d" % place, True)
        head = record.encode_tx_enqueue(TX, [(5, place, 0)], message, False)
        made.append((2 * place + 1, head + message.properties + message.content()))
    return made


def replicator(state: BrokerState) -> TransactionReplicator:
    tx_queue = Queue(TX, "", f"tx:{TX}", durable=True, auto_delete=True, arguments={}, live=state.live)
    return TransactionReplicator(state, TX, tx_queue)


def bodies(state: BrokerState) -> list[int]:
    return [int(message.content()) for message in state.transactions[TX].messages()]


def pieces(records: list[tuple[int, bytes]], size: int) -> list[list[tuple[int, bytes]]]:
    return [records[at : at + size] for at in range(0, len(records), size)]


def test_pieces_in_order() -> None:
    state = BrokerState()
    for piece in pieces(events(50), 7):
        replicator(state).take_records(piece)
    assert bodies(state) == list(range(50))


@pytest.mark.parametrize("seed", range(5))
def test_pieces_between_what_is_held(seed: int) -> None:
    """A refill: some events are here, some come, some come that are here."""
    chance = random.Random(seed)
    records = events(60)
    state = BrokerState()
    for offset, raw in records:
        if chance.random() < 0.5:
            state.taking.take_record(raw, offset)
    for piece in pieces(records, 7):
        replicator(state).take_records(piece)
    assert bodies(state) == list(range(60))
    assert state.transactions[TX].logged_events == 60


def test_a_piece_costs_no_more_late_than_early() -> None:
    """With a pass over the whole transaction for each piece, 100,000 events in 4,000 pieces kept a backup busy for 20 s."""
    state = BrokerState()
    records = pieces(events(60_000), 10)
    spent = []
    gc.disable()  # a collection looks at all that the other tests have left, too
    try:
        for part in (records[:1_000], records[1_000:-1_000], records[-1_000:]):
            begun = process_time()
            for piece in part:
                replicator(state).take_records(piece)
            spent.append(process_time() - begun)
    finally:
        gc.enable()
    assert spent[2] < 5 * spent[0], spent


@pytest.mark.parametrize("first", range(5))
def test_two_events_that_change_places_are_refused(first: int) -> None:
    """PREPARE states a digest of the order over all queues, not only of what there is (H-18)."""
    heads = [record.encode_tx_dequeue(TX, [(queue, (number,))]) for number in range(2) for queue in (5, 6, 7)]

    def holding(order: list[int]) -> TxBuffer:
        tx = TxBuffer(TX)
        for offset, at in enumerate(order, start=1):
            tx.add(offset, None, [], heads[at], False)
        return tx

    stated = holding([0, 1, 2, 3, 4, 5])
    prepare = Prepare(TX, 1, "", 0, {}, 6, stated.digest, 6, stated.durable_digest)
    assert stated.missing_for(prepare, may_lack_transients=False) == ""
    order = [0, 1, 2, 3, 4, 5]
    order[first : first + 2] = order[first + 1], order[first]
    for may_lack in (False, True):
        assert "digest differs" in holding(order).missing_for(prepare, may_lack_transients=may_lack)


def test_a_backup_counts_the_places_that_records_state() -> None:
    """A new primary commits a branch by these counts: events that were cut do not count, those that an EPOCH ended do."""
    state = BrokerState()
    for place, queue in enumerate((5, 5, 6, 5)):
        message = Message("", "q", b"\x00\x00", b"m", True)
        raw = record.encode_tx_enqueue(TX, [(queue, place, 0)], message, place == 1)
        state.taking.take_record(raw + message.properties + message.content(), place + 1)
    tx = state.transactions[TX]
    assert tx.enqueue_counts() == {5: 4, 6: 3}
    tx.cut(3)
    assert tx.enqueue_counts() == {5: 2, 6: 3}
    assert len(tx.drop_transients(3)) == 1
    assert tx.enqueue_counts() == {5: 2, 6: 3}
