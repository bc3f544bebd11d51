"""A backup leaves at each step of a transaction, by kill -9 or by a power failure, or comes at each step of a branch.

Whatever the step: the transaction is there as a whole or not at all, on every broker and at every moment (the checkers look), its
client is answered, and who was away holds the same as the others when it is back, by the log or by a catch-up. In the end it leads.
A backup that comes at each step of a local transaction is in test_replicated_transactions.py.
"""

from __future__ import annotations

import pytest

from tests.simulation.steps_kit import fill
from tests.simulator.branch_steps import PREPARED, X, ask, is_prepared, listed, listed_on, refused
from tests.simulator.scenario import NEVER_MS, PERSISTENT, Hand, Order, Scenario, SimNode, calls, named, scenario
from understudy.broker.transactions.xa_status import XaStatus
from understudy.ha.status import BrokerStatus

WHICH = pytest.mark.parametrize("which", [0, 1])
HOW = pytest.mark.parametrize("hard", [False, True])
END = pytest.mark.parametrize("commits", [True, False])
BACK = pytest.mark.parametrize("way", ["resume", "catch-up"])
COMES = pytest.mark.parametrize("way", ["new", "resume", "catch-up"])
STEPS, EVENTS = 3, (0, 1, 2, 4)
"""x, y and z move from a to b; so many events after each step."""


def kept_bytes(way: str) -> int:
    """So much is kept of the log that who was away comes back in this way."""
    return 1 << 20 if way == "resume" else 1


def work(group: Scenario, hand: Hand, begin: int, end: int, properties: bytes = named("tx")) -> None:
    """Some of the steps; whoever runs holds their events."""
    for step in range(begin, end):
        if step == 0:
            hand.take("a", 3)
        else:
            hand.publish("b", *([b"x"] if step == 1 else [b"y", b"z"]), properties=properties)
    running = [node for node in group.nodes if node.up and not node.paused]
    group.until("mirrored", lambda: all(group.events(node) == EVENTS[end] for node in running))


def whole(group: Scenario, committed: bool) -> None:
    """All of it or nothing of it, on every broker that runs."""
    group.everywhere("a", *([] if committed else [b"x", b"y", b"z"]))
    group.everywhere("b", b"0", b"1", b"2", *([b"x", b"y", b"z"] if committed else []))


def comes_back(group: Scenario, leaver: SimNode, way: str) -> None:
    """The expelled broker is started, and ready."""
    group.expelled(leaver)
    group.move_the_kept_log_on()
    before = group.world.happened["catch-up begins"]
    leaver.start()
    group.ready()
    assert group.world.happened["catch-up begins"] == before + (way == "catch-up")


def leads(group: Scenario, successor: SimNode, *, hard: bool) -> None:
    group.replace_primary(successor, hard=hard).start()
    group.until("active", lambda: group.cluster.primary() is successor)
    group.ready()


# -- it leaves a local transaction --------------------------------------------------------------------------------------


@BACK
@HOW
@WHICH
@pytest.mark.parametrize(
    "moment",
    [
        "before the first event",
        "between events",
        "after the last event",
        "PREPARE has reached it",
        "it has voted and is not heard",
        "it has voted",
        "decided, and COMMIT has not reached it",
    ],
)
def test_a_backup_leaves_a_transaction(moment: str, which: int, hard: bool, way: str) -> None:
    with scenario(kept_bytes=kept_bytes(way)) as group:
        fill(group)
        leaver, stays = group.backups[which], group.backups[1 - which]
        hand = group.hand(transactional=True)
        done = {"before the first event": 0, "between events": 2}.get(moment, STEPS)
        work(group, hand, 0, done)
        order = committing(group, hand, moment, leaver, stays)
        group.crash(leaver, hard=hard)
        group.mend()
        if order is None:
            work(group, hand, done, STEPS)
            order = hand.commit("tx")
        group.until("answered", lambda: order.over)
        assert order.error is None
        if moment in ("it has voted", "decided, and COMMIT has not reached it"):
            assert leaver.name in group.members, "its vote counts, and nobody waits for it"
        else:
            assert leaver.name not in group.members, "decided without a listed member"
        whole(group, committed=True)
        comes_back(group, leaver, way)
        whole(group, committed=True)
        leads(group, leaver, hard=hard)
        whole(group, committed=True)
        assert group.fate("tx") == "committed"


def committing(group: Scenario, hand: Hand, moment: str, leaver: SimNode, stays: SimNode) -> Order | None:
    """The commit stands at ``moment``; None if it has not begun then."""
    primary = group.primary
    if moment == "PREPARE has reached it":
        order = hand.commit("tx")
        group.until("it has PREPARE", lambda: group.has_prepare(leaver))
        assert not group.prepare_durable(leaver)
    elif moment.startswith("it has voted"):
        group.cut(stays, primary)
        if moment != "it has voted":
            group.cut(leaver, primary)
        order = hand.commit("tx")
        group.until("it has voted", lambda: group.prepare_durable(leaver))
        group.run_ms(50)
        assert not order.over
    elif moment.startswith("decided"):
        order = hand.commit("tx")
        group.until("decided", lambda: group.has_decision(primary))
        assert group.has_prepare(leaver)
        assert not group.has_decision(leaver)
    else:
        return None
    return order


# -- it leaves a branch, or comes to it ---------------------------------------------------------------------------------


def branch(group: Scenario, end: int) -> Hand:
    """So much of the work, on the branch X; it is not ended."""
    fill(group)
    hand = group.hand()
    hand(calls.dtx_select)
    assert hand(calls.dtx_start, X) == XaStatus.OK
    work(group, hand, 0, end, PERSISTENT)
    return hand


def decide(hand: Hand, commits: bool) -> Order:
    return hand.begin(calls.dtx_commit if commits else calls.dtx_rollback, X)


def decided(node: SimNode) -> bool:
    """The manager's decision of the one branch is in its log."""
    tx = Scenario.transaction(node)
    return tx is None or tx.prepare is not None or bool(tx.outcome_offset)


def holds_decision(node: SimNode) -> bool:
    """The manager's decision is on the disk of ``node``."""
    tx = Scenario.transaction(node)
    return tx is None or (decided(node) and node.node.state.log.durable >= (tx.prepare_offset or tx.outcome_offset))


def answered(group: Scenario, order: Order) -> None:
    group.until("answered", lambda: order.over)
    assert (order.error, order.value) == (None, XaStatus.OK)


@BACK
@END
@HOW
@WHICH
@pytest.mark.parametrize(
    "moment",
    [
        "open",
        "ended",
        "DTX_PREPARE has reached it",
        "it has voted and is not heard",
        "it has voted",
        "in doubt",
        "the decision has not reached it",
        "the decision has reached it",
        "it holds the decision and is not heard",
    ],
)
def test_a_backup_leaves_a_branch(moment: str, which: int, hard: bool, commits: bool, way: str) -> None:
    with scenario(kept_bytes=kept_bytes(way)) as group:
        hand = branch(group, 2 if moment == "open" else STEPS)
        leaver, stays = group.backups[which], group.backups[1 - which]
        if moment != "open":
            assert hand(calls.dtx_end, X) == XaStatus.OK
        prepare = preparing(group, hand, moment, leaver, stays)
        order = None
        if "decision" in moment or moment == "in doubt":
            assert hand(calls.dtx_prepare, X) == XaStatus.OK
            order = deciding(group, hand, moment, leaver, commits)
        group.crash(leaver, hard=hard)
        group.mend()
        if moment == "open":
            work(group, hand, 2, STEPS, PERSISTENT)
            assert hand(calls.dtx_end, X) == XaStatus.OK
        if order is None:
            if moment != "in doubt":
                answered(group, prepare or hand.begin(calls.dtx_prepare, X))
            assert listed(group) == {X: PREPARED}
            whole(group, committed=False)
            order = decide(hand, commits)
        answered(group, order)
        whole(group, commits)
        comes_back(group, leaver, way)
        whole(group, commits)
        leads(group, leaver, hard=hard)
        whole(group, commits)
        assert listed(group) == {}


def preparing(group: Scenario, hand: Hand, moment: str, leaver: SimNode, stays: SimNode) -> Order | None:
    """The prepare stands at ``moment``; None if that is earlier or later."""
    if moment == "DTX_PREPARE has reached it":
        order = hand.begin(calls.dtx_prepare, X)
        group.until("it has DTX_PREPARE", lambda: knows_prepare(leaver))
        assert not is_prepared(leaver)
    elif moment.startswith("it has voted"):
        group.cut(stays, group.primary)
        if moment != "it has voted":
            group.cut(leaver, group.primary)
        order = hand.begin(calls.dtx_prepare, X)
        group.until("it has voted", lambda: is_prepared(leaver))
        group.run_ms(50)
        assert not order.over
    else:
        return None
    return order


def deciding(group: Scenario, hand: Hand, moment: str, leaver: SimNode, commits: bool) -> Order | None:
    """The manager's decision stands at ``moment``; None if it has made none."""
    primary = group.primary
    if moment == "the decision has not reached it":
        group.cut(primary, leaver)
        order = decide(hand, commits)
        group.until("it is on its way", lambda: decided(primary))
        assert not decided(leaver)
    elif moment == "the decision has reached it":
        order = decide(hand, commits)
        group.until("it has it", lambda: decided(leaver))
        assert not holds_decision(leaver)
    elif moment == "it holds the decision and is not heard":
        group.cut(leaver, primary)
        order = decide(hand, commits)
        group.until("it holds it", lambda: holds_decision(leaver))
        group.run_ms(50)
    else:
        return None
    assert not order.over
    return order


def knows_prepare(node: SimNode) -> bool:
    tx = Scenario.transaction(node)
    return tx is not None and tx.branch is not None


@pytest.mark.parametrize("then", ["the manager decides", "the joiner leads"])
@COMES
@END
@WHICH
@pytest.mark.parametrize("moment", ["open", "ended", "closed", "in doubt", "the decision is on its way"])
def test_a_backup_joins_a_branch(moment: str, which: int, commits: bool, way: str, then: str) -> None:
    """The backup is ready though the branch is not over, and holds as much of it as the primary: whichever leads can go on."""
    with scenario(backup_timeout_ms=NEVER_MS, kept_bytes=kept_bytes(way)) as group:
        primary, joiner, stays = group.primary, group.backups[which], group.backups[1 - which]
        hand, orders = come_to(group, moment, joiner, stays, commits, way)
        knows = [knows_prepare(joiner), listed_on(joiner) == {X}, decided(joiner)]
        assert knows == {
            "closed": [True, False, False],
            "in doubt": [True, True, False],
            "the decision is on its way": [True, True, True],
        }.get(moment, [False, False, False])
        assert group.events(joiner) == group.events(primary) == (2 if moment == "open" else EVENTS[STEPS])
        assert not any(order.over for order in orders)
        if then == "the joiner leads":
            leads(group, joiner, hard=True)
            if moment in ("open", "ended"):
                commits = False
            elif moment != "the decision is on its way":
                assert listed(group) == {X: PREPARED}
                assert ask(group, calls.dtx_commit if commits else calls.dtx_rollback) == XaStatus.OK
        else:
            group.mend()
            if moment == "open":
                work(group, hand, 2, STEPS, PERSISTENT)
                assert hand(calls.dtx_end, X) == XaStatus.OK
            if moment in ("open", "ended"):
                orders.append(hand.begin(calls.dtx_prepare, X))
            if moment != "the decision is on its way":
                orders.append(decide(hand, commits))
            for order in orders:
                answered(group, order)
        refused(group, calls.dtx_rollback, X, 404)
        whole(group, commits)
        if then != "the joiner leads":
            leads(group, joiner, hard=True)
            whole(group, commits)
        assert listed(group) == {}


def come_to(
    group: Scenario, moment: str, joiner: SimNode, stays: SimNode, commits: bool, way: str
) -> tuple[Hand, list[Order]]:
    """The branch stands at ``moment``, and a backup that was away before has come and is ready; what is not answered yet."""
    fill(group)
    if way == "new":
        group.crash(joiner)
        joiner.wipe()
    else:
        group.away(joiner)
    group.expelled(joiner)
    hand = group.hand()
    hand(calls.dtx_select)
    assert hand(calls.dtx_start, X) == XaStatus.OK
    work(group, hand, 0, 2 if moment == "open" else STEPS, PERSISTENT)
    if moment != "open":
        assert hand(calls.dtx_end, X) == XaStatus.OK
    if moment in ("in doubt", "the decision is on its way"):
        assert hand(calls.dtx_prepare, X) == XaStatus.OK
    group.move_the_kept_log_on()
    orders = []
    if moment == "closed":
        group.cut(stays, group.primary)  # its yes is not heard
        orders.append(hand.begin(calls.dtx_prepare, X))
        group.until("closed", lambda: is_prepared(group.primary) and is_prepared(stays))
    elif moment == "the decision is on its way":
        group.cut(stays, group.primary)
        orders.append(decide(hand, commits))
        group.until("on its way", lambda: holds_decision(group.primary) and holds_decision(stays))
    before = group.world.happened["catch-up begins"]
    joiner.resume()
    joiner.start_if_down()
    group.until("it is listed", lambda: joiner.name in group.members)
    group.until("ready", lambda: joiner.ha.status is BrokerStatus.READY)
    assert group.world.happened["catch-up begins"] == before + (way != "resume")
    return hand, orders
