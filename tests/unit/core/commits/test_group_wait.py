"""``group.min_wait_ms``: a group of commits is held open for others to join it."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, end_turn, publish
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.commits.commit_times import CommitTimes
from understudy.broker.core.limits import Limits


def commit(client: Client) -> None:
    """One read brings all of it; the turn is not ended."""
    client.connection.receive(encode_method(1, TX_SELECT) + publish("q", b"1") + encode_method(1, TX_COMMIT))


@pytest.mark.parametrize("hold", [True, False])
def test_commits_of_several_turns_are_one_group(hold: bool) -> None:
    core = Core(Limits(hold_commits=hold))
    first, second = core.client(), core.client()
    core.queue(first, "q")
    before = core.node.gate.appended
    commit(first)
    assert end_turn(core.node) is hold, "the driver ends a turn that flushes when the time has come"
    commit(second)
    assert end_turn(core.node) is hold
    assert core.node.gate.appended == before + (0 if hold else 2)
    end_turn(core.node, flush=True)
    assert core.node.gate.appended == before + (1 if hold else 2)
    core.sync()
    assert first.heard()[-1] == second.heard()[-1] == "tx.commit-ok"
    assert end_turn(core.node) is False


def test_a_number_of_commits_is_not_held_back() -> None:
    core = Core(Limits(hold_commits=True, group_count=2))
    first, second = core.client(), core.client()
    core.queue(first, "q")
    before = core.node.gate.appended
    commit(first)
    assert end_turn(core.node)
    assert core.node.gate.appended == before
    commit(second)
    assert not end_turn(core.node)
    assert core.node.gate.appended == before + 1, "one batch for both, and no flush"
    core.sync()
    assert first.heard()[-1] == second.heard()[-1] == "tx.commit-ok"


def test_each_group_is_timed_from_its_order_to_its_answers() -> None:
    core = Core()
    clients = [core.client() for _ in range(3)]
    core.queue(clients[0], "q")
    sizes = core.broker.transactions.coordinator.group_sizes
    times = CommitTimes(sizes, core.node.state.log)
    clock = iter((1_000, 5_000, 8_000, 8_500))
    for group in (clients[:2], clients[2:]):
        for client in group:
            commit(client)
        core.turn()
        times.gathered(lambda: next(clock))
        times.answered(lambda: next(clock))
        times.gathered(lambda: next(clock))
    assert times.durations.observed == 0
    core.sync()
    times.answered(lambda: next(clock))
    assert (sizes.observed, sizes.total) == (2, 3)
    assert (times.durations.observed, times.durations.total) == (2, 8_000 - 1_000 + 8_500 - 5_000)
