"""Failovers: several in a row, one in the midst of another, restarts of everything, who may lead, and who is waited for."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.steps_kit import served
from tests.simulator.group import publish, take
from tests.simulator.scenario import (
    MS,
    NEVER_MS,
    PERSISTENT,
    Closed,
    Hand,
    Program,
    Scenario,
    SimClient,
    SimNode,
    calls,
    named,
    publish_confirmed,
    scenario,
)
from tests.simulator.sim_store import SESSION_MS
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.following.backup import Backup
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Answer, GroupState
from understudy.observers.transaction_observer import HaTransactionObserver, HaTransactionObserverFactory

HOW = pytest.mark.parametrize("hard", [False, True])
WHICH = pytest.mark.parametrize("which", [0, 1])


def begin_transaction(group: Scenario, name: str = "tx") -> Hand:
    """A message to each of a and b, uncommitted, known to every broker that runs."""
    hand = group.hand(transactional=True)
    hand(calls.declare, "a")
    hand(calls.declare, "b")
    hand.publish("a", b"1", properties=named(name))
    hand.publish("b", b"1", properties=named(name))
    group.until("mirrored", lambda: all(group.events(node) == 2 for node in group.nodes if node.up and not node.paused))
    return hand


def prepared_everywhere(group: Scenario) -> Hand:
    """PREPARE is durable on all brokers, and decided by none: the primary does not hear the backups. Needs NEVER_MS."""
    hand = begin_transaction(group)
    for backup in group.backups:
        group.cut(backup, group.primary)
    hand.commit("tx")
    group.until("prepared", lambda: all(group.prepare_durable(node) for node in group.nodes))
    return hand


# -- one after the other ------------------------------------------------------------------------------------------------


@HOW
def test_each_broker_leads_in_turn(hard: bool) -> None:
    """backup_failover: whoever is left follows the new primary, and everything is mirrored still; twice around."""
    with scenario() as group:
        group.hand()(calls.declare, "q")
        left: list[bytes] = []
        for number in range(6):
            hand = served(group)
            left.append(b"%d" % number)
            hand.publish("q", left[-1])
            group.everywhere("q", *left)
            if number % 2:
                hand.take("q")
                left.pop(0)
            group.everywhere("q", *left)
            before = group.replace_primary(group.backups[0], hard=hard)
            group.everywhere("q", *left)
            before.start()
            group.ready()
            hand.go()
        assert group.cluster.store.group is not None
        assert group.cluster.store.group.epoch == 7


def test_a_failover_without_queues() -> None:
    """empty_backup_failover (QPID-5430): the new primary is active though it has nothing to wait for."""
    with scenario(empty=True) as group:
        assert not list(group.primary.node.state.topology.registry.queues())
        group.replace_primary(group.backups[0])
        hand = served(group)
        hand(calls.declare, "q")


@pytest.mark.parametrize("closed", [False, True])
@HOW
def test_two_failovers_in_a_row(closed: bool, hard: bool) -> None:
    """A transaction that is open, or prepared, at the first of them has one outcome after the second."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        if closed:
            prepared_everywhere(group)
        else:
            begin_transaction(group)
        first, second, third = group.primary, *group.backups
        group.replace_primary(second, hard=hard)
        group.mend()
        served(group)
        first.start()
        group.ready()
        group.replace_primary(third, hard=hard)
        served(group)
        second.start()
        group.ready()
        outcome = group.fate("tx")
        assert outcome == ("committed" if closed else "rolled back")
        for queue in ("a", "b"):
            group.everywhere(queue, *[b"1"] * closed)


@pytest.mark.parametrize("closed", [False, True])
@HOW
@pytest.mark.parametrize(
    "step", ["before EPOCH is on its disk", "before anybody has EPOCH", "before the other has acknowledged it"]
)
def test_the_new_primary_dies_in_its_promotion(step: str, hard: bool, closed: bool) -> None:
    """A failover of a failover: the second successor decides as the first would have, and nobody was told anything before."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        if closed:
            prepared_everywhere(group)
        else:
            begin_transaction(group)
        second, third = group.backups
        group.cluster.network.cuts.clear()
        if step == "before EPOCH is on its disk":
            group.hold_disk(second)
        elif step == "before anybody has EPOCH":
            group.cut(second, third)
        else:
            group.hold_disk(third)
        first = group.replace_primary(second, hard=hard)
        if step == "before EPOCH is on its disk":
            group.run_ms(200)
        else:
            primary = second.ha.primary
            assert primary is not None
            group.until("on its disk", lambda: second.node.state.log.durable >= primary.epoch_offset)
        if step == "before the other has acknowledged it":
            group.until("received", lambda: third.node.state.log.epochs.newest == 2)
        assert second.ha.status is BrokerStatus.RECOVERING
        group.crash(second, hard=hard)
        group.mend()
        group.free_disk(third)
        group.until("the third leads", lambda: third.ha.primary is not None)
        second.start()
        first.start()
        served(group)
        group.ready()
        assert group.fate("tx") == ("committed" if closed else "rolled back")
        for queue in ("a", "b"):
            group.everywhere(queue, *[b"1"] * closed)


@WHICH
def test_an_old_primary_with_a_longer_tail_rejoins(which: int) -> None:
    """The old primary comes back with records that no other broker has: they are cut, and its log is the group's."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"kept")
        group.everywhere("q", b"kept")
        first = group.primary
        for backup in group.backups:
            group.cut(first, backup)
        end = first.node.state.log.end
        for number in range(20):
            hand.publish("q", b"lost %d" % number)
        group.until("on its disk", lambda: first.node.state.log.durable >= end + 20)
        group.replace_primary(group.backups[which], hard=False)
        group.mend()
        after = served(group)
        after.publish("q", b"after")
        first.start()
        assert first.node.state.log.durable >= end + 20
        group.ready()
        group.everywhere("q", b"kept", b"after")
        group.replace_primary(first)
        assert served(group).take("q", 2) == [b"kept", b"after"]


# -- everything restarts ------------------------------------------------------------------------------------------------


@HOW
@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
def test_all_restart_in_any_order(order: tuple[int, ...], hard: bool) -> None:
    """store_recovery: durable queues, exchanges, bindings, messages, and a transaction that was prepared everywhere."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(calls.declare_exchange, "x", "topic")
        hand(calls.bind, "q", "x", "k.#")
        hand.publish("k.1", b"1", b"2", exchange="x")
        hand.take("q")
        group.everywhere("q", b"2")
        prepared_everywhere(group)
        nodes = group.nodes
        for node in nodes:
            group.crash(node, hard=hard)
        group.mend()
        for number in order:
            nodes[number].start()
            group.run_ms(500)
        after = served(group)
        group.ready()
        assert group.fate("tx") == "committed"
        group.everywhere("a", b"1")
        group.everywhere("b", b"1")
        after.publish("k.2", b"3", exchange="x")
        group.everywhere("q", b"2", b"3")


def test_restart_handover_restart() -> None:
    """store_recovery: everything is bounced, another broker leads, everything is bounced again."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"1", b"2")
        group.everywhere("q", b"1", b"2")
        for number in range(3):
            if number == 1:
                group.replace_primary(group.backups[0]).start()
            else:
                for node in group.nodes:
                    group.crash(node)
                for node in group.nodes:
                    node.start()
            group.ready()
            group.everywhere("q", b"1", b"2")
        assert served(group).take("q", 2) == [b"1", b"2"]


# -- who is waited for --------------------------------------------------------------------------------------------------


def test_a_new_primary_answers_nobody_before_all_members_are_back() -> None:
    """queue_hold: what is sent to it meanwhile waits; when the last one is back it is active, and everything is mirrored."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", b"0")
        group.everywhere("q", b"0")
        successor, other = group.backups
        group.cut_both(successor, other)
        group.replace_primary(successor)
        group.run_ms(3_000)
        assert successor.ha.status is BrokerStatus.RECOVERING
        early = group.hand()
        early(calls.confirm_select)
        order = early.begin(publish_and_wait)
        group.run_ms(3_000)
        assert not order.over
        assert successor.ha.status is BrokerStatus.RECOVERING
        group.mend()
        group.until("active", lambda: group.cluster.primary() is successor, 60_000)
        group.until("answered", lambda: order.over)
        assert order.error is None
        group.heal()
        group.ready()
        group.everywhere("q", b"0", b"1")


def publish_and_wait(client: SimClient) -> Program:
    """Publish b"1", and wait for the confirm."""
    told: list[bool] = []
    client.on_confirm = lambda tag, multiple, good: told.append(good)
    client.publish("", "q", PERSISTENT, b"1")
    while not told:
        yield from client.sleep(5 * MS)
    assert told == [True]


def test_an_expected_member_that_does_not_come_is_expelled() -> None:
    """expected_backup_timeout: four brokers, the new primary waits for one that is gone, for its time-out and no longer."""
    with scenario(brokers=4, min_insync=2, backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        successor, other, missing = group.backups
        group.cut_both(successor, missing)
        group.replace_primary(successor)
        group.run_ms(1_500)
        assert successor.ha.status is BrokerStatus.RECOVERING
        assert missing.name in group.members
        group.until("active", lambda: group.cluster.primary() is successor, 15_000)
        assert missing.name not in group.members
        assert other.name in group.members
        group.do(lambda client: publish(client, "q"))


def test_a_stopped_backup_delays_nobody_for_long() -> None:
    """stalled_backup: it is expelled after ``ha.backup_timeout_s``, and what waited for it goes on."""
    with scenario(backup_timeout_ms=1_000) as group:
        group.hand()(calls.declare, "q")
        stopped = group.backups[0]
        stopped.pause()
        began_us = group.world.now_us
        group.do(lambda client: publish(client, "q"))
        group.do(lambda client: take(client, "q"))
        assert group.world.now_us - began_us < 2_000_000
        assert stopped.name not in group.members


# -- who may lead -------------------------------------------------------------------------------------------------------


@HOW
def test_a_restarted_primary_does_not_lead_beside_its_successor(hard: bool) -> None:
    """join_ready_cluster: it comes back as a backup, follows, and is ready."""
    with scenario() as group:
        first = group.primary
        group.replace_primary(group.backups[0], hard=hard)
        first.start()
        group.ready()
        assert first.ha.status is BrokerStatus.READY
        assert group.primary is not first


def test_who_is_not_listed_does_not_lead() -> None:
    """join_ready_cluster: an expelled broker is all that is left. It waits, and says for whom."""
    with scenario(backup_timeout_ms=1_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        left = group.backups[0]
        group.away(left)
        hand(calls.confirm_select)
        hand(publish_and_wait)
        for node in group.nodes:
            if node is not left:
                group.crash(node)
        left.resume()
        group.run_ms(10 * SESSION_MS)
        assert left.ha.primary is None
        assert left.ha.status is BrokerStatus.JOINING
        assert "not in the in-sync set" in " ".join(left.ha.blockers())
        group.heal()
        group.ready()
        group.everywhere("q", b"1")


def test_two_that_campaign_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicate promotion: the compare-and-set gives the epoch to one of them, the other follows it."""
    answers: list[tuple[str, int]] = []
    real = Backup.answered

    def answered(self: Backup, request: int, answer: Answer, group: GroupState | None) -> None:
        if request == self._campaign and self._campaign_from is not None:
            answers.append((answer.value, self._campaign_from.epoch + 1))
        real(self, request, answer, group)

    monkeypatch.setattr(Backup, "answered", answered)
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "q")
        for number in range(5):
            first, *others = group.primary, *group.backups
            group.crash(first)
            for node in others:
                group.until(f"{node.name} is free to", lambda n=node: n.ha.backup.link is None)  # type: ignore[misc]
            answers.clear()
            for node in others:
                node.event(lambda ha: ha.backup._begin_campaign(ha.backup.group))  # type: ignore[arg-type]
            group.until("both are answered", lambda: len(answers) == 2)
            assert sorted(answers) == [("conflict", number + 2), ("done", number + 2)], "both wanted the same epoch"
            served(group)
            assert sum(node.up and node.ha.primary is not None for node in group.nodes) == 1
            first.start()
            group.ready()
            group.do(lambda client: publish(client, "q"))
            assert group.cluster.store.group is not None
            assert group.cluster.store.group.epoch == number + 2


def test_everybody_names_the_same_group() -> None:
    """broker_info: epoch, primary and members are the same on all, also on one that comes later, and after a failover."""

    def agreed(group: Scenario) -> bool:
        running = [node for node in group.nodes if node.up]
        return all(node.ha.group == group.cluster.store.group for node in running)

    with scenario(brokers=4) as group:
        late = group.backups[2]
        group.crash(late)
        late.wipe()
        group.expelled(late)
        group.until("three agree", lambda: agreed(group))
        late.start()
        group.ready()
        group.until("four agree", lambda: agreed(group), 1_000)
        assert len(group.members) == 4
        group.replace_primary(late)
        group.until("active", lambda: group.cluster.primary() is late)
        group.until("they agree again", lambda: agreed(group), 1_000)


# -- min_insync, from both sides ----------------------------------------------------------------------------------------


def test_below_the_minimum_work_waits_for_the_last_member() -> None:
    """From above: two are left, one of them goes: it is not expelled, a commit waits for it and is told when it is back."""
    with scenario() as group:
        hand = begin_transaction(group)
        gone, last = group.backups
        group.crash(gone)
        group.expelled(gone)
        group.crash(last)
        order = hand.commit("tx")
        group.run_ms(12_000)
        assert last.name in group.members
        assert not order.over
        assert group.bodies(group.primary, "a") == []
        last.start()
        group.until("answered", lambda: order.over)
        assert order.error is None
        group.everywhere("a", b"1")


def below_the_minimum(group: Scenario) -> tuple[SimNode, SimNode]:
    """One backup is expelled, the other has lost its data and is cut off. Returns the primary, alone, and who was expelled."""
    primary = group.primary
    spare, lost = group.backups
    group.crash(spare)
    group.expelled(spare)
    lost.crash(hard=False)
    lost.wipe()
    lost.start()
    group.until("removed", lambda: group.members == (primary.name,))
    group.cut_both(primary, lost)
    group.until("known", lambda: primary.node.broker.work.reason != "")
    return primary, spare


@pytest.mark.parametrize("joins", ["the spare one", "who has lost its data"])
def test_below_the_minimum_new_work_is_refused_until_somebody_joins(joins: str) -> None:
    """From below: of two members one has lost its data and is removed. 506 and nack before anything is written; then it goes on."""
    with scenario() as group:
        hand = begin_transaction(group)
        primary, spare = below_the_minimum(group)
        end = primary.node.state.log.end
        with pytest.raises(Closed, match="below min_insync 2") as caught:
            hand.committed("tx")
        assert caught.value.code == 506
        group.do(lambda client: publish_to(client, "a", BASIC_NACK))
        assert group.bodies(primary, "a") == []
        (tx,) = primary.node.state.transactions.values()
        group.until("ROLLBACK is written", lambda: tx.outcome_offset > end)
        assert tx.rolls_back
        assert primary.node.state.log.stable < tx.outcome_offset, "nobody else has it"
        assert primary.node.state.transactions
        if joins == "the spare one":
            spare.start()
        else:
            group.mend()
        group.until("enough", lambda: len(group.members) == 2)
        group.do(lambda client: publish_to(client, "a", BASIC_ACK))
        group.heal()
        group.ready()
        group.everywhere("a", b"x")


def test_below_the_minimum_consumers_are_served_and_their_acknowledgements_wait() -> None:
    """Messages are handed out once stable; acknowledged ones stay until that is stable too (decision 0018)."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "a")
        for body in (b"1", b"2"):
            hand(publish_confirmed, "a", body)
        primary, _ = below_the_minimum(group)
        stable = primary.node.state.log.applied

        assert hand.take("a", 2) == [b"1", b"2"]
        group.run_ms(1_000)
        assert primary.node.state.log.applied == stable
        assert group.bodies(primary, "a") == [b"1", b"2"]
        assert group.hand()(calls.get, "a") is None

        group.mend()
        group.until("enough", lambda: len(group.members) == 2)
        group.heal()
        group.ready()
        group.everywhere("a")


def publish_to(client: SimClient, queue: str, wanted: int) -> Program:
    """As :func:`publish`, to a queue that is there: nothing can be declared below the minimum."""
    yield from client.connect()
    yield from calls.confirm_select(client)
    seen: list[int] = []
    client.on_confirm = lambda tag, multiple, good: seen.append(BASIC_ACK if good else BASIC_NACK)
    client.publish("", queue, PERSISTENT, b"x")
    while not seen:
        yield from client.sleep(5 * MS)
    assert seen == [wanted]


def test_whoever_leads_has_an_observer_for_each_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """H-08: a primary registers its factory with its broker when it is promoted; that makes one observer a transaction."""
    made: list[int] = []
    create = HaTransactionObserverFactory.create

    def counted(self: HaTransactionObserverFactory, tx: TxBuffer) -> HaTransactionObserver:
        made.append(tx.tx_id)
        return create(self, tx)

    monkeypatch.setattr(HaTransactionObserverFactory, "create", counted)
    with scenario() as group:
        for turn in range(3):
            group.hand()(calls.declare, "a")
            made.clear()
            hand = group.hand(transactional=True)
            for number in range(3):
                hand.publish("a", b"1", b"2", properties=named(f"{turn} {number}"))
                hand.committed(f"{turn} {number}")
            assert len(made) == len(set(made)) == 3
            observers = {node.name: node.node.broker.transactions.observers for node in group.nodes}
            assert isinstance(observers[group.primary.name], HaTransactionObserverFactory)
            group.replace_primary(group.backups[0]).start()
            group.ready()
