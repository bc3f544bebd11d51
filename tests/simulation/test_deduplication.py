"""A message that is published again with its id comes once, whoever dies meanwhile; and policies that differ make no log differ."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.knobs import Knobs
from tests.simulator.scenario import Hand, Program, Scenario, SimClient, calls, scenario
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.deduplication import ENABLED, HEADER, TTL
from understudy.broker.core.topology.policies import Policies, Policy

ONCE = {ENABLED: True, TTL: 3_600_000}
MOMENTS_MS = (0, 1, 2, 3, 4, 6, 9, 14)
"""After the first publish: from before its record is written until after every broker has applied it."""
SMALL_SEGMENTS = attrs.evolve(Knobs.draw(1).journal, segment_bytes=4 << 10)


def declare(group: Scenario, where: str, *, transactional: bool = False) -> Hand:
    """A client, a queue "q", and an exchange "x" that leads to it; ``where`` drops duplicates."""
    hand = group.hand(transactional=transactional)
    hand(calls.declare, "q", arguments=ONCE if where == "queue" else None)
    hand(calls.declare_exchange, "x", "direct", arguments=ONCE if where == "exchange" else None)
    hand(calls.bind, "q", "x", "q")
    return hand


def once(message_id: str) -> bytes:
    return encode_properties(delivery_mode=2, headers={HEADER: message_id})


@pytest.mark.parametrize("where", ["queue", "exchange"])
@pytest.mark.parametrize("how", ["plain", "transaction"])
@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_repetition_after_the_death_of_the_primary_comes_once(where: str, how: str, moment_ms: int) -> None:
    transactional = how == "transaction"
    with scenario() as group:
        hand = declare(group, where, transactional=transactional)
        if transactional:
            hand.publish("q", b"#1", exchange="x", properties=once("1"))
            hand.commit()
        else:
            hand.begin(publish, b"#1")
        group.run_ms(moment_ms)
        former = group.replace_primary(group.backups[0], hard=bool(moment_ms % 2))
        former.start()
        group.ready()
        again = group.hand(transactional=transactional)
        again.publish("q", b"#1", exchange="x", properties=once("1"))
        again.publish("q", b"#2", exchange="x", properties=once("2"))
        if transactional:
            again.committed()
        group.everywhere("q", b"#1", b"#2")


def publish(client: SimClient, body: bytes) -> Program:
    client.publish("x", "q", once("1"), body)
    yield from ()


@pytest.mark.parametrize("where", ["queue", "exchange"])
@pytest.mark.parametrize("how", ["restart", "from nothing", "power"])
def test_an_id_of_a_message_that_was_taken_is_remembered(where: str, how: str) -> None:
    """The record of the message has gone with its segment, or was in none that the new primary has seen."""
    with scenario(journal=SMALL_SEGMENTS, kept_bytes=1) as group:
        hand = declare(group, where)
        hand.publish("q", b"#1", exchange="x", properties=once("1"))
        assert hand.take("q") == [b"#1"]
        successor = group.backups[0]
        if how == "from nothing":
            group.caught_up_from_nothing(successor)
        else:
            hand(calls.declare, "other")
            for number in range(200):
                hand.publish("other", b"%d" % number)
            group.run_ms(1_000)
        if how == "power":
            for node in group.nodes:
                group.crash(node)
            for node in group.nodes:
                node.start()
            group.ready()
        else:
            former = group.replace_primary(successor)
            former.start()
            group.ready()
        again = group.hand()
        again.publish("q", b"#1", exchange="x", properties=once("1"))
        again.publish("q", b"#2", exchange="x", properties=once("2"))
        group.everywhere("q", b"#2")


def test_policies_that_differ_between_brokers() -> None:
    """Each broker has another file; what leaves the queue, leaves it everywhere, by the file of the primary."""
    with scenario() as group:
        limits = dict(zip([node.name for node in group.nodes], (3, 2, 1), strict=True))
        for node in group.nodes:
            policy = Policy(name="p", pattern="^q$", definition={"max-length": limits[node.name]})
            node.policies = Policies([policy])
            node.node.state.topology.registry.policies = node.policies
        hand = group.hand()
        hand(calls.declare, "q")
        for number in range(5):
            hand.publish("q", b"#%d" % number)
        most = limits[group.primary.name]
        group.everywhere("q", *[b"#%d" % number for number in range(5)][-most:])
        former = group.replace_primary(group.backups[-1])
        former.start()
        group.ready()
        most = min(most, limits[group.primary.name])
        group.everywhere("q", *[b"#%d" % number for number in range(5)][-most:])
        queue = group.queue(group.primary, "q")
        assert queue is not None
        assert str(queue.limits) == f"{limits[group.primary.name]} messages are the most"
