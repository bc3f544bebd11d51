"""Another coordinator takes over a log when no branch in it waits for a decision (C-36)."""

from __future__ import annotations

import pytest

from tests.unit.coordinators.hosted_kit import Hosted, Telling
from tests.unit.coordinators.test_hosted_order import X, branch
from understudy.broker.amqp.methods import DTX_PREPARE, encode_method
from understudy.broker.core.commits.coordinator_swap import CoordinatorSwapError, check_swap


def test_a_transaction_with_its_prepare_holds_no_swap_up() -> None:
    core = Hosted(Telling)
    core.commit_all(core.clients(1), "a")
    (tx,) = core.node.state.transactions.values()
    assert tx.closed_undecided, "its PREPARE is not durable yet, so this is what a recovery may find"
    check_swap(core.node.state, "mine", "other")


def test_a_branch_in_doubt_does() -> None:
    core = Hosted(Telling)
    branch(core, encode_method(1, DTX_PREPARE, *X))
    core.commit_all(core.clients(1), "a")
    check_swap(core.node.state, "mine", "mine")
    said = r"is 'other', but the log holds 1 undecided transactions of coordinator 'mine': 1:g:\. Nothing was changed"
    with pytest.raises(CoordinatorSwapError, match=said):
        check_swap(core.node.state, "mine", "other")
