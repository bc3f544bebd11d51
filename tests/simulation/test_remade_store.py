"""The coordination store was lost, and made anew by an operator; or it was out of reach, and is back."""

from __future__ import annotations

import attrs
import pytest

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import PERSISTENT, Scenario, calls, publish_confirmed, scenario
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.state.raw_records import EMPTY_TABLE
from understudy.broker.log import record
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.message import Message
from understudy.testing.disk import MemoryStorage


def test_who_runs_meanwhile_follows_the_higher_epoch() -> None:
    """Versions begin anew in a new store. b3 was promoted by force in it; b2, which runs on, took what it was shown for old."""
    group = Scenario(1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.ready()
        checkers = group.cluster.checkers  # an unclean promotion
        checkers.replicas.check = lambda node: None  # type: ignore[method-assign]
        checkers.chosen.check = lambda node: None  # type: ignore[method-assign]
        group.cluster.world.after_event = lambda: None
        b1, b3 = group.node("b1"), group.node("b3")
        store = group.cluster.store
        held = store.group
        assert held is not None
        group.crash(b1)
        group.crash(b3)
        store.group = attrs.evolve(
            held, epoch=held.epoch + 1000, primary="b3", members=("b3",), version=1, min_insync=1
        )
        store._history.append((group.world.now_ms, store.group))
        b3.start()
        group.until("b3 leads", lambda: b3.ha.primary is not None)
        group.until("b2 is with it", lambda: "b2" in group.members)


def test_a_primary_alone_in_its_set_confirms_nothing_before_it_has_read_that_it_leads() -> None:
    """The primary was out of reach of the store, and meanwhile another may have been made primary by force."""
    with scenario(brokers=2, min_insync=1, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (backup,) = group.primary, group.backups
        group.crash(backup)
        group.until("it is alone", lambda: group.members == (primary.name,))
        store = group.cluster.store
        store.cut_off.add(primary.name)
        primary.event(lambda ha: ha.coordination_lost())
        order = hand.begin(publish_confirmed, "q", b"one")
        group.run_ms(1_000)
        assert not order.over
        primary.event(lambda ha: ha.coordination_regained())  # a connection, and no answer yet
        group.run_ms(1_000)
        assert not order.over
        store.cut_off.clear()
        group.until("it has read, and confirms", lambda: order.over)
        backup.start()


def journal_of_a_former_life() -> MemoryStorage:
    """b2's disk: queue ``q`` with six messages, all confirmed under epoch 1, the only one."""
    former = Scenario(1, brokers=2, min_insync=1)
    with watching_queues(), former.cluster.knobs.in_force():
        former.start_empty()
        hand = former.hand()
        hand(calls.declare, "q")
        for number in range(6):
            hand(publish_confirmed, "q", b"old %d" % number)
        other = former.node("b2")
        former.run_ms(500)
        assert former.bodies(other, "q") == [b"old %d" % number for number in range(6)]
        former.crash(other)
        return other.storage


@pytest.mark.parametrize("resumes", [True, False])
def test_who_is_of_an_earlier_founding_is_not_taken_for_a_copy(resumes: bool) -> None:
    """Store and founder's data were lost together, and the founder founded the group anew, under epoch 1 again.

    By epochs alone b2's journal looked like a copy of the new log, as far as it went: old and new messages were mixed.
    """
    disk = journal_of_a_former_life()
    group = Scenario(2, brokers=2, min_insync=1, kept_bytes=128 << 20 if resumes else 1)
    with watching_queues(), group.cluster.knobs.in_force():
        founder, other = group.node("b1"), group.node("b2")
        founder.start()
        group.until("it leads", lambda: group.cluster.primary() is founder)
        hand = group.hand()
        hand(calls.declare, "q")
        new = [b"new %d" % number for number in range(30)]
        for body in new:
            hand(publish_confirmed, "q", body)
        if not resumes:
            group.move_the_kept_log_on()
        empty, other.storage = other.storage, disk
        checkers = group.cluster.checkers
        check = checkers.replicas.check
        checkers.replicas.check = lambda node: None  # type: ignore[method-assign]  # they take its disk for this group's
        other.start()
        group.until("it refuses to run", lambda: bool(other.fatal))
        checkers.replicas.check = check  # type: ignore[method-assign]
        assert "founded anew" in other.fatal
        group.crash(other)
        other.storage = empty
        other.fatal = ""
        other.start()
        group.until("it has joined", lambda: "b2" in group.members)
        group.everywhere("q", *new)


def test_who_reaches_a_store_that_holds_another_group_confirms_nothing() -> None:
    """The primary was alone in its set; the store was made anew and another broker founded the group, all under epoch 1."""
    group = Scenario(1, brokers=2, min_insync=1, backup_timeout_ms=1_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        group.ready()
        hand = group.hand()
        hand(calls.declare, "q")
        primary, (backup,) = group.primary, group.backups
        group.crash(backup)
        group.until("it is alone", lambda: group.members == (primary.name,))
        store = group.cluster.store
        held = store.group
        assert held is not None
        group.cluster.world.after_event = lambda: None  # for the checkers there is one group
        primary.event(lambda ha: ha.coordination_lost())
        order = hand.begin(publish_confirmed, "q", b"one")
        group.run_ms(300)
        store.group = attrs.evolve(held, primary="b9", members=("b9",), version=1, founding=held.founding + 1)
        store.watch = lambda node: None  # type: ignore[method-assign]  # its answer comes first
        primary.event(lambda ha: ha.coordination_regained())
        group.run_ms(2_000)
        assert "founded anew" in primary.fatal
        assert not primary.node.broker.role.answering
        assert not order.over


def journal_of_a_broker_alone(group: Scenario) -> MemoryStorage:
    """b2's disk, of a time when it ran without the plugin: queue ``q`` with six messages, in its epoch 1."""
    storage = MemoryStorage("b2")
    node = BrokerNode("b2", Limits(), bytes)
    identity = JournalIdentity(group_id=group.node("b2").config.group, broker_id="b2")
    journal = recover(storage, identity, group.cluster.knobs.journal, node.recovery, checkpoint=node.checkpoint).journal
    node.open(journal, 0, 1_700_000_000_000)
    state = node.state
    state.taking.append_record(
        record.encode_queue_declare(node.broker.declarations.next_id(), "/", "q", record.DURABLE, EMPTY_TABLE)
    )
    (queue,) = state.queues.values()
    queue.activate(0, node.broker.role.epoch << ID_EPOCH_SHIFT)
    for number in range(6):
        node.broker.batch.publish([queue], Message("", "q", PERSISTENT, b"alone %d" % number, True), None)
    node.answer()
    node.gather(flush=True)
    journal.sync_now()
    journal.close()
    return storage


def test_the_journal_of_a_broker_that_ran_alone_is_no_copy() -> None:
    """A lone broker's journal has an epoch 1, too, and belongs to no founding."""
    group = Scenario(2, brokers=2, min_insync=1)
    with watching_queues(), group.cluster.knobs.in_force():
        founder, other = group.node("b1"), group.node("b2")
        founder.start()
        group.until("it leads", lambda: group.cluster.primary() is founder)
        hand = group.hand()
        hand(calls.declare, "q")
        for number in range(30):
            hand(publish_confirmed, "q", b"new %d" % number)
        other.storage = journal_of_a_broker_alone(group)
        checkers = group.cluster.checkers
        checkers.replicas.check = lambda node: None  # type: ignore[method-assign]  # they take its disk for this group's
        other.start()
        assert other.node.state.log.end == 8
        group.until("it refuses to run", lambda: bool(other.fatal))
        assert "belongs to no group" in other.fatal
        assert "with an empty data directory this broker joins" in other.fatal
        group.run_ms(1_000)
        assert group.members == ("b1",)
