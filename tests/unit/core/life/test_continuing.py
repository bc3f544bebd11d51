"""A core that goes on where another one ends holds what a recovery from that one's journal would."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, HeldJournal, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    CONFIRM_SELECT,
    DTX_END,
    DTX_PREPARE,
    DTX_SELECT,
    DTX_START,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.life import continuing
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.digest import queue_digests
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame


class KeptJournal(HeldJournal):
    """Keeps the frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.frames.append(frame)


class HandedOver:
    """A broker that has answered everything and closes no batch any more, as one that has named its successor."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.journal = KeptJournal()
        self.core = Core(limits, journal=self.journal)
        self.client = self.core.client(channels=3)
        self.other = self.core.client()

    @property
    def state(self) -> BrokerState:
        return self.core.node.state

    def freeze(self) -> None:
        self.core.sync()
        self.core.sync()
        assert self.state.log.applied == self.state.log.closed_end
        self.core.broker.batch.frozen = True

    def recovered(self) -> BrokerState:
        """The state that the journal gives, when it is known how far it is stable."""
        state = BrokerState()
        recovery = Recovery(state, None, None)
        for each in self.journal.frames:
            recovery.on_batch(frame.decode_batch_header(each, 0), bytes(each))
        state.applying.deciding = True  # its COMMITs may stand in the batch that was not closed
        state.log.apply_up_to(self.state.log.closed_end)
        state.log.cut(self.state.log.closed_end)
        state.applying.deciding = False
        recovery.finish()
        return state

    def continued(self) -> BrokerState:
        assert continuing.why_not(self.state) == ""
        node = BrokerNode("b1", Limits(), bytes)
        node.continue_from(self.core.node)
        node.recovery.finish()
        return node.state


def shown(state: BrokerState) -> dict[str, Any]:
    """All that two states of one log have in common."""
    log = state.log
    return {
        "log": (
            log.start,
            log.end,
            log.closed_end,
            log.applied,
            log.stable,
            log.durable,
            log.epoch,
            log.epochs.starts(),
        ),
        "pending": list(log.pending),
        "queues": {
            queue.id: (
                queue.name,
                [
                    (entry.id, entry.message.content(), entry.deadline_ms, entry.state)
                    for entry in queue.entries.values()
                ],
                (queue.uncommitted, queue.acquired, queue.last_id, queue.had_consumer, queue.adopted, queue.deleted),
                (len(queue.consumers), queue.active, len(queue.ready), len(queue.returned)),
            )
            for queue in state.queues.values()
        },
        "transactions": {
            tx.tx_id: (
                [(at, message and message.content(), content) for at, message, content in tx.events],
                (tx.first_offset, tx.logged_events, tx.digest, tx.durable_events, tx.durable_digest, tx.size_bytes),
                (
                    tx.state,
                    tx.branch,
                    tx.prepare_offset,
                    tx.outcome_offset,
                    tx.name,
                    tx.owner,
                    tx._marks and tx._marks[-1][:4],
                ),
                tx.own,
                tx.parts
                and (
                    {
                        at: (body.number, body.offset, bytes(body.octets()), start, stop)
                        for at, (body, start, stop) in tx.parts.places.items()
                    },
                    {number: bytes(body.octets()) for number, body in tx.parts._bodies.items()},
                ),
            )
            for tx in state.transactions.values()
        },
        "image": state.topology.image.records(),
        "registry": {
            name: sorted(
                (exchange.name, len(exchange.bindings), exchange.had_binding) for exchange in vhost.exchanges.values()
            )
            for name, vhost in state.topology.registry.vhosts.items()
        },
        "others": (
            state.applying.csn,
            state.applying.owed,
            state.applying.completions,
            state.applying.deciding,
            state.oldest_live_offset(),
        ),
        "outcomes": sorted(state.applying.outcomes.encode()),
    }


@pytest.fixture
def primary() -> HandedOver:
    return HandedOver()


def declare(client: Client, name: str, *, durable: bool = True, exclusive: bool = False) -> None:
    client.method(QUEUE_DECLARE, name, False, durable, exclusive, False, False, {})
    client.core.sync()


def assert_same(primary: HandedOver) -> BrokerState:
    continued = primary.continued()
    assert shown(continued) == shown(primary.recovered())
    return continued


def test_queues_exchanges_and_messages(primary: HandedOver) -> None:
    client = primary.client
    declare(client, "q")
    declare(client, "passing", durable=False)
    declare(client, "own", durable=False, exclusive=True)
    client.method(EXCHANGE_DECLARE, "x", "direct", False, True, True, False, False, {})
    primary.core.sync()
    client.method(QUEUE_BIND, "q", "x", "k", False, {})
    client.method(QUEUE_BIND, "own", "x", "k", False, {})
    client.send(*[publish(queue, b"%d" % i) for i in range(5) for queue in ("q", "passing", "own")])
    client.method(BASIC_GET, "q", False)
    primary.freeze()
    continued = assert_same(primary)
    [queue] = continued.queues.values()
    assert queue.depth == 5


def test_what_stands_in_the_open_batch_was_sent_to_nobody(primary: HandedOver) -> None:
    client, other = primary.client, primary.other
    declare(client, "q")
    declare(client, "gone")
    client.send(*[publish("q", b"%d" % i) for i in range(4)], publish("gone", b"kept"))
    other.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    primary.freeze()
    before = shown(primary.recovered())
    client.publish("q", b"late")
    other.send(encode_method(1, BASIC_ACK, 0, True))
    client.method(QUEUE_DELETE, "gone", False, False, False)
    client.method(QUEUE_DECLARE, "late", False, True, False, False, False, {}, channel=2)
    assert primary.state.log.end > primary.state.log.closed_end
    continued = assert_same(primary)
    assert shown(continued) == before
    assert sorted((queue.name, queue.depth) for queue in continued.queues.values()) == [("gone", 1), ("q", 4)]


def test_transactions_that_are_open_or_prepared(primary: HandedOver) -> None:
    client = primary.client
    declare(client, "q")
    declare(client, "in")
    client.send(*[publish("in", b"%d" % i) for i in range(6)])
    primary.core.sync()
    client.method(TX_SELECT)
    client.method(BASIC_GET, "in", False)
    client.send(encode_method(1, BASIC_ACK, 0, True), publish("q", b"open"))
    client.method(DTX_SELECT, channel=2)
    client.method(DTX_START, 1, b"g", b"b", False, False, channel=2)
    client.method(BASIC_GET, "in", False, channel=2)
    client.send(encode_method(2, BASIC_ACK, 0, True), publish("q", b"branch", channel=2))
    client.method(DTX_END, 1, b"g", b"b", False, False, channel=2)
    primary.core.sync()
    client.method(DTX_PREPARE, 1, b"g", b"b", channel=2)
    primary.other.method(TX_SELECT)
    primary.other.publish("q", b"committed")
    primary.other.method(TX_COMMIT)
    primary.freeze()
    assert "tx.commit-ok" in primary.other.heard()
    assert "dtx.prepare-ok" in client.heard()
    continued = assert_same(primary)
    assert len(continued.transactions) == 2
    client.connection.force_close("NOT_PRIMARY", "it has handed over")  # rolls back the open one, in the open batch
    client.connection.lost("gone")
    assert shown(primary.continued()) == shown(primary.recovered())


def test_bodies_in_parts() -> None:
    """Some parts stand in the log, or all, or all and the message; a confirmed publish is a transaction of its own."""
    primary = HandedOver(Limits(parted_bytes=100, part_bytes=10, parts_in_flight_bytes=20))
    client, other = primary.client, primary.other
    declare(client, "q")
    client.method(TX_SELECT)
    other.method(CONFIRM_SELECT, False)
    client.send(publish("q", b"small"), publish("q", bytes(range(105))))
    other.publish("q", bytes(range(100, 205)))
    for _ in range(12):
        primary.core.sync()
        state, end = primary.state, primary.state.log.closed_end
        held = BrokerState()
        recovery = Recovery(held, None, None)
        for each in primary.journal.frames:
            recovery.on_batch(frame.decode_batch_header(each, 0), bytes(each))
        there = BrokerState()
        there.log.restart_at(end, [])
        for tx in state.transactions.values():
            if tx.first_offset and not tx.prepare_offset:  # a hand-over waits until that is decided
                there.transactions[tx.tx_id] = tx.continued(end)
        wanted = shown(held)["transactions"]
        assert shown(there)["transactions"] == {tx_id: wanted[tx_id] for tx_id in there.transactions}
    primary.freeze()
    continued = assert_same(primary)
    [tx] = continued.transactions.values()
    assert tx.parts is not None
    assert [message.content() for message in tx.messages()] == [b"small", bytes(range(105))]


def test_an_event_that_was_not_sent_leaves_it_to_the_journal(primary: HandedOver) -> None:
    client = primary.client
    declare(client, "q")
    client.method(TX_SELECT)
    client.publish("q", b"1")
    primary.freeze()
    assert continuing.why_not(primary.state) == ""
    client.publish("q", b"2")
    assert "has events that were not sent" in continuing.why_not(primary.state)


def test_what_is_not_applied_leaves_it_to_the_journal(primary: HandedOver) -> None:
    declare(primary.client, "q")
    primary.client.publish("q", b"1")
    assert "it is applied up to" in continuing.why_not(primary.state)


def test_clients_that_are_late_change_nothing_in_the_new_core(primary: HandedOver) -> None:
    """Their channels end after the new core has begun: messages go back to queues of the old one."""
    client = primary.client
    declare(client, "q")
    client.send(*[publish("q", b"%d" % i) for i in range(4)])
    client.method(BASIC_CONSUME, "q", "tag", False, False, False, False, {})
    primary.freeze()
    continued = assert_same(primary)
    before = shown(continued)
    client.connection.lost("gone")
    assert shown(continued) == before
    assert queue_digests(continued) == queue_digests(primary.recovered())
