"""Branches of distributed transactions through failovers, restarts and catch-ups: H-05, H-45 to H-47, CP-20, CP-32 and CP-33.

Each stands where the test says: disks are held back and links cut until it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations

import pytest

from tests.simulator.branch_steps import (
    COMMITTED_BY_HAND,
    PREPARED,
    ROLLED_BACK_BY_HAND,
    X,
    Y,
    ask,
    is_prepared,
    listed,
    listed_on,
    prepared,
    refused,
    worked,
)
from tests.simulator.damage import damage
from tests.simulator.release import Release
from tests.simulator.scenario import (
    NEVER_MS,
    PERSISTENT,
    Closed,
    Hand,
    Order,
    Program,
    Scenario,
    SimClient,
    calls,
    scenario,
)
from understudy.broker.amqp.methods import (
    BASIC_DELIVER,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    DTX_GET_TIMEOUT,
    DTX_GET_TIMEOUT_OK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties, headers
from understudy.broker.core.requests.dtx_messages import xid_parts
from understudy.broker.log import record
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid
from understudy.ha.showing.events import HaEvent, StatusChanged

WHICH = pytest.mark.parametrize("which", [0, 1])
HOW = pytest.mark.parametrize("hard", [False, True])


def check(group: Scenario, committed: bool) -> None:
    """All of the branch or nothing of it, on every broker, and nobody lists it."""
    group.heal()
    group.ready()
    group.everywhere("a", b"a" if committed else b"taken")
    group.everywhere("b", *[b"b"] * committed)
    assert listed(group) == {}


# -- two phases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_a_branch_is_prepared_and_decided(commits: bool) -> None:
    with scenario() as group:
        hand = prepared(group)
        group.until("all list it", lambda: all(listed_on(node) == {X} for node in group.nodes))
        assert listed(group) == {X: PREPARED}
        group.everywhere("a", b"taken")
        assert hand(calls.get, "a") is None, "it is locked"
        assert hand(calls.dtx_commit if commits else calls.dtx_rollback, X) == XaStatus.OK
        check(group, commits)


def test_others_commit_while_a_branch_is_in_doubt() -> None:
    """No order is promised between its prepare and others; its CSN and ids are given at its commit (C-32)."""
    with scenario() as group:
        hand = prepared(group)
        other = group.hand(transactional=True)
        for number in range(100):
            other.publish("b", b"other %d" % number)
            other.committed()
        assert hand(calls.dtx_commit, X) == XaStatus.OK
        group.everywhere("b", *[b"other %d" % number for number in range(100)], b"b")
        group.everywhere("a", b"a")


def test_one_phase_is_a_local_commit() -> None:
    with scenario() as group:
        hand = worked(group)
        assert hand(calls.dtx_commit, X, one_phase=True) == XaStatus.OK
        check(group, committed=True)


# -- the primary dies ---------------------------------------------------------------------------------------------------


@HOW
@WHICH
def test_a_branch_that_is_not_prepared_ends_with_its_primary(which: int, hard: bool) -> None:
    with scenario() as group:
        worked(group)
        first = group.replace_primary(group.backups[which], hard=hard)
        assert "no branch 7:global:b1 in vhost '/'" in refused(group, calls.dtx_prepare, X, 404)
        first.start()
        check(group, committed=False)


@pytest.mark.parametrize("leads", ["who has voted", "who has not"])
@HOW
@WHICH
def test_cp_32_the_primary_dies_with_some_votes(which: int, hard: bool, leads: str) -> None:
    """The manager was told nothing, so it rolls back: a branch that is in doubt, or one that is not there."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = worked(group)
        voter, other = group.backups[which], group.backups[1 - which]
        group.cut(group.primary, other)
        order = hand.begin(calls.dtx_prepare, X)
        group.until("one has voted", lambda: is_prepared(voter))
        group.run_ms(50)
        assert not order.over
        first = group.replace_primary(voter if leads == "who has voted" else other, hard=hard)
        assert group.world.happened["CP-32 branch"] == 1
        group.mend()
        first.start()
        group.until("the connection ends", lambda: order.over)
        assert order.lost
        if leads == "who has voted":
            assert listed(group) == {X: PREPARED}
            assert ask(group, calls.dtx_rollback) == XaStatus.OK
        else:
            assert listed(group) == {}
            refused(group, calls.dtx_rollback, X, 404)
        check(group, committed=False)


@pytest.mark.parametrize("commits", [True, False])
@HOW
@WHICH
def test_cp_33_all_have_voted_and_the_branch_is_in_doubt(which: int, hard: bool, commits: bool) -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = worked(group)
        for backup in group.backups:
            group.cut(backup, group.primary)
        order = hand.begin(calls.dtx_prepare, X)
        group.until("all have voted", lambda: all(is_prepared(node) for node in group.nodes))
        group.run_ms(50)
        assert not order.over
        first = group.replace_primary(group.backups[which], hard=hard)
        assert group.world.happened["CP-33 branch"] == 1
        group.mend()
        first.start()
        assert listed(group) == {X: PREPARED}
        assert ask(group, calls.dtx_commit if commits else calls.dtx_rollback) == XaStatus.OK
        check(group, commits)


@HOW
@WHICH
def test_what_a_branch_has_acknowledged_is_locked_by_every_primary(which: int, hard: bool) -> None:
    with scenario() as group:
        prepared(group)
        first = group.replace_primary(group.backups[which], hard=hard)
        first.start()
        hand = group.hand()
        assert hand(calls.get, "a") is None
        assert hand(calls.purge, "a") == 0
        assert ask(group, calls.dtx_rollback) == XaStatus.OK
        event = hand(calls.get, "a")
        assert (event[4], event[2][1]) == (b"taken", True), "redelivered: an earlier primary handed it out"
        hand(calls.recover)
        check(group, committed=False)


@WHICH
def test_the_primary_dies_while_the_decision_is_on_its_way(which: int) -> None:
    """The commit is on the primary alone: the branch is still in doubt, and is committed when the manager says so again."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = prepared(group)
        for backup in group.backups:
            group.cut(group.primary, backup)
        order = hand.begin(calls.dtx_commit, X)
        group.run_ms(50)
        assert not order.over
        first = group.replace_primary(group.backups[which])
        group.mend()
        first.start()
        assert listed(group) == {X: PREPARED}
        assert ask(group, calls.dtx_commit) == XaStatus.OK
        check(group, committed=True)


@WHICH
def test_a_new_primary_says_that_it_is_active_before_it_decides(which: int) -> None:
    """A commit that came while it did not answer yet: the feed tells of it behind the fact. The audit goes by that order."""
    decided: list[bool] = []
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        prepared(group)
        successor = group.backups[which]
        happened = successor.ha.happened

        def watch(event: HaEvent) -> None:
            if isinstance(event, StatusChanged) and event.status == "active":
                decided.append(group.has_prepare(successor))
            happened(event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(successor.ha, "happened", watch)
            group.replace_silent_primary(successor)
            order = group.hand().begin(calls.dtx_commit, X)
            group.run_ms(50)
            assert not order.over
            group.heal()
            group.until("committed", lambda: order.over)
        assert decided == [False]
        check(group, committed=True)


@WHICH
def test_a_commit_that_every_member_holds_is_carried_out_by_the_next_primary(which: int) -> None:
    """Then there is no such branch any more: 404, which a manager that has said commit takes for done."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = prepared(group)
        for backup in group.backups:
            group.cut(backup, group.primary)
        order = hand.begin(calls.dtx_commit, X)
        group.until("all hold it", lambda: all(group.prepare_durable(node) for node in group.nodes))
        assert not order.over
        first = group.replace_primary(group.backups[which])
        group.mend()
        first.start()
        refused(group, calls.dtx_commit, X, 404)
        check(group, committed=True)


def test_an_ex_primary_does_not_say_that_there_is_no_such_branch() -> None:
    """The ex-primary does not know what its successor has prepared; a manager would take its 404 for a decision carried out."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        old = group.primary
        stranger = group.hand()
        successor = group.backups[0]
        group.cluster.store.cut_off.add(old.name)
        for backup in group.backups:
            group.cut_both(old, backup)
        group.promote(successor)
        group.until("and serves", lambda: group.cluster.primary() is successor)
        prepared_after = worked_at_the_new_primary(group)
        assert old.ha.primary is not None
        order = stranger.begin(calls.dtx_commit, X)
        group.run_ms(1_000)
        assert not order.over, order.error
        group.heal()
        group.until("it is answered", lambda: order.over)
        assert order.lost, order.error
        assert prepared_after(calls.dtx_commit, X) == XaStatus.OK
        group.ready()


def worked_at_the_new_primary(group: Scenario) -> Hand:
    """As `prepared`, with the brokers that run."""
    hand = group.hand()
    hand(calls.declare, "a")
    hand(calls.dtx_select)
    hand(calls.dtx_start, X)
    hand.publish("a", b"a")
    hand(calls.dtx_end, X)
    assert hand(calls.dtx_prepare, X) == XaStatus.OK
    return hand


# -- everybody dies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
@HOW
def test_cp_20_everybody_dies_and_all_list_what_is_in_doubt(order: tuple[int, ...], hard: bool) -> None:
    """H-05: whatever the order in which they come back; then the manager decides."""
    with scenario() as group:
        prepared(group)
        second = group.hand()
        second(calls.dtx_select)
        second(calls.dtx_start, Y)
        second.publish("b", b"second")
        second(calls.dtx_end, Y)
        assert second(calls.dtx_prepare, Y) == XaStatus.OK
        before = listed(group)
        assert before == {X: PREPARED, Y: PREPARED}
        for node in group.nodes:
            group.crash(node, hard=hard)
        assert group.world.happened["CP-20"] == 1
        for place in order:
            group.nodes[place].start()
            group.run_ms(300)
        group.ready()
        assert listed(group) == before
        group.until("all list them", lambda: all(listed_on(node) == {X, Y} for node in group.nodes))
        assert ask(group, calls.dtx_commit, X) == XaStatus.OK
        assert ask(group, calls.dtx_rollback, Y) == XaStatus.OK
        check(group, committed=True)


def test_the_journal_keeps_what_is_in_doubt_whatever_comes_after() -> None:
    """C-33: prepare and decision stand in different segments, with many between."""
    with scenario(kept_bytes=1) as group:
        prepared(group)
        begun = group.world.happened["checkpoint"]
        filler = group.hand()
        filler(calls.declare, "filler")
        while group.world.happened["checkpoint"] - begun < 30:  # one a segment, of each of three brokers
            filler.publish("filler", bytes(8_000))
            filler(calls.purge, "filler")
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        assert listed(group) == {X: PREPARED}
        assert ask(group, calls.dtx_commit) == XaStatus.OK
        check(group, committed=True)


# -- joining ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [False, True])
def test_a_branch_in_doubt_keeps_no_joiner_from_being_ready(empty: bool) -> None:
    """Tx catch-up (K-09): it gets the branch, DTX_PREPARE included, and may then lead with it."""
    with scenario(kept_bytes=1) as group:
        if empty:
            hand = group.hand()
            hand(calls.dtx_select)
            hand(calls.dtx_start, X)
            hand(calls.dtx_end, X)
            assert hand(calls.dtx_prepare, X) == XaStatus.OK
        else:
            prepared(group)
        joiner = group.backups[1]
        before = group.world.happened["catch-up begins"]
        group.caught_up_from_nothing(joiner)
        assert group.world.happened["catch-up begins"] == before + 1
        assert listed_on(joiner) == {X}
        first = group.replace_primary(joiner)
        first.start()
        assert listed(group) == {X: PREPARED}
        assert ask(group, calls.dtx_commit) == XaStatus.OK
        if not empty:
            check(group, committed=True)


def test_a_backup_that_was_away_learns_of_prepare_and_decision_with_the_log() -> None:
    with scenario() as group:
        away = group.backups[0]
        group.crash(away)
        plain = group.hand()
        plain(calls.declare, "a")
        plain(calls.declare, "b")
        plain.publish("a", b"taken")
        hand = group.hand()
        hand(calls.dtx_select)
        hand(calls.dtx_start, X)
        hand.take("a")
        hand.publish("a", b"a")
        hand.publish("b", b"b")
        hand(calls.dtx_end, X)
        assert hand(calls.dtx_prepare, X) == XaStatus.OK
        away.start()
        group.ready()
        assert listed_on(away) == {X}
        group.crash(away)
        assert hand(calls.dtx_commit, X) == XaStatus.OK
        away.start()
        check(group, committed=True)


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_a_member_that_lacks_something_refuses_the_prepare() -> None:
    """The branch is rolled back on all, the manager is told, and the member is expelled and comes back as new."""
    with scenario() as group:
        hand = worked(group)
        damaged = group.backups[0]
        tx = group.transaction(damaged)
        assert tx is not None
        damage(tx)
        assert hand(calls.dtx_prepare, X) == XaStatus.RBROLLBACK
        assert group.world.happened["transaction refused"] == 1
        assert ask(group, calls.dtx_prepare) == XaStatus.RBROLLBACK
        assert ask(group, calls.dtx_rollback) == XaStatus.OK
        refused(group, calls.dtx_rollback, X, 404)
        check(group, committed=False)


def test_below_the_minimum_nothing_is_prepared_and_what_is_prepared_waits() -> None:
    """H-43: refused before it enters the log; a decision is not refused, and is answered when it is stable."""
    with scenario(backup_timeout_ms=1_000) as group:
        hand = prepared(group)
        other = group.hand()
        other(calls.dtx_select)
        other(calls.dtx_start, Y)
        other.publish("b", b"second")
        other(calls.dtx_end, Y)
        primary = group.primary
        for backup in group.backups:
            group.crash(backup)
        group.low.add(primary.name)  # its disk; and nobody is left who would be told
        group.until("work is refused", lambda: bool(primary.node.broker.work.reason))
        order = hand.begin(calls.dtx_commit, X)
        with pytest.raises(Closed) as error:
            other(calls.dtx_prepare, Y)
        assert error.value.code == 506
        group.run_ms(500)
        assert not order.over
        for backup in (node for node in group.nodes if not node.up):
            backup.start()
        group.until("the commit is answered", lambda: order.over)
        assert order.value == XaStatus.OK
        group.low.clear()
        assert ask(group, calls.dtx_rollback, Y) == XaStatus.OK
        check(group, committed=True)


def test_a_group_that_cannot_read_branches_prepares_none() -> None:
    """One of its brokers runs an older program: 506, and nothing of it in the log. A commit in one phase needs no such record."""
    older = Release(name="older", record_formats=(1, 1, 1))
    with scenario() as group:
        group.backups[0].release = older
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        assert not group.primary.node.state.log.may_hold(record.DTX_PREPARE)
        hand = worked(group)
        assert "upgrade it" in refused(group, calls.dtx_prepare, X, 506)
        assert hand(calls.dtx_commit, X, one_phase=True) == XaStatus.OK
        check(group, committed=True)


# -- time and sessions ----------------------------------------------------------------------------------------------------


def test_h_45_a_branch_that_is_not_prepared_in_time_is_rolled_back_everywhere() -> None:
    with scenario() as group:
        hand = worked(group)
        assert hand(calls.dtx_set_timeout, X, 1) == XaStatus.OK
        assert hand(calls.dtx_get_timeout, X) == 1
        group.run_ms(500)
        group.everywhere("a", b"taken")
        group.until("it is over on all", lambda: all(group.transaction(node) is None for node in group.nodes))
        assert hand(calls.get, "a")[4] == b"taken"
        hand(calls.recover)
        assert hand(calls.dtx_rollback, X) == XaStatus.RBTIMEOUT
        refused(group, calls.dtx_rollback, X, 404)
        check(group, committed=False)


def test_h_45_a_prepared_branch_has_no_time_out() -> None:
    with scenario() as group:
        hand = worked(group)
        hand(calls.dtx_set_timeout, X, 1)
        assert hand(calls.dtx_prepare, X) == XaStatus.OK
        assert hand(calls.dtx_get_timeout, X) == 0
        group.run_ms(20_000)
        assert listed(group) == {X: PREPARED}
        assert hand(calls.dtx_commit, X) == XaStatus.OK
        check(group, committed=True)


@pytest.mark.parametrize("state", ["active", "suspended"])
def test_h_46_a_session_ends_and_its_branch_with_it(state: str) -> None:
    with scenario() as group:
        hand = worked(group, ends=False)
        if state == "suspended":
            hand(calls.dtx_end, X, suspend=True)
        hand.go()
        group.until("it is over on all", lambda: all(group.transaction(node) is None for node in group.nodes))
        assert ask(group, calls.dtx_prepare) == XaStatus.RBROLLBACK
        assert ask(group, calls.dtx_rollback) == XaStatus.OK
        check(group, committed=False)


def test_h_46_a_branch_that_was_ended_outlives_its_session() -> None:
    """Branches belong to the broker: whoever comes may prepare it; and once it is prepared nothing but a decision ends it."""
    with scenario() as group:
        worked(group).go()
        group.run_ms(500)
        assert ask(group, calls.dtx_prepare) == XaStatus.OK
        group.run_ms(20_000)
        assert ask(group, calls.dtx_commit) == XaStatus.OK
        check(group, committed=True)


# -- operators ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("then", ["nothing", "failover", "restart of all", "catch-up of who leads next"])
def test_h_47_what_an_operator_completes_is_remembered_until_it_is_forgotten(commits: bool, then: str) -> None:
    with scenario(kept_bytes=1) as group:
        hand = prepared(group)
        assert hand(calls.dtx_complete, X, commit=commits) == XaStatus.OK
        group.everywhere("b", *[b"b"] * commits)
        if then == "failover":
            group.replace_primary(group.backups[0]).start()
        elif then == "restart of all":
            for node in group.nodes:
                group.crash(node)
            for node in group.nodes:
                node.start()
        elif then == "catch-up of who leads next":
            group.move_the_kept_log_on()
            joiner = group.backups[0]
            group.caught_up_from_nothing(joiner)
            group.replace_primary(joiner).start()
        group.ready()
        assert listed(group) == {X: COMMITTED_BY_HAND if commits else ROLLED_BACK_BY_HAND}
        for verb in (calls.dtx_commit, calls.dtx_rollback, calls.dtx_commit):
            assert ask(group, verb) == XaStatus.HEURHAZ
        assert "completed by an operator" in refused(group, calls.dtx_prepare, X, 409)
        assert ask(group, calls.dtx_forget) == XaStatus.OK
        refused(group, calls.dtx_commit, X, 404)
        check(group, commits)


def test_an_operator_decides_while_the_manager_does() -> None:
    """Whoever comes second hears of the first."""
    with scenario() as group:
        hand = prepared(group)
        operator = group.hand()
        by_hand = operator.begin(calls.dtx_complete, X, commit=True)
        by_manager = hand.begin(calls.dtx_commit, X)
        group.until("both are answered", lambda: by_hand.over and by_manager.over)
        statuses = (by_hand.value, by_manager.value)
        refusal = by_hand.error.code if isinstance(by_hand.error, Closed) else 0
        assert statuses == (XaStatus.OK, XaStatus.HEURHAZ) or (
            refusal in (404, 409) and by_manager.value == XaStatus.OK
        )
        if not refusal:
            assert ask(group, calls.dtx_forget) == XaStatus.OK
        check(group, committed=True)


def test_any_number_of_questions_may_wait_and_be_answered_at_once() -> None:
    """Questions answered in their own turn must not call the next from within: a thousand of them ended the broker."""
    with scenario() as group:
        hand = worked(group)

        def ask_often(client: SimClient) -> Program:
            with client.corked():
                client.write(encode_method(1, QUEUE_DECLARE, "another", False, True, False, False, False, {}))
                for _ in range(1_000):
                    client.write(encode_method(1, DTX_GET_TIMEOUT, X.format_id, X.global_id, X.branch_id))
            for _ in range(1_000):
                yield from client.wait(DTX_GET_TIMEOUT_OK)

        hand.client.expected = None
        order = hand.begin(ask_often)
        group.until("all are answered", lambda: order.over)
        assert order.error is None
        hand.go()
        assert ask(group, calls.dtx_rollback) == XaStatus.OK


def test_what_cannot_be_written_in_the_format_in_force_is_refused() -> None:
    """A new primary confines itself to the oldest format until it knows what all read."""
    with scenario() as group:
        hand = prepared(group)
        assert hand(calls.dtx_complete, X, commit=True) == XaStatus.OK
        log = group.primary.node.state.log
        log.confine(1)
        assert "upgrade it" in refused(group, calls.dtx_forget, X, 506)
        log.confine(2)
        assert ask(group, calls.dtx_forget) == XaStatus.OK


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("closes", ["channel", "connection"])
def test_what_is_meant_for_a_branch_does_not_overtake_it_when_the_client_closes(closes: str, answers: bool) -> None:
    """A broker that recovers keeps dtx.start for later, and the close that comes behind it too.

    Args:
        answers: the broker has begun to answer, and what it keeps for later has still to come.
    """
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        group.hand()(calls.declare, "a")
        first = group.primary
        successor, other = group.backups
        group.replace_silent_primary(successor)
        hand = group.hand()
        assert hand.client.session is not None
        assert hand.client.session.node is successor

        def pipelined(client: SimClient) -> Program:
            with client.corked():
                client.write(encode_method(1, DTX_SELECT))
                client.publish("", "a", PERSISTENT, b"before")
                client.write(encode_method(1, DTX_START, X.format_id, X.global_id, X.branch_id, False, False))
                client.publish("", "a", PERSISTENT, b"of the branch")
            if answers:
                other.resume()
                while not successor.node.broker.role.answering:
                    yield from client.sleep(10)
            with client.corked():
                if closes == "channel":
                    client.write(encode_method(1, CHANNEL_CLOSE, 200, "bye", 0, 0))
                else:
                    client.write(encode_method(0, CONNECTION_CLOSE, 200, "bye", 0, 0))
            yield from client.wait(CHANNEL_CLOSE_OK, CONNECTION_CLOSE_OK)

        if answers:
            group.run_ms(500)
            group.hold_disk(successor)
        order = hand.begin(pipelined)
        group.run_ms(500)
        assert not order.over
        group.free_disk(successor)
        other.resume()
        group.until("closed", lambda: order.over)
        assert order.error is None
        group.until("active", lambda: group.cluster.primary() is successor)
        first.start()
        group.ready()
        group.everywhere("a", b"before")
        assert listed(group) == {}


@pytest.mark.parametrize(
    ("before", "verb"),
    [
        ("failed", "commit"),
        ("failed", "rollback"),
        ("failed", "join"),
        ("failed", "set-timeout"),
        ("empty", "commit"),
        ("prepared", "prepare"),
        ("completed", "rollback"),
    ],
)
def test_an_ex_primary_says_nothing_of_what_it_knew(before: str, verb: str) -> None:
    """Its successor may have gone on with the branch, or with another one of that name."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        first, successor = group.primary, group.backups[0]
        if before == "prepared":
            hand = prepared(group)
        else:
            hand = worked(group, ends=False) if before != "empty" else group.hand()
            if before == "empty":
                hand(calls.dtx_select)
                hand(calls.dtx_start, X)
            hand(calls.dtx_end, X, fail=before == "failed")
            if before == "completed":
                assert hand(calls.dtx_prepare, X) == XaStatus.OK
                assert hand(calls.dtx_complete, X, commit=True) == XaStatus.OK
        group.run_ms(200)
        group.cluster.store.cut_off.add(first.name)
        for backup in group.backups:
            group.cut_both(first, backup)
        group.promote(successor)
        group.until("it serves", lambda: group.cluster.primary() is successor)
        asked: dict[str, Callable[[], Order]] = {
            "prepare": lambda: hand.begin(calls.dtx_prepare, X),
            "rollback": lambda: hand.begin(calls.dtx_rollback, X),
            "join": lambda: hand.begin(calls.dtx_start, X, join=True),
            "set-timeout": lambda: hand.begin(calls.dtx_set_timeout, X, 5),
            "commit": lambda: hand.begin(calls.dtx_commit, X, one_phase=before == "empty"),
        }
        order = asked[verb]()
        group.run_ms(500)
        assert hand.client.session is not None
        assert hand.client.session.node is first
        assert not order.over
        group.heal()
        group.until("its connection ends", lambda: order.over)
        assert order.lost
        if before == "prepared":
            assert ask(group, calls.dtx_rollback) == XaStatus.OK
        elif before == "completed":
            assert ask(group, calls.dtx_forget) == XaStatus.OK


def test_a_failure_that_nobody_was_told_of_is_not_forgotten() -> None:
    """A manager that lost its connection before the answer came asks again: 404 would be taken for "committed"."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = worked(group)
        assert hand(calls.dtx_set_timeout, X, 1) == XaStatus.OK
        group.run_ms(1_300)
        for backup in group.backups:
            group.cut(backup, group.primary)  # nobody is told anything
        order = hand.begin(calls.dtx_commit, X, one_phase=True)
        group.run_ms(100)
        assert not order.over
        hand.go()
        group.run_ms(100)
        group.mend()
        assert ask(group, calls.dtx_commit, one_phase=True) == XaStatus.RBTIMEOUT
        with pytest.raises(Closed, match="404"):
            ask(group, calls.dtx_commit, one_phase=True)


# -- messages instead of methods ------------------------------------------------------------------------------------------


def by_message(client: SimClient, verb: str, xid: Xid, **more: object) -> Program:
    """The answer to a verb that is sent as a message: body, and the headers that say who answers."""
    answers, _, _ = yield from calls.declare(client, "", durable=False, exclusive=True)
    yield from calls.consume(client, answers, answers, no_ack=True)
    request = json.dumps({"verb": verb, "xid": xid_parts(xid), **more})
    client.publish("understudy.dtx", "", encode_properties(reply_to=answers), request.encode())
    while not client.deliveries:
        yield from client.wait(BASIC_DELIVER)
    event = client.deliveries.popleft()
    yield from calls.cancel(client, answers)
    return json.loads(event[4]), headers(event[3])


@pytest.mark.parametrize("commits", [True, False])
@HOW
def test_a_branch_is_prepared_and_decided_by_messages_through_a_failover(commits: bool, hard: bool) -> None:
    """The answers wait for what the methods' wait for: prepare is not answered before a backup has it on its disk."""
    ok = {"status": 0, "name": "ok"}
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = worked(group)
        first = group.primary
        for backup in group.backups:
            group.hold_disk(backup)
        preparing = hand.begin(by_message, "prepare", X)
        group.run_ms(300)
        assert not preparing.over
        for backup in group.backups:
            group.free_disk(backup)
        group.until("answered", lambda: preparing.over)
        prepared, who = preparing.value
        assert prepared == {**ok, "transaction": "1.1"}
        assert who == {"x-understudy-broker": first.name, "x-understudy-epoch": 1}
        group.replace_primary(group.backups[0], hard=hard)
        decided, who = group.hand()(by_message, "commit" if commits else "rollback", X)
        assert decided == ok
        assert who == {"x-understudy-broker": group.primary.name, "x-understudy-epoch": 2}
        check(group, commits)
