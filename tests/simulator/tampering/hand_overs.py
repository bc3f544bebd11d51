"""A step-down that loses, lasts or bounces back; a barred broker in the set."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.operator import command
from tests.simulator.scenario import NEVER_MS, Scenario, publish_confirmed
from tests.simulator.tampering.in_sync import store
from tests.simulator.tampering.tampering import tampering
from understudy.ha.store.coordination import Bar

complaint = partial(tampering, "checkers/hand_overs")


def undisturbed(group: Scenario) -> None:
    """There is no nemesis to say so."""
    group.cluster.checkers.hand_overs.is_quiet = lambda: True


@complaint("G7", "are barred, and the in-sync set is")
def a_listed_broker_is_barred(group: Scenario) -> None:
    store(group, barred=(Bar(group.backups[0].name),))


@complaint("G7", "hands over to {}, which is not in")
def an_unlisted_broker_is_named(group: Scenario) -> None:
    other = group.backups[0]
    group.away(other)
    store(group, successor=other.name)


@complaint("step-down", "hands over its log up to {}, {} holds", backup_timeout_ms=NEVER_MS)
def a_broker_that_is_behind_is_named(group: Scenario) -> None:
    primary, other = group.primary, group.backups[0]
    hand = group.hand()
    hand(calls.declare, "q")
    group.hold_disk(other)
    hand.begin(publish_confirmed, "q", b"1")
    group.until("sent", lambda: other.node.state.log.end > other.node.state.log.durable)
    primary.node.broker.batch.frozen = True
    store(group, successor=other.name)


@complaint("step-down", "leads since a step-down, and {} replaces it")
def a_third_broker_leads_after_a_step_down(group: Scenario) -> None:
    undisturbed(group)
    first, second = group.backups
    command(group.primary, "step-down", to=first.name)
    group.until("led by the successor", lambda: group.cluster.primary() is first)
    store(group, epoch=3, primary=second.name)


@complaint("step-down", "handed over to {}, and {} leads")
def another_than_the_successor_leads(group: Scenario) -> None:
    undisturbed(group)
    first, second = group.backups
    store(group, successor=first.name)
    store(group, successor="", epoch=2, primary=second.name)


@complaint("step-down", "was named as successor, and is active only")
def the_successor_takes_its_time(group: Scenario) -> None:
    undisturbed(group)
    successor = group.backups[0]
    store(group, successor=successor.name)
    successor.pause()
    group.run_ms(2_500)
    successor.resume()
    group.until("led by the successor", lambda: group.cluster.primary() is successor)
