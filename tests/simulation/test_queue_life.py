"""Things that go by themselves, under replication: exclusive and auto-delete queues, queues and messages with a time to live."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.knobs import Knobs
from tests.simulator.scenario import (
    MS,
    PERSISTENT,
    Closed,
    Program,
    Scenario,
    SimClient,
    calls,
    publish_confirmed,
    scenario,
)
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits

WHICH = pytest.mark.parametrize("which", [0, 1])
GRACE_MS = 3_000
LIMITS = Limits(heartbeat_s=0, auto_delete_grace_ms=GRACE_MS)
"""The product's time of grace is a minute."""
SMALL_SEGMENTS = attrs.evolve(Knobs.draw(1).journal, segment_bytes=8 << 10, alignment_bytes=512)


def gone(group: Scenario, name: str) -> bool:
    return not any(group.queue(node, name) for node in group.nodes if node.up and not node.paused)


def there(group: Scenario, name: str) -> bool:
    return all(group.queue(node, name) for node in group.nodes if node.up and not node.paused)


@WHICH
def test_an_exclusive_queue_is_its_connection_s(which: int) -> None:
    """exclusive_queue, auto_delete_exclusive: refused to others, on no backup, gone with a failover; its name is free then."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "mine", exclusive=True, durable=False)
        hand(calls.declare, "mine too", exclusive=True, auto_delete=True, durable=False)
        hand.publish("mine", b"1")
        other = group.hand()
        with pytest.raises(Closed, match="cannot obtain exclusive access to locked queue 'mine'") as caught:
            other(calls.declare, "mine", passive=True)
        assert caught.value.code == 405
        group.run_ms(500)
        for node in group.backups:
            assert not {"mine", "mine too"} & {queue.name for queue in node.node.state.queues.values()}
        group.replace_primary(group.backups[which])
        after = group.hand()
        _, messages, _ = after(calls.declare, "mine", durable=True)
        assert messages == 0
        group.until("replicated now", lambda: there(group, "mine"))


@WHICH
def test_an_exclusive_consumer(which: int) -> None:
    """exclusive_queue: its queue is replicated all the same; a second consumer is refused, and welcome after the failover."""
    with scenario() as group:
        hand, other = group.hand(), group.hand()
        hand(calls.declare, "q")
        hand(calls.consume, "q", "only", exclusive=True)
        hand.publish("q", b"1")
        with pytest.raises(Closed) as caught:
            other(calls.consume, "q", "second")
        assert caught.value.code == 403
        group.everywhere("q", b"1")
        group.replace_primary(group.backups[which])
        after = group.hand()
        after(calls.consume, "q", "next")
        group.until("delivered", lambda: len(after.client.deliveries) == 1)
        assert after.client.deliveries[0][2][2] is True  # redelivered


@pytest.mark.parametrize("durable", [False, True])
def test_an_auto_delete_queue_goes_on_every_broker(durable: bool) -> None:
    """auto_delete_close, auto_delete_exclusive: with its last consumer, and the backups' links are none."""
    with scenario() as group:
        hand, other = group.hand(), group.hand()
        hand(calls.declare, "q", durable=durable, auto_delete=True)
        hand.publish("q", b"1", b"2")
        group.everywhere("q", b"1", b"2")
        hand(calls.consume, "q", "first")
        other(calls.consume, "q", "last")
        hand.go()
        group.run_ms(500)
        assert there(group, "q")
        other(calls.cancel, "last")
        group.until("gone everywhere", lambda: gone(group, "q"))


@WHICH
@pytest.mark.parametrize("durable", [False, True])
def test_an_auto_delete_queue_after_a_failover(durable: bool, which: int) -> None:
    """auto_delete_failover: it had a consumer, which did not come back. It goes after the time of grace, on every broker."""
    with scenario(limits=LIMITS) as group:
        hand = group.hand()
        hand(calls.declare, "q", durable=durable, auto_delete=True)
        hand.publish("q", b"1")
        hand(calls.consume, "q", "gone with the primary")
        group.run_ms(200)
        group.everywhere("q", b"1")
        group.replace_primary(group.backups[which])
        group.until("active", lambda: group.cluster.primary() is not None)
        group.run_ms(GRACE_MS - 500)
        assert there(group, "q")
        group.until("gone everywhere", lambda: gone(group, "q"), 2_000)


@WHICH
def test_an_auto_delete_queue_that_never_had_a_consumer_stays_after_a_failover(which: int) -> None:
    """AMQP 0-9-1, queue.declare: then it is not deleted. It went a minute after a failover, with confirmed messages."""
    with scenario(limits=LIMITS) as group:
        hand = group.hand()
        hand(calls.declare, "q", auto_delete=True)
        hand.publish("q", b"1")
        group.everywhere("q", b"1")
        group.replace_primary(group.backups[which])
        after = group.hand()
        after(calls.declare, "q", auto_delete=True)
        after.publish("q", b"2")
        group.run_ms(3 * GRACE_MS)
        group.everywhere("q", b"1", b"2")
        after(calls.consume, "q", "first")
        after(calls.cancel, "first")
        group.until("gone everywhere", lambda: gone(group, "q"), 1_000)


@WHICH
def test_the_grace_of_an_auto_delete_queue_begins_anew_when_a_client_declares_it(which: int) -> None:
    with scenario(limits=LIMITS) as group:
        hand = group.hand()
        hand(calls.declare, "q", auto_delete=True)
        hand(calls.consume, "q", "gone with the primary")
        group.run_ms(200)
        group.replace_primary(group.backups[which])
        after = group.hand()
        group.run_ms(GRACE_MS - 1_000)
        after(calls.declare, "q", auto_delete=True)
        group.run_ms(GRACE_MS - 500)
        assert there(group, "q")
        group.until("gone everywhere", lambda: gone(group, "q"), 2_000)


@pytest.mark.parametrize("by", ["restarts", "a catch-up"])
@pytest.mark.parametrize("used", [False, True])
def test_that_an_auto_delete_queue_or_exchange_was_used_is_known_after(by: str, used: bool) -> None:
    """Journals, their checkpoints and catch-ups tell of it as the log does."""
    with scenario(limits=LIMITS, kept_bytes=1, journal=SMALL_SEGMENTS) as group:
        hand = group.hand()
        hand(calls.declare, "q", durable=True, auto_delete=True)
        hand(calls.declare_exchange, "x", "direct", durable=True, auto_delete=True)
        if used:
            hand(calls.consume, "q", "goes with the primary")
            hand(calls.declare, "own", durable=False, exclusive=True)
            hand(calls.bind, "own", "x", "k")
        hand(calls.declare, "filler", durable=True)
        for _ in range(30):
            hand(publish_confirmed, "filler", bytes(1_000))
        hand(calls.purge, "filler")
        group.run_ms(1_000)
        assert all((node.journal.statistics().first_offset or 0) > 20 for node in group.nodes), (
            "checkpoints alone tell of it"
        )
        if by == "restarts":
            for node in group.nodes:
                group.crash(node)
            group.heal()
        else:
            successor = group.backups[0]
            group.caught_up_from_nothing(successor)
            group.replace_primary(successor)
        group.until("active", lambda: group.cluster.primary() is not None)
        assert there(group, "q")
        assert any(has_exchange(group, "x"))
        group.run_ms(GRACE_MS + 2_000)
        assert there(group, "q") is not used
        assert any(has_exchange(group, "x")) is not used


@WHICH
def test_an_auto_delete_queue_whose_consumer_comes_back(which: int) -> None:
    """auto_delete_failover: it lives as long as the consumer, and goes with it."""
    with scenario(limits=LIMITS) as group:
        hand = group.hand()
        hand(calls.declare, "q", auto_delete=True)
        hand(calls.consume, "q", "first")
        group.run_ms(200)
        group.replace_primary(group.backups[which])
        after = group.hand()
        after(calls.consume, "q", "again")
        group.run_ms(2 * GRACE_MS)
        assert there(group, "q")
        after(calls.cancel, "again")
        group.until("gone everywhere", lambda: gone(group, "q"), 1_000)


@WHICH
def test_an_auto_delete_queue_that_nobody_used_yet(which: int) -> None:
    """auto_delete_failover: without a failover it waits for its first consumer for ever."""
    with scenario(limits=LIMITS) as group:
        group.hand()(calls.declare, "q", auto_delete=True)
        group.run_ms(3 * GRACE_MS)
        assert there(group, "q")
        assert group.queue(group.backups[which], "q") is not None


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(calls.declare_exchange, "x", "direct", auto_delete=True)
        hand(calls.bind, "q", "x", "k")
        group.until("there", lambda: all(has_exchange(group, "x")))
        hand(calls.delete, "q")
        group.until("gone", lambda: not any(has_exchange(group, "x")))


def has_exchange(group: Scenario, name: str) -> list[bool]:
    return [name in node.node.state.topology.registry.vhost("/").exchanges for node in group.nodes if node.up]


@WHICH
def test_messages_expire_on_every_broker(which: int) -> None:
    """Deadlines are wall-clock times fixed at the enqueue: a failover neither lengthens nor shortens a message's life."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "ttl", arguments={"x-message-ttl": 8_000})
        hand(calls.declare, "plain")
        hand.publish("ttl", b"by the queue")
        hand.publish("plain", b"by itself", properties=encode_properties(delivery_mode=2, expiration="8000"))
        hand.publish("plain", b"stays")
        began_us = group.world.now_us
        group.everywhere("plain", b"by itself", b"stays")
        group.run_ms(2_000)
        group.replace_primary(group.backups[which])
        group.until("active", lambda: group.cluster.primary() is not None)
        group.world.run(began_us + 7_500 * MS, lambda: False)
        group.everywhere("ttl", b"by the queue")
        group.everywhere("plain", b"by itself", b"stays")
        group.world.run(began_us + 9_000 * MS, lambda: False)
        for node in group.nodes:
            if node.up:
                assert (group.bodies(node, "ttl"), group.bodies(node, "plain")) == ([], [b"stays"])


def test_bursts_that_expire_while_a_backup_joins() -> None:
    """expired: messages that live for a millisecond, and a backup that is caught up meanwhile. Nobody stumbles over them."""

    def bursts(client: SimClient) -> Program:
        properties = encode_properties(delivery_mode=2, expiration="1")
        for _ in range(60):
            for number in range(10):
                client.publish("", "burst", properties, b"%d" % number)
            client.publish("", "q", PERSISTENT, b"kept")
            yield from client.sleep(20 * MS)

    with scenario(kept_bytes=1, piece_bytes=300, pieces_in_flight=1) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(calls.declare, "burst")
        joiner = group.backups[0]
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        hand.publish("q", *[b"%d" % number for number in range(50)])
        order = hand.begin(bursts)
        group.run_ms(300)
        joiner.start()
        group.until("done", lambda: order.over)
        assert order.error is None
        group.ready()
        group.run_ms(1_000)
        group.everywhere("q", *[b"%d" % number for number in range(50)], *[b"kept"] * 60)
        group.everywhere("burst")
        assert group.world.happened["catch-up begins"] >= 1


@WHICH
def test_a_queue_that_nobody_uses_expires_after_a_failover(which: int) -> None:
    """x-expires begins anew with the new primary, which knows nothing of who used the queue before."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q", arguments={"x-expires": 4_000})
        hand.publish("q", b"1")
        group.run_ms(3_000)
        group.replace_primary(group.backups[which])
        group.until("active", lambda: group.cluster.primary() is not None)
        group.run_ms(3_500)
        assert there(group, "q")
        group.until("gone everywhere", lambda: gone(group, "q"), 2_000)


@WHICH
def test_a_purge_leaves_what_is_handed_out_and_what_is_undecided(which: int) -> None:
    """The unacknowledged and the uncommitted are not purged, and both are there after a failover."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"1", b"2", b"3")
        tx = group.hand(transactional=True)
        tx.publish("q", b"undecided")
        holder = group.hand()
        assert holder(calls.get, "q")[4] == b"1"
        assert hand(calls.purge, "q") == 2
        tx.committed()
        group.everywhere("q", b"1", b"undecided")
        group.replace_primary(group.backups[which])
        after = group.hand()
        assert after.take("q", 2) == [b"1", b"undecided"]


@WHICH
def test_what_was_handed_out_and_not_acknowledged(which: int) -> None:
    """backup_acquired: on a backup that was there and on one that is caught up; it comes again, marked as redelivered."""
    with scenario(kept_bytes=1) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", *[b"%d" % number for number in range(5)])
        hand(calls.consume, "q", "holds")
        joiner = group.backups[which]
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        group.move_the_kept_log_on()
        assert len(hand.client.deliveries) == 5
        calls.ack(hand.client, hand.client.deliveries[1][2][1])
        hand(calls.qos, 0)
        joiner.start()
        group.ready()
        group.everywhere("q", b"0", b"2", b"3", b"4")
        group.replace_primary(joiner)
        after = group.hand()
        after(calls.consume, "q", "again")
        group.until("delivered", lambda: len(after.client.deliveries) == 4)
        assert [(event[4], event[2][2]) for event in after.client.deliveries] == [
            (body, True) for body in (b"0", b"2", b"3", b"4")
        ]
        assert after.client.deliveries[0][1] == BASIC_DELIVER
