"""Levels of replication (``x-ha-replicate``, decision 0014): what of a queue is where, what is left when another leads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.levels_kit import (
    ALL,
    CONFIGURATION,
    LEVELS,
    NONE,
    active,
    after_another_leads,
    all_hold,
    declare,
    held,
    holds,
    three_queues,
)
from tests.simulator.scenario import PERSISTENT, Closed, Hand, Program, SimClient, calls, scenario
from understudy.broker.core.queues.digest import queue_digests
from understudy.broker.core.queues.replication_level import REPLICATE, ReplicationLevel

WHICH = pytest.mark.parametrize("which", [0, 1])


def refused(hand: Hand, step: Callable[[], object]) -> str:
    """The text with which the broker refuses it: 406."""
    with pytest.raises(Closed) as caught:
        step()
    assert caught.value.code == 406
    hand(SimClient.connect)
    return caught.value.text


# -- declaring ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_promised_is_refused() -> None:
    """invalid_replication: an unknown level, and a level that the queue cannot have; nothing of it is declared."""
    with scenario() as group:
        hand = group.hand()
        text = refused(hand, lambda: declare(hand, "q", "some"))
        assert "'x-ha-replicate' for queue 'q' in vhost '/': 'some' is none of 'all', 'configuration', 'none'" in text
        text = refused(hand, lambda: hand(calls.declare, "q", arguments={REPLICATE: 1}))
        assert "1 is none of 'all', 'configuration', 'none'" in text
        text = refused(hand, lambda: declare(hand, "q", NONE, durable=True))
        assert "invalid arg 'x-ha-replicate' for queue 'q'" in text
        assert "a durable queue has to survive the broker that leads" in text
        for level in (ALL, CONFIGURATION):
            text = refused(hand, lambda level=level: declare(hand, "q", level, exclusive=True))  # type: ignore[misc]
            assert "an exclusive queue goes with its connection" in text
        group.run_ms(500)
        assert all(held(node, "q") is None for node in group.nodes)
        declare(hand, "q", NONE, exclusive=True)
        holds(group, "q", [], None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_queue_keeps_its_level(level: str) -> None:
    """Declared again with another one it is refused; said or not, the same one is the same."""
    with scenario() as group:
        hand = group.hand()
        declare(hand, "q", level)
        declare(hand, "q", level)
        for other in LEVELS:
            if other != level:
                text = refused(hand, lambda other=other: declare(hand, "q", other))  # type: ignore[misc]
                assert f"inequivalent arg 'x-ha-replicate' for queue 'q' in vhost '/': received '{other}'" in text
                assert f"current is '{level}'" in text
        if level == ALL:
            declare(hand, "q")
        else:
            assert "received 'all'" in refused(hand, lambda: declare(hand, "q"))


@WHICH
@pytest.mark.parametrize("default", LEVELS)
def test_the_default_is_for_queues_that_do_not_say(default: str, which: int) -> None:
    """replicate_default: unset on the queue, the configuration decides; durable queues stay replicated, and who says is heard."""
    with scenario(replicate=ReplicationLevel(default)) as group:
        hand = group.hand()
        declare(hand, "fleeting")
        declare(hand, "durable", durable=True)
        for level in LEVELS:
            declare(hand, level, level)
        for name in ("fleeting", "durable", *LEVELS):
            hand.publish(name, b"1")
        others = {ALL: [b"1"], CONFIGURATION: [], NONE: None}
        holds(group, "fleeting", [b"1"], others[default])
        holds(group, "durable", [b"1"], [b"1"])
        for level in LEVELS:
            holds(group, level, [b"1"], others[level])
        group.replace_primary(group.backups[which])
        active(group)
        holds(group, "fleeting", others[default], others[default])
        holds(group, "durable", [b"1"], [b"1"])
        hand = group.hand()
        declare(hand, "fleeting")  # as before, or anew
        hand.publish("fleeting", b"2")
        expected = [*(others[default] or []), b"2"]
        holds(group, "fleeting", expected, {ALL: expected, CONFIGURATION: [], NONE: None}[default])


def test_a_default_that_has_changed_changes_no_queue() -> None:
    """A queue is what it became when it was declared; who did not say then need not say now."""
    with scenario(replicate=ReplicationLevel.CONFIGURATION) as group:
        hand = group.hand()
        declare(hand, "q")
        hand.publish("q", b"1")
        holds(group, "q", [b"1"], [])
        group.primary.node.broker.declarations.default_level = ReplicationLevel.NONE
        declare(hand, "q")
        declare(hand, "q", CONFIGURATION)
        hand.publish("q", b"2")
        holds(group, "q", [b"1", b"2"], [])


# -- failover ----------------------------------------------------------------------------------------------------------


@WHICH
@pytest.mark.parametrize("hard", [False, True])
def test_what_is_left_when_another_leads(which: int, hard: bool) -> None:
    """replicate_binding: bindings are their queue's: those of a queue that is gone are gone, those of an empty one are there."""
    with scenario() as group:
        three_queues(group)
        all_hold(group, b"1", b"2")
        group.replace_primary(group.backups[which], hard=hard)
        active(group)
        after_another_leads(group, b"1", b"2")


def test_a_binding_that_was_taken_away_stays_away() -> None:
    """replicate_binding: unbind and bind again, on each kind, under another leader."""
    with scenario() as group:
        hand = three_queues(group)
        for level in LEVELS:
            hand(calls.unbind, level, "amq.fanout", "")
            hand(calls.bind, level, "amq.direct", "k")
        hand.publish("", b"nowhere", exchange="amq.fanout")
        all_hold(group, b"1", b"2")
        group.replace_primary(group.backups[0])
        active(group)
        hand = group.hand()
        hand.publish("", b"nowhere", exchange="amq.fanout")

        def to_k(client: SimClient) -> Program:
            client.publish("amq.direct", "k", PERSISTENT, b"3")
            yield from calls.qos(client, 0)

        hand(to_k)
        holds(group, ALL, [b"1", b"2", b"3"], [b"1", b"2", b"3"])
        holds(group, CONFIGURATION, [b"3"], [])


def test_a_primary_that_steps_down_keeps_nothing_of_its_own() -> None:
    """The primary goes on as a backup in the same process: what was its alone is gone, its clients are told 320."""
    with scenario() as group:
        hand = three_queues(group)
        hand(calls.consume, CONFIGURATION, "c")
        group.until("delivered", lambda: len(hand.client.deliveries) == 2)
        before = group.primary
        before.pause()
        group.promote(group.backups[0])
        active(group)
        before.resume()
        group.until("its client is told", lambda: not hand.client.connected())
        group.ready()
        assert group.world.happened["step-down"] == 1
        assert held(before, NONE) is None
        assert held(before, CONFIGURATION) == []
        after_another_leads(group, b"1", b"2")


def test_a_name_that_is_free_again() -> None:
    """A queue that was the former leader's alone may be declared as another kind of queue, and stays that everywhere."""
    with scenario() as group:
        hand = group.hand()
        declare(hand, "q", NONE)
        hand.publish("q", b"old")
        before = group.replace_primary(group.backups[0])
        hand = group.hand()
        declare(hand, "q", durable=True)
        hand.publish("q", b"new")
        before.start()
        group.ready()
        holds(group, "q", [b"new"], [b"new"])


@pytest.mark.parametrize("hard", [False, True])
def test_all_restart(hard: bool) -> None:
    """The definition of a durable queue of level configuration is on the disks; its messages are on none."""
    with scenario() as group:
        hand = group.hand()
        for level in (ALL, CONFIGURATION):
            declare(hand, level, level, durable=True)
            hand(calls.bind, level, "amq.fanout", "")
        declare(hand, "passing", CONFIGURATION)
        hand.publish("", b"1", exchange="amq.fanout")
        holds(group, ALL, [b"1"], [b"1"])
        holds(group, CONFIGURATION, [b"1"], [])
        for node in group.nodes:
            group.crash(node, hard=hard)
        for node in group.nodes:
            node.start()
        group.ready()
        holds(group, ALL, [b"1"], [b"1"])
        holds(group, CONFIGURATION, [], [])
        holds(group, "passing", None, None)
        hand = group.hand()
        declare(hand, CONFIGURATION, CONFIGURATION, durable=True)
        hand.publish("", b"2", exchange="amq.fanout")
        holds(group, CONFIGURATION, [b"2"], [])


# -- joining -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["resume", "catch-up", "wiped"])
def test_a_backup_that_comes_back(way: str) -> None:
    """The backup gets definitions and replicated messages; unreplicated ones delay neither its return nor its promotion."""
    with scenario(kept_bytes=1 << 20 if way == "resume" else 1, piece_bytes=300, pieces_in_flight=1) as group:
        backup = group.backups[0]
        if way == "wiped":
            group.crash(backup)
            group.expelled(backup)
            backup.wipe()
        else:
            group.away(backup)
        hand = three_queues(group)
        hand.publish(CONFIGURATION, *[b"%d" % number for number in range(50)])
        if way != "resume":
            group.move_the_kept_log_on()
        catch_ups = group.world.happened["catch-up begins"]
        backup.resume()
        backup.start_if_down()
        group.ready()
        assert (group.world.happened["catch-up begins"] > catch_ups) is (way != "resume")
        begun = [event for event in group.primary.told if event.name == "catch-up begins"]
        assert all(event.messages <= 2 for event in begun)  # type: ignore[union-attr]
        holds(group, ALL, [b"1", b"2"], [b"1", b"2"])
        assert (held(backup, CONFIGURATION), held(backup, NONE)) == ([], None)
        digested = [{digest.name for digest in queue_digests(node.node.state)} for node in group.nodes]
        assert all(ALL in names and not {CONFIGURATION, NONE} & names for names in digested)
        group.replace_primary(backup)
        active(group)
        after_another_leads(group, b"1", b"2")


def test_they_keep_no_segment_of_the_journal() -> None:
    with scenario() as group:
        hand = three_queues(group)
        hand(calls.purge, ALL)
        group.run_ms(500)
        holds(group, CONFIGURATION, [b"1", b"2"], [])
        state = group.primary.node.state
        assert state.oldest_live_offset() == state.log.applied + 1
