"""Commit sequence numbers ascend in log order, whoever gives them: over failovers, restarts, catch-ups and cut tails (K-04)."""

from __future__ import annotations

import pytest

from tests.simulator.checkers.reference import ReferenceTransaction
from tests.simulator.scenario import NEVER_MS, Scenario, calls, scenario


def numbers_of(group: Scenario) -> list[int]:
    """The number of each transaction that is committed from now on, in the order of the log."""
    numbers: list[int] = []
    reference = group.cluster.checkers.reference
    before = reference.on_commit
    assert before is not None

    def committed(tx: ReferenceTransaction) -> None:
        assert tx.prepare is not None
        numbers.append(tx.prepare.csn)
        before(tx)

    reference.on_commit = committed
    return numbers


def commit_three(group: Scenario) -> None:
    """Two of them touch two queues each; their commits come in another order than they were opened in."""
    group.until("active", lambda: group.cluster.primary() is not None, 60_000)
    hands = [group.hand(transactional=True) for _ in range(3)]
    for hand, queues in zip(hands, (("a", "b"), ("b",), ("b", "a")), strict=True):
        for queue in queues:
            hand.publish(queue, b"x")
    orders = [hand.commit() for hand in reversed(hands)]
    group.until("answered", lambda: all(order.over for order in orders))
    assert [order.error for order in orders] == [None] * 3
    for hand in hands:
        hand.go()


def begun(group: Scenario) -> list[int]:
    """Two queues, and the first three transactions; their numbers, and those of all that follow."""
    setup = group.hand()
    for queue in ("a", "b"):
        setup(calls.declare, queue)
    setup.go()
    numbers = numbers_of(group)
    commit_three(group)
    return numbers


@pytest.mark.parametrize("hard", [False, True])
def test_they_ascend_whoever_leads(hard: bool) -> None:
    with scenario(kept_bytes=1, backup_timeout_ms=1_000) as group:
        numbers = begun(group)

        # Another leads, and then one that has all it knows from a catch-up.
        joiner = group.backups[1]
        group.replace_primary(group.backups[0], hard=hard).start()
        commit_three(group)
        group.ready()
        assert joiner in group.backups
        group.caught_up_from_nothing(joiner)
        group.replace_primary(joiner, hard=hard).start()
        commit_three(group)
        group.ready()

        for node in group.nodes:
            group.crash(node, hard=hard)
        for node in group.nodes:
            node.start()
        commit_three(group)
        assert len(numbers) == 12
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("hard", [False, True])
def test_one_that_was_cut_away_is_not_in_the_way(hard: bool) -> None:
    """A PREPARE that only the old primary has is cut; its number may be given again, or not, but no two commits have the same."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        numbers = begun(group)
        first = group.primary
        lost = group.hand(transactional=True)
        lost.publish("a", b"lost")
        group.until("mirrored", lambda: all(group.events(node) == 1 for node in group.nodes))
        for backup in group.backups:
            group.cut(first, backup)
        lost.commit()
        group.until("on its disk", lambda: group.prepare_durable(first))
        group.replace_primary(group.backups[0], hard=hard)
        group.mend()
        commit_three(group)
        first.start()
        group.ready()
        group.replace_primary(first, hard=hard)
        commit_three(group)
        assert len(numbers) == 9
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("hard", [False, True])
def test_one_that_is_closed_keeps_its_number(hard: bool, which: int) -> None:
    """Its PREPARE is on every disk and decided by none: who leads next commits it, and numbers what follows after it."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        numbers = begun(group)
        closed = group.hand(transactional=True)
        closed.publish("a", b"closed")
        group.until("mirrored", lambda: all(group.events(node) == 1 for node in group.nodes))
        for backup in group.backups:
            group.cut(backup, group.primary)
        closed.commit()
        group.until("prepared", lambda: all(group.prepare_durable(node) for node in group.nodes))
        group.replace_primary(group.backups[which], hard=hard)
        group.mend()
        commit_three(group)
        assert len(numbers) == 7
        assert numbers == sorted(set(numbers))
