"""A broker that has not restarted is refilled: a primary that had restarted has brought it up, and its EPOCH was cut away."""

from __future__ import annotations

from tests.simulator.scenario import NEVER_MS, calls, publish_confirmed, scenario
from understudy.broker.amqp.properties import encode_properties

TRANSIENT = encode_properties()


def test_what_was_deleted_unseen_goes_with_the_refill() -> None:
    """The deletion of what is transient is a hole in the log of a primary that has restarted.

    Who gets that log keeps what was deleted, until that primary's EPOCH ends it. But the EPOCH is cut away.
    """
    with scenario(backup_timeout_ms=1_000) as group:
        hand = group.hand()
        first = group.primary
        successor, other = group.backups
        hand(calls.declare, "kept")
        hand(calls.declare, "fleeting", durable=False)
        hand(calls.declare_exchange, "news", "direct", durable=False)
        hand(calls.declare_exchange, "paper", "direct", durable=False)
        hand(calls.bind, "kept", "paper", "a")
        group.run_ms(100)
        group.away(other)
        hand(calls.delete, "fleeting")
        hand(calls.delete_exchange, "news")
        hand(calls.unbind, "kept", "paper", "a")
        group.run_ms(100)
        group.cut_both(first, successor)
        first.crash(hard=False)
        first.start()
        group.until("it leads again", lambda: first.ha.primary is not None and first.ha.primary.epoch == 2)
        other.resume()
        group.until("the other is listed", lambda: other.name in group.members)
        assert group.queue(successor, "fleeting") is None
        group.crash(first)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.heal()
        group.ready()
        assert group.queue(other, "fleeting") is None
        assert other.node.state.topology.image.records() == successor.node.state.topology.image.records()


def test_an_exchange_of_the_same_name_is_the_one_that_was_refilled() -> None:
    """A refill overtakes the EPOCH that ends an exchange, and brings one of the same name and of another type."""
    with scenario(backup_timeout_ms=1_000, credit_bytes=2 << 10, kept_bytes=64 << 10) as group:
        hand = group.hand()
        first = group.primary
        successor, other = group.backups
        hand(calls.declare, "kept")
        hand(calls.declare_exchange, "news", "direct", durable=False)
        hand(calls.bind, "kept", "news", "a")
        group.run_ms(100)
        group.away(other)
        hand.publish("kept", b"a hole to be", properties=TRANSIENT)
        for _ in range(8):
            hand(publish_confirmed, "kept", bytes(1_500))
        group.run_ms(100)
        group.cut_both(first, successor)
        first.crash(hard=False)
        first.start()
        group.until("it leads again", lambda: first.ha.primary is not None and first.ha.primary.epoch == 2)
        group.hold_disk(other)
        other.resume()
        log = other.node.state.log
        group.until("some of its log is received", lambda: not log.whole_after(log.start))
        group.run_ms(100)
        assert log.epochs.newest == 1
        other.pause()
        group.mend()
        group.until("it is active", lambda: group.cluster.primary() is first)
        hand = group.hand()
        hand(calls.declare_exchange, "news", "fanout", durable=False)
        other.resume()
        group.run_ms(100)
        assert log.epochs.newest == 1
        group.free_disk(other)
        group.ready()
        assert other.node.state.topology.image.records() == successor.node.state.topology.image.records()
        assert type(other.node.state.topology.registry.vhost("/").exchanges["news"]).__name__ == "FanoutExchange"


def test_what_was_declared_and_not_applied_goes_if_it_was_deleted_unseen() -> None:
    """As the first, but the declarations are not stable yet when the broker is cut off that has received them."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hands = [group.hand() for _ in range(5)]
        hands[0](calls.declare, "kept")
        first = group.primary
        successor, other = group.backups
        group.run_ms(100)
        group.hold_disk(successor)
        hands[0].begin(calls.declare, "fleeting", durable=False)
        hands[1].begin(calls.declare_exchange, "news", "direct", durable=False)
        group.until("received", lambda: "news" in other.node.state.topology.registry.vhost("/").exchanges)
        group.run_ms(50)
        group.cut_both(first, other)
        hands[2].begin(calls.delete, "fleeting")
        hands[3].begin(calls.delete_exchange, "news")
        group.run_ms(50)
        hands[4].begin(calls.declare_exchange, "news", "fanout", durable=False)
        group.run_ms(100)
        group.cut_both(first, successor)
        first.crash(hard=False)
        first.start()
        group.promote(first)
        group.mend_both(first, other)
        group.until("its log is received", lambda: other.node.state.log.epochs.newest == 2)
        group.cut_both(first, other)
        group.crash(first)
        group.free_disk(successor)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.heal()
        group.ready()
        assert group.queue(other, "fleeting") is None
        assert other.node.state.topology.image.records() == successor.node.state.topology.image.records()
        assert type(other.node.state.topology.registry.vhost("/").exchanges["news"]).__name__ == "FanoutExchange"


def test_a_transaction_whose_events_came_in_another_order_is_not_refused() -> None:
    """Its events that journals keep came from a primary that had restarted, the others with the refill.

    Of a broker that has restarted itself nobody asks for more than the former.
    """
    _refilled_transaction(False)


def test_a_transaction_whose_transient_events_all_have_lost_is_not_refused() -> None:
    """As above; and who holds the whole transaction restarts, too, before it leads."""
    _refilled_transaction(True)


def _refilled_transaction(successor_restarts: bool) -> None:
    with scenario(backup_timeout_ms=1_000, kept_bytes=1) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.declare, "other")
        first = group.primary
        successor, other = group.backups
        group.away(other)
        hand(calls.tx_select)
        hand.publish("a", b"transient", properties=TRANSIENT)
        hand.publish("a", b"durable")
        group.until("both events are there", lambda: group.events(successor) == 2)
        group.move_the_kept_log_on()
        group.run_ms(100)
        group.hold_disk(first)
        hand.commit("tx")
        group.until("it is closed", lambda: group.prepare_durable(successor))
        group.cut_both(first, successor)
        first.crash(hard=True)  # what it has not synced is lost
        group.free_disk(first)
        first.start()
        group.promote(first)
        assert not group.has_prepare(first)
        other.resume()
        group.until("the other is listed", lambda: other.name in group.members)
        if successor_restarts:
            group.crash(successor, hard=False)
            successor.start()
        group.crash(first)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.heal()
        group.ready()
        group.everywhere("a", *([] if successor_restarts else [b"transient"]), b"durable")
