"""Step-down: the primary drains, names its successor, and that one leads; nothing is lost, and nothing bounces back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.operator import Answers, command
from tests.simulator.scenario import NEVER_MS, Scenario, SimNode, calls, named, publish_confirmed, scenario
from understudy.ha.operators.step_down import STORE_LIMIT_MS, Phase
from understudy.ha.status import BrokerStatus

QUICK_MS = 1_000
LONG_MS = 30_000


def refusal(answers: Answers) -> str:
    """The one answer, which is a refusal."""
    (answer,) = answers
    return str(answer["error"])


def step_down(group: Scenario, **arguments: Any) -> Answers:
    return command(group.primary, "step-down", **arguments)


def hand_over(group: Scenario, **arguments: Any) -> tuple[SimNode, SimNode]:
    """A step-down that is done within a second. Returns the former primary and the new one."""
    former = group.primary
    answers = step_down(group, **arguments)
    group.until("led by another", lambda: group.cluster.primary() not in (None, former), QUICK_MS)
    (answer,) = answers
    assert answer["broker"] == former.name
    assert answer["successor"] == group.primary.name
    return former, group.primary


def until_phase(group: Scenario, node: SimNode, phase: Phase) -> None:
    def reached() -> bool:
        primary = node.ha.primary
        return primary is not None and primary.hand_over.phase is phase

    group.until(phase.value, reached, QUICK_MS)


@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_the_successor_leads_and_the_former_primary_follows(brokers: int) -> None:
    with scenario(brokers=brokers, min_insync=min(2, brokers - 1)) as group:
        group.hand()(calls.declare, "q")
        wanted = group.backups[-1]
        former, primary = hand_over(group, to=wanted.name)
        assert primary is wanted
        hand = group.hand()
        hand(publish_confirmed, "q", b"1")
        group.ready()
        epoch = primary.ha.primary.epoch if primary.ha.primary is not None else 0
        group.run_ms(LONG_MS)
        assert group.primary is primary, "it does not bounce back"
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.epoch == epoch
        assert group.cluster.store.group.successor == ""
        assert former.ha.status is BrokerStatus.READY
        group.everywhere("q", b"1")


def test_clients_are_told_where_to_go() -> None:
    with scenario() as group:
        group.hand()
        (session,) = group.primary.clients
        former, primary = hand_over(group)
        assert session.connection.close_reason == (
            f"NOT_PRIMARY - {former.name} has handed over to {primary.name}; primary is amqp://{primary.name}"
        )


def test_what_is_under_way_is_answered_and_new_work_is_refused() -> None:
    """A commit that a slow successor holds up is answered by the old primary; one that comes meanwhile is rolled back, with 506."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        first, late = group.hand(transactional=True), group.hand(transactional=True)
        first(calls.declare, "q")
        first.publish("q", b"1", properties=named("first"))
        late.publish("q", b"2", properties=named("late"))
        group.until("mirrored", lambda: all(len(node.node.state.transactions) == 2 for node in group.nodes))
        successor = group.backups[0]
        group.hold_disk(successor)
        order = first.commit("first")
        group.run_ms(20)
        former = group.primary
        answers = step_down(group, to=successor.name)
        until_phase(group, former, Phase.DRAINING)
        refused = late.commit("late")
        group.until("refused", lambda: refused.over)
        assert refused.error is not None
        assert "is handing over to" in str(refused.error)
        group.run_ms(500)
        assert former.ha.primary is not None
        assert former.ha.primary.hand_over.phase is Phase.DRAINING
        assert not order.over
        group.free_disk(successor)
        group.until("led by another", lambda: group.cluster.primary() is successor, QUICK_MS)
        assert order.over
        assert order.error is None, "the commit was answered before the step-down"
        assert answers[0]["successor"] == successor.name
        assert group.fate("first") == "committed"
        assert group.fate("late") == "rolled back"
        group.everywhere("q", b"1")


def test_a_step_down_that_takes_too_long_is_given_up() -> None:
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        hand = group.hand()
        hand(calls.declare, "q")
        group.hold_disk(successor)
        order = hand.begin(publish_confirmed, "q", b"1")
        group.run_ms(20)
        answers = step_down(group, to=successor.name)
        group.until("given up", lambda: bool(answers))
        assert "b1 leads on" in refusal(answers)
        assert group.primary is former
        group.until("published", lambda: order.over)
        assert order.error is None
        assert former.node.broker.reception.refusal == ""
        hand(publish_confirmed, "q", b"2")


def test_a_successor_that_dies_before_it_is_named_ends_the_step_down() -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        former, successor = group.primary, group.backups[0]
        hand = group.hand()
        hand(calls.declare, "q")
        group.hold_disk(successor)
        order = hand.begin(publish_confirmed, "q", b"1")
        group.run_ms(20)
        answers = step_down(group, to=successor.name)
        group.crash(successor)
        group.until("given up", lambda: bool(answers))
        assert f"not handed over: {successor.name} has lost its link; {former.name} leads on" in refusal(answers)
        successor.start()
        group.until("published", lambda: order.over)


def test_a_successor_that_dies_when_it_is_named_is_not_waited_for_for_ever() -> None:
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        step_down(group, to=successor.name)
        group.until("named", lambda: group.cluster.store.group.successor == successor.name)  # type: ignore[union-attr]
        group.crash(successor)
        group.until("led", lambda: group.cluster.primary() is not None)
        assert group.primary is not successor
        assert group.primary is former or former.ha.primary is None


def test_a_successor_that_stands_still_is_given_its_time() -> None:
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        step_down(group, to=successor.name)
        group.until("named", lambda: group.cluster.store.group.successor == successor.name)  # type: ignore[union-attr]
        successor.pause()
        named_ms = group.world.now_ms
        group.until("led", lambda: group.cluster.primary() is not None)
        assert group.primary is not successor
        assert group.world.now_ms - named_ms >= former.config.successor_wait_ms - 100


def test_the_old_primary_that_restarts_before_its_successor_leads_waits_for_it() -> None:
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        step_down(group, to=successor.name)
        group.until("named", lambda: group.cluster.store.group.successor == successor.name)  # type: ignore[union-attr]
        successor.pause()
        group.crash(former)
        former.start()
        group.run_ms(1_500)
        assert former.ha.primary is None
        successor.resume()
        group.until("led", lambda: group.cluster.primary() is successor, QUICK_MS)


def test_what_came_while_the_log_was_frozen_ends_with_the_core() -> None:
    """Acknowledgements, publishes of an open transaction: nobody was sent them, and the former primary forgets them, too."""
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        hand, late = group.hand(), group.hand(transactional=True)
        hand(calls.declare, "q")
        hand.publish("q", b"1", b"2", b"3")
        hand(calls.consume, "q", "tag")
        group.until("delivered", lambda: len(hand.client.deliveries) == 3)
        late.publish("q", b"open")
        group.until("mirrored", lambda: all(len(node.node.state.transactions) == 1 for node in group.nodes))
        group.cluster.store.lag_ms[former.name] = 400
        step_down(group, to=successor.name)
        until_phase(group, former, Phase.NAMING)
        calls.ack(hand.client, 2, multiple=True)
        hand.begin(calls.declare, "late")
        group.until("appended", lambda: former.node.state.log.end > former.node.state.log.closed_end)
        group.cluster.store.lag_ms.clear()
        group.until("led by another", lambda: group.cluster.primary() is successor, QUICK_MS)
        assert group.world.happened["memory after hand-over"] == 1
        group.ready()
        group.everywhere("q", b"1", b"2", b"3")
        assert not former.node.state.transactions
        assert group.queue(former, "late") is None


@pytest.mark.parametrize("heard", ["at once", "by no answer", "by a lost answer"])
def test_without_the_store_it_is_refused_and_clients_notice_nothing(heard: str) -> None:
    """ZooKeeper without quorum: clients were held until it was back, or for twice `ha.backup_timeout_s`."""
    with scenario() as group:
        primary, store = group.primary, group.cluster.store
        hand = group.hand()
        hand(calls.declare, "q")
        if heard == "by a lost answer":
            store.lose_answers.add(primary.name)
        else:
            store.cut_off.add(primary.name)
        answers = step_down(group)
        for _ in range(10):
            assert primary.node.broker.reception.refusal == ""
            assert not primary.node.broker.batch.frozen
            order = hand.begin(publish_confirmed, "q", b"1")
            group.until("published", lambda order=order: order.over, 100)  # type: ignore[misc]
            assert order.error is None
        if heard == "at once":
            primary.event(lambda ha: ha.coordination_lost())
            group.until("refused", lambda: bool(answers), 200)
        else:
            group.until("refused", lambda: bool(answers), STORE_LIMIT_MS + 200)
        assert "the coordination store" in refusal(answers)
        assert f"{primary.name} leads on" in refusal(answers)
        store.cut_off.clear()
        primary.event(lambda ha: ha.coordination_regained())
        group.run_ms(LONG_MS)
        assert group.primary is primary
        hand_over(group)


def test_a_store_that_is_lost_while_the_primary_drains_ends_the_step_down() -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        primary, successor = group.primary, group.backups[0]
        hand = group.hand()
        hand(calls.declare, "q")
        group.hold_disk(successor)
        hand.begin(publish_confirmed, "q", b"1")
        group.run_ms(20)
        answers = step_down(group, to=successor.name)
        until_phase(group, primary, Phase.DRAINING)
        assert primary.node.broker.reception.refusal
        group.cluster.store.cut_off.add(primary.name)
        primary.event(lambda ha: ha.coordination_lost())
        group.until("given up", lambda: bool(answers), 200)
        assert "the coordination store is not reached" in refusal(answers)
        assert primary.node.broker.reception.refusal == ""
        group.free_disk(successor)


@pytest.mark.parametrize("landed", [False, True])
def test_an_answer_of_the_store_that_is_lost_is_settled(landed: bool) -> None:
    """If the successor was named it leads; if not, and the store stays away, the primary leads on and says so."""
    with scenario() as group:
        former, successor = group.primary, group.backups[0]
        answers = step_down(group, to=successor.name)
        until_phase(group, former, Phase.NAMING)
        if landed:
            group.cluster.store.lose_answers.add(former.name)
        else:
            group.cluster.store.cut_off.add(former.name)
            former.event(lambda ha: ha.coordination_lost())
        group.run_ms(3_000)
        if not landed:
            group.hand()(calls.declare, "clients go on")
        group.cluster.store.cut_off.clear()
        former.event(lambda ha: ha.coordination_regained())
        leads = successor if landed else former
        group.until("led", lambda: group.cluster.primary() is leads)
        group.run_ms(LONG_MS)
        assert group.primary is leads
        if not landed:
            assert f"{former.name} leads on" in refusal(answers)


def test_without_a_name_the_most_complete_backup_is_chosen() -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        behind, best = group.backups
        group.hold_disk(behind)
        order = hand.begin(publish_confirmed, "q", b"1")
        group.until("held by one", lambda: group.primary.ha.primary.backups[best.name].acked  # type: ignore[union-attr]
                    > group.primary.ha.primary.backups[behind.name].acked)  # type: ignore[union-attr]  # fmt: skip
        step_down(group)
        group.run_ms(100)
        group.free_disk(behind)
        group.until("led by the best", lambda: group.cluster.primary() is best, QUICK_MS)
        group.until("published", lambda: order.over)


def test_who_cannot_lead_is_refused_by_name() -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        primary = group.primary
        first, second = group.backups
        assert refusal(step_down(group, to=primary.name)).startswith("b1 leads now")
        assert refusal(step_down(group, to="b9")) == "there is no broker 'b9' in group 'g': its brokers are b1, b2, b3"
        assert refusal(step_down(group, to=7)) == "'to' is the id of a broker, not 7"
        assert refusal(step_down(group, of="b2")) == "'of' is nothing that this command takes; 'to' is"
        group.crash(first)
        group.until("lost", lambda: primary.ha.primary.backups[first.name].link is None)  # type: ignore[union-attr]
        assert refusal(step_down(group, to=first.name)).startswith(f"{first.name} is not ready: its link is lost")
        assert group.primary is primary
        step_down(group)
        group.until("the other is given up, and led by the second", lambda: group.cluster.primary() is second)


def test_a_broker_outside_the_set_is_refused_and_what_it_lacks_is_told() -> None:
    with scenario() as group:
        first, second = group.backups
        group.crash(first)
        group.expelled(first)
        assert f"{first.name} is not in the in-sync set {{b1, " in refusal(step_down(group, to=first.name))
        group.cluster.store.cut_off.add("b1")
        group.primary.ha.coordination_lost()
        assert "does not reach the coordination store" in refusal(command(group.cluster.nodes["b1"], "step-down"))
        assert refusal(command(second, "step-down")) == f"{second.name} does not lead"
