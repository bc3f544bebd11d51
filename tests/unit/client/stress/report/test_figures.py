"""Failover times and the report's numbers, from a history that is written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.client.stress.faults.conductor import Fault
from understudy.client.stress.report.figures import by_kind, failovers
from understudy.client.verdicts import History, Transaction


def fault(number: int, began_s: float, **facts: Any) -> Fault:
    about: dict[str, Any] = {
        "kind": "kill-primary", "targets": ("b1",), "struck_s": began_s + 0.1, "healed_s": began_s + 1, "primary": "b1",
        "epoch": 1, "hits_primary": True, "kills": True, "fails_over": True, "early": False,
    }  # fmt: skip
    return Fault(number=number, began_s=began_s, **about | facts)


def history(*times: tuple[float, float | None]) -> History:
    """Of (begin, answer) each."""
    return History(
        transactions={
            f"c-{number}": Transaction(name=f"c-{number}", client="c", began_s=began, answered_s=answered)
            for number, (began, answered) in enumerate(times)
        }
    )


def test_a_failover_ends_with_the_first_commit_of_a_transaction_begun_after_the_strike() -> None:
    """Neither one begun before, though answered after, nor one begun while the strike was carried out."""
    seen = history((9.9, 10.3), (10.05, 10.06), (10.2, None), (10.3, 11.0), (10.4, 10.9), (12.0, 12.1))
    (only,) = failovers(seen, [fault(1, 10.0)])
    assert only.ms == pytest.approx(900)


def test_without_a_commit_there_is_no_time() -> None:
    assert [each.ms for each in failovers(history((1.0, 1.1)), [fault(1, 10.0)])] == [None]


def test_faults_that_leave_the_primary_have_none() -> None:
    assert failovers(history((1.0, 1.1)), [fault(1, 0.0, fails_over=False)]) == []


def test_kinds_are_told_apart_and_so_are_early_strikes() -> None:
    seen = history(*((at + 0.2, at + 0.2 + at / 100) for at in (10, 20, 30, 40)))
    faults = [fault(1, 10), fault(2, 20), fault(3, 30, early=True), fault(4, 40, kind="pause-primary")]
    assert by_kind(failovers(seen, faults)) == {
        "kill-primary": {"number": 2, "median": 350.0, "max": 400.0},
        "kill-primary (a broker not ready)": {"number": 1, "median": 500.0, "max": 500.0},
        "pause-primary": {"number": 1, "median": 600.0, "max": 600.0},
    }
