"""The kit for coordinators passes the broker's own three, and finds each broken one at the check that is meant for it."""

from __future__ import annotations

import pytest

from tests.unit.coordinators.broken_coordinators import FOUND_BY, NeverReturns, Sleeps
from understudy.broker.coordinators import Coordinator, GroupCommitCoordinator, NullCoordinator, UnorderedCoordinator
from understudy.testing.coordinator_kit import CHECKS, Check, NotMetError, Subject, call_times, run_kit
from understudy.testing.coordinator_kit.check import Whose

BASES = (NullCoordinator, UnorderedCoordinator, GroupCommitCoordinator)


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("base", BASES)
def test_the_bases_pass(base: type[Coordinator], check: Check) -> None:
    subject = Subject(base)
    if check.concerns(subject):
        check.run(subject)
    else:
        assert check.whose is (Whose.ASKED if base is NullCoordinator else Whose.NULL)


@pytest.fixture(autouse=True)
def calls_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_times, "LONGEST_S", 0.5)


@pytest.mark.parametrize("found", FOUND_BY, ids=lambda found: found.__name__)
def test_a_broken_one_is_found(found: type[Coordinator]) -> None:
    name, requirement = FOUND_BY[found]
    (check,) = [each for each in CHECKS if each.name == name]
    subject = Subject(found)
    assert check.concerns(subject)
    assert requirement in check.requirements
    with pytest.raises(NotMetError) as raised:
        check.run(subject)
    assert raised.value.requirement == requirement
    assert str(raised.value).startswith(f"{requirement}: ")


def test_a_coordinator_that_sleeps_gets_its_verdict_at_once() -> None:
    """All other checks together would take hours of it."""
    (result,) = run_kit(Subject(Sleeps))
    assert str(result.failure).startswith("C-08: the coordinator holds the broker: commit_ordered sleeps or waits for ")


def test_a_coordinator_that_does_not_return_is_interrupted() -> None:
    (result,) = run_kit(Subject(NeverReturns))
    assert str(result.failure) == "C-08: the coordinator holds the broker: order has not returned within 0.5 s"


def test_each_check_but_those_of_the_host_has_a_coordinator_that_fails_it() -> None:
    """Checks that no coordinator can fail through the port are made all the same: they test the host."""
    of_the_host = {
        "queues_have_the_order_of_the_log",
        "work_outside_of_transactions_has_its_place",
        "participants_have_the_order_of_the_log",
        "a_later_group_does_not_overtake",
        "hooks_stand_on_the_right_side_of_the_sync",
        "a_decision_waits_for_what_makes_it_stable",
        "a_hook_that_raises_changes_no_decision",
        "a_participant_that_raises_in_prepare_refuses",
        "each_decision_is_unlogged_once",
        "a_power_cut_in_any_write_leaves_all_or_nothing",
        "a_failed_write_loses_no_answer",
    }
    assert {check.name for check in CHECKS} - {name for name, _ in FOUND_BY.values()} == of_the_host


def test_each_requirement_is_named_in_its_form() -> None:
    named = {requirement for check in CHECKS for requirement in check.requirements}
    assert {
        f"C-{number:02}" for number in (7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 24, 26, 30, 31)
    } <= named
    assert all(check.title.endswith(".") for check in CHECKS)
