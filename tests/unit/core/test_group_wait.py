"""``group.min_wait_ms``: a group of commits is held open for others to join it."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT, encode_method
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
    assert core.node.end_turn() is hold, "the driver ends a turn that flushes when the time has come"
    commit(second)
    assert core.node.end_turn() is hold
    assert core.node.gate.appended == before + (0 if hold else 2)
    core.node.end_turn(flush=True)
    assert core.node.gate.appended == before + (1 if hold else 2)
    core.sync()
    assert first.heard()[-1] == second.heard()[-1] == "tx.commit-ok"
    assert core.node.end_turn() is False


def test_a_number_of_commits_is_not_held_back() -> None:
    core = Core(Limits(hold_commits=True, group_count=2))
    first, second = core.client(), core.client()
    core.queue(first, "q")
    before = core.node.gate.appended
    commit(first)
    assert core.node.end_turn()
    assert core.node.gate.appended == before
    commit(second)
    assert not core.node.end_turn()
    assert core.node.gate.appended == before + 1, "one batch for both, and no flush"
    core.sync()
    assert first.heard()[-1] == second.heard()[-1] == "tx.commit-ok"
