"""Queues, exchanges and bindings that change while a backup is away: it comes back to what is, not to what was.

Each is done three ways: the backup was stopped and resumes the log; the kept log does not reach back to it and it is caught up; or
it has restarted with all its data and is caught up. At the end it leads, so that clients see what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulator.scenario import PERSISTENT, Closed, Hand, Program, Scenario, SimClient, SimNode, calls, scenario
from understudy.broker.amqp.methods import EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, encode_method

WAYS = ("resume", "catch-up", "restart and catch-up")


class Absence:
    """One backup that is away and comes back."""

    def __init__(self, group: Scenario, way: str) -> None:
        self.group = group
        self.way = way
        self.node: SimNode = group.backups[0]
        self.hand: Hand = group.hand()
        self._catch_ups = 0

    def begin(self) -> None:
        group = self.group
        group.run_ms(200)
        if self.way == "restart and catch-up":
            group.crash(self.node)
            group.expelled(self.node)
        else:
            group.away(self.node)
        self._catch_ups = group.world.happened["catch-up begins"]

    def end(self) -> None:
        """The broker is back, ready, and then leads; the hand finds it."""
        group = self.group
        if self.way != "resume":
            group.move_the_kept_log_on()
        self.node.resume()
        self.node.start_if_down()
        group.ready()
        assert group.world.happened["catch-up begins"] - self._catch_ups == (self.way != "resume")
        group.replace_primary(self.node)
        self.hand.go()
        self.hand = group.hand()


@pytest.fixture(params=WAYS)
def absence(request: pytest.FixtureRequest) -> Iterator[Absence]:
    with scenario(kept_bytes=1 << 20 if request.param == "resume" else 1) as group:
        yield Absence(group, request.param)


def publish(client: SimClient, exchange: str, key: str, body: bytes) -> Program:
    """Publish as mandatory; returns whether it was routed."""
    client.returned.clear()
    client.publish(exchange, key, PERSISTENT, body, mandatory=True)
    yield from calls.qos(client, 0)
    return not client.returned


def declare_with_alternate(client: SimClient, name: str, alternate: str) -> Program:
    arguments = {"alternate-exchange": alternate}
    frames = encode_method(1, EXCHANGE_DECLARE, name, "direct", False, True, False, False, False, arguments)
    yield from client.call(frames, EXCHANGE_DECLARE_OK)


def is_missing(hand: Hand, queue: str) -> bool:
    """The broker has no queue of that name (the channel is closed, and the hand connects anew)."""
    declared = hand.begin(calls.declare, queue, passive=True)
    hand(SimClient.connect)
    assert declared.error is None or (isinstance(declared.error, Closed) and declared.error.code == 404)
    return declared.error is not None


def test_a_deleted_queue_is_gone(absence: Absence) -> None:
    """delete_missing_response, delete_qpid_4285: its messages and bindings too."""
    hand, group = absence.hand, absence.group
    hand(calls.declare, "kept")
    hand(calls.declare, "gone")
    hand(calls.bind, "gone", "amq.direct", "k")
    hand.publish("gone", b"1", b"2")
    hand.publish("kept", b"3")
    group.everywhere("gone", b"1", b"2")
    absence.begin()
    hand(calls.delete, "gone")
    assert group.queue(absence.node, "gone") is not None
    absence.end()
    assert not any(group.queue(node, "gone") for node in group.nodes if node.up)
    assert is_missing(absence.hand, "gone")
    assert not absence.hand(publish, "amq.direct", "k", b"nowhere")
    group.everywhere("kept", b"3")


def test_a_queue_deleted_and_declared_again_is_another_one(absence: Absence) -> None:
    """missed_recreate: same name, other content, other binding; nothing of the old one comes back."""
    hand, group = absence.hand, absence.group
    hand(calls.declare, "q")
    hand(calls.bind, "q", "amq.direct", "old")
    hand.publish("q", b"old 1", b"old 2", b"old 3")
    group.everywhere("q", b"old 1", b"old 2", b"old 3")
    absence.begin()
    hand(calls.delete, "q")
    hand(calls.declare, "q", arguments={"x-message-ttl": 10_000_000})
    hand(calls.bind, "q", "amq.direct", "new")
    hand.publish("q", b"new 1")
    absence.end()
    hand = absence.hand
    group.everywhere("q", b"new 1")
    assert not hand(publish, "amq.direct", "old", b"nowhere")
    assert hand(publish, "amq.direct", "new", b"new 2")
    group.everywhere("q", b"new 1", b"new 2")
    hand(calls.declare, "q", arguments={"x-message-ttl": 10_000_000})
    with pytest.raises(Closed, match="inequivalent arg"):
        hand(calls.declare, "q")


def test_a_queue_declared_again_with_another_durability(absence: Absence) -> None:
    hand, group = absence.hand, absence.group
    for name, durable in (("a", True), ("b", False)):
        hand(calls.declare, name, durable=durable)
        hand.publish(name, b"old")
    group.everywhere("b", b"old")
    absence.begin()
    for name, durable in (("a", False), ("b", True)):
        hand(calls.delete, name)
        hand(calls.declare, name, durable=durable)
        hand.publish(name, b"new")
    absence.end()
    for name, durable in (("a", False), ("b", True)):
        group.everywhere(name, b"new")
        absence.hand(calls.declare, name, durable=durable)


def test_an_exchange_deleted_and_declared_again(absence: Absence) -> None:
    """missed_recreate: of another type, without the old bindings."""
    hand, group = absence.hand, absence.group
    hand(calls.declare, "q")
    hand(calls.declare_exchange, "x", "direct")
    hand(calls.bind, "q", "x", "k")
    assert hand(publish, "x", "k", b"1")
    group.everywhere("q", b"1")
    absence.begin()
    hand(calls.delete_exchange, "x")
    hand(calls.declare_exchange, "x", "topic")
    hand(calls.bind, "q", "x", "a.*")
    absence.end()
    hand = absence.hand
    hand(calls.declare_exchange, "x", "topic")
    assert not hand(publish, "x", "k", b"nowhere")
    assert hand(publish, "x", "a.b", b"2")
    group.everywhere("q", b"1", b"2")


def test_bindings_that_came_and_went(absence: Absence) -> None:
    """replication, catchup_store: bindings to declared and to built-in exchanges, with and without arguments."""
    hand, group = absence.hand, absence.group
    hand(calls.declare, "q")
    hand(calls.declare_exchange, "x", "topic")
    hand(calls.declare_exchange, "heads", "headers")
    hand(calls.bind, "q", "x", "old.#")
    hand(calls.bind, "q", "amq.direct", "old")
    hand(calls.bind, "q", "heads", "", {"x-match": "any", "old": 1})
    group.run_ms(100)
    absence.begin()
    hand(calls.unbind, "q", "x", "old.#")
    hand(calls.unbind, "q", "amq.direct", "old")
    hand(calls.unbind, "q", "heads", "", {"x-match": "any", "old": 1})
    hand(calls.bind, "q", "x", "new.#")
    hand(calls.bind, "q", "amq.fanout", "")
    hand(calls.delete_exchange, "heads")
    absence.end()
    hand = absence.hand
    assert not hand(publish, "x", "old.a", b"nowhere")
    assert not hand(publish, "amq.direct", "old", b"nowhere")
    assert hand(publish, "x", "new.a", b"1")
    assert hand(publish, "amq.fanout", "", b"2")
    group.everywhere("q", b"1", b"2")


def test_an_alternate_exchange_works_on_whoever_leads(absence: Absence) -> None:
    """alternate_exchange: declared before and during the absence; an alternate that is named may be deleted, as in RabbitMQ."""
    hand, group = absence.hand, absence.group
    for queue in ("spilt", "taken"):
        hand(calls.declare, queue)
    hand(calls.declare_exchange, "spill", "fanout")
    hand(declare_with_alternate, "before", "spill")
    hand(calls.bind, "spilt", "spill", "")
    absence.begin()
    hand(declare_with_alternate, "during", "spill")
    hand(calls.bind, "taken", "during", "known")
    absence.end()
    for number in (1, 2):  # by the backup that was away, then by the next one
        hand = absence.hand
        assert hand(publish, "before", "unknown", b"b%d" % number)
        assert hand(publish, "during", "unknown", b"d%d" % number)
        assert hand(publish, "during", "known", b"k%d" % number)
        if number == 1:
            group.everywhere("spilt", b"b1", b"d1")
            group.heal()
            group.ready()
            group.replace_primary(group.backups[1])
            hand.go()
            absence.hand = group.hand()
    group.everywhere("spilt", b"b1", b"d1", b"b2", b"d2")
    group.everywhere("taken", b"k1", b"k2")
    absence.hand(calls.delete_exchange, "spill")
    assert not absence.hand(publish, "before", "unknown", b"nowhere")


def test_what_was_purged_and_consumed(absence: Absence) -> None:
    """send_receive, catchup_store: it drops what left while it was away, and only that."""
    hand, group = absence.hand, absence.group
    for queue in ("purged", "drained", "half"):
        hand(calls.declare, queue)
        hand.publish(queue, *[b"%d" % number for number in range(6)])
    group.everywhere("half", *[b"%d" % number for number in range(6)])
    absence.begin()
    assert hand(calls.purge, "purged") == 6
    hand.publish("purged", b"after")
    hand.take("drained", 6)
    hand.take("half", 3)
    hand.publish("half", b"6")
    absence.end()
    group.everywhere("purged", b"after")
    group.everywhere("drained")
    group.everywhere("half", b"3", b"4", b"5", b"6")


def test_a_queue_deleted_under_an_open_transaction(absence: Absence) -> None:
    """The deleted queue and its namesake are two: messages meant for the first do not come into the second (P-45)."""
    hand, group = absence.hand, absence.group
    hand(calls.declare, "q")
    hand(calls.declare, "other")
    tx = group.hand(transactional=True)
    tx.publish("q", b"for the old q")
    tx.publish("other", b"for other")
    group.until("mirrored", lambda: all(group.events(node) == 2 for node in group.nodes))
    absence.begin()
    hand(calls.delete, "q")
    hand(calls.declare, "q")
    hand.publish("q", b"new")
    absence.node.resume()
    absence.node.start_if_down()
    group.ready()
    tx.committed()
    group.everywhere("q", b"new")
    group.everywhere("other", b"for other")
    group.replace_primary(absence.node)
    group.everywhere("q", b"new")
    group.everywhere("other", b"for other")


def test_names_that_many_declare_and_delete_at_once() -> None:
    """qmf_order: clients declare, bind and delete the same names as fast as they can; every broker ends with the same."""

    def worker(client: SimClient) -> Program:
        for number in range(15):
            name = f"q{client.rng.randrange(3)}"
            yield from calls.declare(client, name, durable=True)
            client.publish("", name, PERSISTENT, b"%d" % number)
            if client.rng.random() < 0.7:
                yield from calls.delete(client, name)

    with scenario() as group:
        hands = [group.hand() for _ in range(5)]
        orders = [hand.begin(worker) for hand in hands]
        group.until("done", lambda: all(order.over for order in orders))
        assert not any(order.error for order in orders)
        group.ready()
        group.run_ms(500)
        first, *others = [
            {queue.id: queue.name for queue in node.node.state.topology.registry.queues()} for node in group.nodes
        ]
        assert others == [first, first]
