"""A primary that has restarted holds its transient messages again, by a refill, but not the records that brought them.

A backup that was away and has not restarted gets no refill. So it must not be brought up by that log.
"""

from __future__ import annotations

import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import (
    NEVER_MS,
    Group,
    Program,
    Scenario,
    SimClient,
    SimNode,
    calls,
    publish_confirmed,
    scenario,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.ha.status import BrokerStatus

TRANSIENT = encode_properties()


def publish(client: SimClient) -> Program:
    yield from client.connect()
    yield from calls.declare(client, "kept")
    yield from calls.tx_select(client)
    for number in range(5):
        client.publish("", "kept", TRANSIENT, b"%d" % number)
    yield from calls.commit(client)


def publish_and_let_lead(group: Group, first: SimNode, other: SimNode) -> None:
    """``other``, which has restarted since the messages came and holds them by a refill, leads instead of ``first``."""
    group.do(publish)
    other.crash(hard=False)
    other.start()
    group.until("it is listed", lambda: other.name in group.members and other.ha.status.value == "ready")
    group.run_ms(2_000)
    first.crash(hard=False)
    store = group.cluster.store
    group.until("it leads", lambda: store.group is not None and store.group.primary == other.name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backup_that_was_away_is_caught_up_by_ids(seed: int) -> None:
    group = Group(seed)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        away, other = (node for node in group.cluster.nodes.values() if node is not first)
        away.pause()
        group.until("it is expelled", lambda: away.name not in group.members)
        publish_and_let_lead(group, first, other)
        away.resume()
        group.until("it is linked", lambda: away.ha.replicator.linked)
        first.start()
        group.check()
        for node in group.cluster.nodes.values():
            (queue,) = [queue for queue in node.node.state.queues.values() if queue.name == "kept"]
            assert queue.depth == 5, node.name


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_broker_that_lost_its_data_does_not_resume_it(seed: int) -> None:
    """A refill would bring it the messages before the log declares their queue (seed 338 of `test_seeds`)."""
    group = Group(seed)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        lost, other = (node for node in group.cluster.nodes.values() if node is not first)
        lost.crash(hard=False)
        lost.wipe()
        group.until("it is expelled", lambda: lost.name not in group.members)
        publish_and_let_lead(group, first, other)
        first.start()
        group.until("it is active", lambda: other.ha.status.value == "active")
        before = group.cluster.world.happened["catch-up begins"]
        lost.start()
        group.until("it is ready", lambda: lost.name in group.members and lost.ha.status.value == "ready")
        group.check()
        for node in group.cluster.nodes.values():
            (queue,) = [queue for queue in node.node.state.queues.values() if queue.name == "kept"]
            assert queue.depth == 5, node.name
        assert group.cluster.world.happened["catch-up begins"] == before + 1


@pytest.mark.parametrize("how", ["caught up", "resumed"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_primary_without_them_took_away_comes_back_when_its_epoch_is_cut(seed: int, how: str) -> None:
    """A primary that has restarted ends all transient messages with its EPOCH. It brings a backup up, which lets go of those that
    it has, or gets no others, and dies before that record is stable. Who leads next has not restarted, and holds all of them.

    Found by seeds 3189 and 3773, when `unheard-add` had come to the faults.
    """
    with scenario(seed, backup_timeout_ms=1_000, kept_bytes=1) as group:
        first = group.primary
        successor, other = group.backups
        group.do(publish)
        group.run_ms(100)
        group.away(other)
        group.do(publish)
        if how == "caught up":
            group.move_the_kept_log_on()
        group.run_ms(100)
        group.cut_both(first, successor)
        first.crash(hard=False)
        first.start()
        group.until("it leads again", lambda: first.ha.primary is not None and first.ha.primary.epoch == 2)
        other.resume()
        group.until("the other is listed", lambda: other.name in group.members)
        assert first.ha.status is BrokerStatus.RECOVERING
        assert len(group.bodies(other, "kept")) < 10
        group.crash(first)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.run_ms(500)
        for node in (successor, other):
            assert group.bodies(node, "kept") == 2 * [b"%d" % number for number in range(5)], node.name


def test_a_joiner_is_not_held_to_what_the_primary_has_lost_itself() -> None:
    """A primary restarts with a closed transaction, without its transient events, and its only copy has lost its data.

    Below the minimum nothing is decided before somebody joins, and who joins votes on that transaction: a no for what nobody
    can send would keep it out for ever. Found by seed 2111.
    """
    with scenario(brokers=2, min_insync=2, kept_bytes=1) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.declare, "other")
        hand(calls.tx_select)
        primary, (copy,) = group.primary, group.backups
        hand.publish("a", b"transient", properties=TRANSIENT)
        hand.publish("a", b"durable")
        group.until("both events are there", lambda: group.events(copy) == 2)
        group.hand()(publish_confirmed, "other", b"what they stand before in the log")
        group.hold_disk(copy)
        hand.commit("tx")
        group.until("it is closed", lambda: group.prepare_durable(primary))
        group.crash(copy, hard=False)
        copy.wipe()
        copy.start()
        group.until("it is removed", lambda: group.members == (primary.name,))
        primary.crash(hard=False)
        primary.start()
        group.until("it leads again", lambda: primary.ha.primary is not None and primary.ha.primary.epoch == 2)
        assert group.events(primary) == 1
        group.until("the copy is listed", lambda: copy.name in group.members)
        group.ready()
        group.everywhere("a", b"durable")


def test_who_was_brought_up_without_them_says_so_when_it_leads() -> None:
    """A primary that has restarted sends a closed transaction without its transient events, and dies before its EPOCH, which
    ends them all, is received. Who got that leads next, and the third broker holds the whole transaction.
    """
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        first = group.primary
        successor, other = group.backups
        group.run_ms(100)
        group.cut(first, successor)
        hand.publish("a", b"transient", properties=TRANSIENT)
        hand.publish("a", b"durable")
        hand.commit("tx")
        group.until("two have it", lambda: group.prepare_durable(first) and group.prepare_durable(other))
        assert group.transaction(successor) is None
        first.crash(hard=False)
        first.start()
        group.promote(first)
        group.cut_both(first, other)
        group.cluster.network.mend({(first.name, successor.name)})
        group.until("the successor has it", lambda: group.has_prepare(successor))
        group.cut_both(first, successor)
        group.crash(first)
        assert successor.node.state.log.epochs.newest == 1
        assert group.events(successor) == 1
        assert group.events(other) == 2
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.heal()
        group.ready()
        group.everywhere("a", b"durable")


def test_holes_that_were_cut_away_count_no_more() -> None:
    """A broker whose log had holes that were cut away leads, and the only other member lacks what stands at their places now."""
    with scenario(backup_timeout_ms=NEVER_MS, kept_bytes=64 << 10) as group:
        hand = group.hand()
        first = group.primary
        successor, other = group.backups
        hand(calls.declare, "kept")
        group.run_ms(100)
        group.cut_both(first, successor)
        group.cut_both(first, other)
        hand(calls.tx_select)
        for _ in range(20):
            hand.publish("kept", b"on one broker alone", properties=TRANSIENT)
        group.run_ms(100)
        first.crash(hard=False)
        first.start()
        group.promote(first)
        group.mend_both(first, other)
        group.until("its log is received", lambda: other.node.state.log.epochs.newest == 2)
        group.cut_both(first, other)
        group.crash(first)
        group.promote(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.mend()
        first.start()
        group.ready()
        group.cut(successor, first)
        hand = group.hand()
        hand(calls.tx_select)
        hand.publish("kept", b"of a transaction")
        group.run_ms(100)
        assert first.node.state.log.end < other.node.state.log.end
        group.crash(successor)
        group.promote(other)
        group.until("it is active", lambda: group.cluster.primary() is other)


def test_who_has_not_applied_all_that_it_lacks_ends_it_when_it_leads() -> None:
    """A broker was refilled, and leads before it has applied what its log lacks since its restart.

    It can send a transaction whole, but not by that log, and a joiner gets only what stands before the base besides.
    """
    with scenario(backup_timeout_ms=1_000, kept_bytes=1) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        first = group.primary
        successor, other = group.backups
        group.away(other)
        group.move_the_kept_log_on()
        hand(calls.tx_select)
        before = group.hand(transactional=True)
        before.publish("a", b"before")
        group.run_ms(20)
        group.cut(successor, first)
        before.commit()
        group.run_ms(20)
        hand.publish("a", b"durable")
        hand.publish("a", b"transient", properties=TRANSIENT)
        group.run_ms(20)
        end = successor.node.state.log.end
        assert end == first.node.state.log.end
        successor.crash(hard=False)
        group.mend()
        hand.commit()
        group.run_ms(20)
        successor.start()
        group.until("it is refilled", lambda: not successor.extension.replicator.fresh)
        log = successor.node.state.log
        assert not log.whole_after(log.applied)
        assert {len(tx.events) for tx in successor.node.state.transactions.values()} == {1, 2}
        group.crash(first)
        group.promote(successor)
        other.resume()
        group.until("it is active", lambda: group.cluster.primary() is successor)
        group.heal()
        group.ready()
        group.everywhere("a", b"before", b"durable")


def assert_news(group: Scenario, kind: str, *, durable: bool, keys: list[str]) -> None:
    """Every broker has this exchange of the name ``news``, with bindings of these routing keys."""
    for node in group.nodes:
        exchange = node.node.state.topology.registry.vhost("/").exchanges.get("news")
        assert exchange is not None, node.name
        assert (exchange.kind, exchange.durable) == (kind, durable), node.name
        assert [binding.routing_key for binding in exchange.bindings.values()] == keys, node.name


def test_an_exchange_that_was_declared_again_is_the_durable_one() -> None:
    """The exchange was transient, and a broker away has it as such; the log of a restarted primary hides that it was deleted.

    That primary's EPOCH ends what is transient, and not what has the same name.
    """
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "kept")
        hand(calls.declare_exchange, "news", "fanout", durable=False)
        hand(calls.bind, "kept", "news", "transient")
        primary, away = group.primary, group.backups[0]
        group.run_ms(100)
        group.away(away)
        hand(calls.delete_exchange, "news")
        hand(calls.declare_exchange, "news", "direct")
        hand(calls.bind, "kept", "news", "durable")
        primary.crash(hard=False)
        primary.start()
        group.promote(primary)
        away.resume()
        group.ready()
        group.run_ms(100)
        assert_news(group, "direct", durable=True, keys=["durable"])


def test_a_durable_exchange_that_was_declared_again_is_the_one_that_was_refilled() -> None:
    """The other way round: its deletion is in the log, and not applied yet when the refill brings the newer one."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hands = [group.hand() for _ in range(3)]
        hands[0](calls.declare, "kept")
        hands[0](calls.declare_exchange, "news", "direct")
        hands[0](calls.bind, "kept", "news", "durable")
        group.run_ms(100)
        primary, restarted = group.primary, group.backups[0]
        group.hold_disk(restarted)
        hands[0].begin(calls.delete_exchange, "news")
        group.run_ms(30)
        hands[1].begin(calls.declare_exchange, "news", "fanout", durable=False)
        group.run_ms(30)
        hands[2].begin(calls.bind, "kept", "news", "transient")
        group.run_ms(30)
        log = restarted.node.state.log
        group.free_disk(restarted)
        group.until("all is on its disk", lambda: log.durable == log.end == primary.node.state.log.end)
        restarted.crash(hard=False)
        restarted.start()
        group.ready()
        group.run_ms(100)
        assert_news(group, "fanout", durable=False, keys=["transient"])
