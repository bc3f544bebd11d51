"""Groups of one name that were founded one after the other, met on a link: the store's word may come later, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import Scenario, SimNode, calls, publish_confirmed
from understudy.ha.showing.events import LinkRefused
from understudy.ha.store.coordination import GroupState

FAILOVERS = 3


@contextmanager
def two_brokers() -> Iterator[Scenario]:
    """b1 and b2, not started; no checkers, for which there is one group."""
    group = Scenario(1, brokers=2, min_insync=1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        yield group


def quiet(group: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    checkers = group.cluster.checkers
    monkeypatch.setattr("tests.simulator.checkers.watch_core", lambda *_: None)
    for name in ("opened", "leaving", "touched", "after_event", "shown", "sent", "store_changed", "said"):
        monkeypatch.setattr(checkers, name, lambda *_, **__: None)
    group.cluster.world.after_event = lambda: None
    group.cluster.store.on_change = None


def out_of_reach(group: Scenario, node: SimNode) -> None:
    group.cluster.store.cut_off.add(node.name)
    node.event(lambda ha: ha.coordination_lost())


def founded_anew(group: Scenario, founder: SimNode) -> None:
    """Store and founder's data are lost together."""
    group.crash(founder)
    founder.wipe()
    founder.wiped = False
    store = group.cluster.store
    store.group = None
    store._history.clear()
    store._seen.clear()
    group.run_ms(2_000)  # what the other broker shows of itself stands in the store that is lost
    store.infos.clear()
    founder.start()
    group.until("the founder leads", lambda: founder.up and founder.ha.primary is not None)


def test_who_does_not_reach_the_store_is_not_taken_for_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and epoch b2's log was common with the new one: it was listed, and work was confirmed by its acknowledgements."""
    with two_brokers() as group:
        group.start_empty()
        hand = group.hand()
        hand(calls.declare, "q")
        b1, b2 = group.node("b1"), group.node("b2")
        assert group.primary is b1
        for number in range(6):
            hand(publish_confirmed, "q", b"old %d" % number)
        group.run_ms(500)
        hand.go()
        quiet(group, monkeypatch)
        out_of_reach(group, b2)
        founded_anew(group, b1)
        hand = group.hand()
        hand(calls.declare, "q")
        for number in range(3):
            hand(publish_confirmed, "q", b"new %d" % number)
        group.run_ms(5_000)
        assert group.members == ("b1",)
        assert [body for body in group.bodies(b2, "q") if body.startswith(b"new")] == []
        # Told once, though it comes again and again.
        [reason] = [event.reason for event in b1.told if isinstance(event, LinkRefused)]
        assert "b2 holds the log of another group of the name" in reason


def test_nor_does_its_higher_epoch_end_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_brokers() as group:
        group.start_empty()
        b1, b2 = group.node("b1"), group.node("b2")
        for turn in range(FAILOVERS * 2):
            node = (b1, b2)[turn % 2]
            other = b2 if node is b1 else b1
            group.crash(node)
            group.until("the other leads", lambda other=other: group.cluster.primary() is other)  # type: ignore[misc]
            node.start()
            group.ready()
        quiet(group, monkeypatch)
        out_of_reach(group, b2)
        assert b2.extension.replicator.epoch_seen > 1
        founded_anew(group, b1)
        before = group.world.happened["step-down"]
        group.run_ms(10_000)
        assert group.world.happened["step-down"] == before
        assert b1.ha.primary is not None


def test_an_empty_joiner_follows_a_store_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner of the former, higher epoch took each view of the new group for an older one, and never led when it should."""
    with two_brokers() as group:
        quiet(group, monkeypatch)
        b1, b2 = group.node("b1"), group.node("b2")
        store = group.cluster.store
        store.group = GroupState(epoch=5, primary="b1", members=("b1",), version=9, min_insync=1, founding=77)
        store._history.append((group.world.now_ms, store.group))
        b2.start()
        group.run_ms(1_000)
        assert b2.ha.backup.group == store.group
        store.group = None
        b1.start()
        group.until("b1 leads", lambda: b1.up and b1.ha.primary is not None)
        hand = group.hand()
        hand(calls.declare, "q")
        hand(publish_confirmed, "q", b"one")
        group.until("b2 is ready", lambda: b2.ha.status.value == "ready")
        assert group.members == ("b1", "b2")
        hand.go()
        group.crash(b1)
        group.until("b2 leads", lambda: b2.ha.primary is not None)
        assert group.bodies(b2, "q") == [b"one"]
