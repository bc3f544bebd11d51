"""Figures and report of the demo: from logs and kills to numbers, and to ok or not."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from understudy.client.demo.figures import ALL_READY, CATCHING_UP, Kill, failovers
from understudy.client.demo.report import Run, make_report, report_text
from understudy.client.runs.figures import commit_ms, percentile
from understudy.client.verdicts import (
    ROLLED_BACK,
    BrokerContent,
    Case,
    Entry,
    Event,
    History,
    Kind,
    Message,
    Violation,
    judge,
)


def entry(at_s: float, event: Event, tx: str, **facts: Any) -> Entry:
    return Entry(client="c", number=0, at_s=at_s, event=event, tx=tx, **facts)


def history(log: list[Entry]) -> History:
    """Of one client, its entries numbered."""
    return History.of([attrs.evolve(each, number=number) for number, each in enumerate(log)])


def kill(at_s: float, kind: str = ALL_READY) -> Kill:
    return Kill(at_s=at_s, kind=kind, broker="b1", pid=7, epoch=1)


COIN = Message("t0/0", "a", 5)
LOG = [
    entry(1.0, Event.BEGAN, "t0"),
    entry(1.0, Event.SENT, "t0", messages=(COIN,)),
    entry(1.1, Event.COMMIT_SENT, "t0"),
    entry(1.102, Event.COMMITTED, "t0"),
    entry(1.9, Event.BEGAN, "t1"),
    entry(1.95, Event.COMMIT_SENT, "t1"),
    entry(2.05, Event.COMMITTED, "t1"),  # begun before the kill, answered after it: says nothing of the failover
    entry(2.1, Event.BEGAN, "t2"),
    entry(2.2, Event.COMMIT_SENT, "t2"),
    entry(2.3, Event.UNKNOWN, "t2"),
    entry(2.4, Event.RESOLVED, "t2", outcome=ROLLED_BACK, questions=2),
    entry(2.2, Event.BEGAN, "t3"),
    entry(2.25, Event.COMMIT_SENT, "t3"),
    entry(2.31, Event.COMMITTED, "t3"),
    entry(2.6, Event.BEGAN, "t4"),
    entry(2.7, Event.ROLLED_BACK, "t4", by="client"),
]
RUN = Run(
    clients=2,
    accounts=1,
    load_s=2.0,
    total_s=3.0,
    kills=[kill(2.0)],
    kills_wanted=1,
    transactions_wanted=3,
    digests_equal=True,
    problems=[],
)


def report(
    run: Run = RUN,
    log: list[Entry] = LOG,
    coins: tuple[Message, ...] = (COIN,),
    differences: tuple[Violation, ...] = (),
) -> dict[str, Any]:
    case = Case(history=history(log), content=BrokerContent.of("a client", {"a": coins}))
    return make_report(run, case, [*judge(case), *differences])


def test_failover_is_from_the_kill_to_the_first_commit_of_a_transaction_begun_after_it() -> None:
    (failover,) = failovers(history(LOG), [kill(2.0)])
    assert failover.ms == pytest.approx(310.0)


def test_no_commit_after_a_kill() -> None:
    assert [each.ms for each in failovers(history(LOG), [kill(2.0), kill(9.0)])] == [pytest.approx(310.0), None]


def test_commit_latencies_are_of_answered_commits() -> None:
    assert commit_ms(history(LOG)) == [2.0, 60.0, 100.0]


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_percentile_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


def test_a_good_run() -> None:
    shown = report()
    assert shown["ok"]
    assert shown["problems"] == []
    assert shown["transactions"] == {
        "begun": 5,
        "acknowledged": 3,
        "rolled_back": 1,
        "rolled_back_by_client": 1,
        "rolled_back_by_loss": 0,
        "rolled_back_by_broker": 0,
        "unknown": 1,
        "unknown_committed": 0,
        "unknown_rolled_back": 1,
        "unresolved": 0,
    }
    assert (shown["lost"], shown["partial"], shown["doubled"]) == (0, 0, 0)
    assert shown["money"] == {"minted": 5, "found": 5}
    assert shown["kills"] == {"wanted": 1, "total": 1, ALL_READY: 1, CATCHING_UP: 0}
    assert shown["failover_ms"]["median"] == shown["failover_ms"]["max"] == 310.0
    assert shown["commit_ms"] == {"p50": 60.0, "p99": 100.0, "max": 100.0}
    assert report_text(shown).endswith("PROVED: nothing lost, nothing torn, nothing doubled.")


def test_kinds_of_kills_are_kept_apart() -> None:
    shown = report(attrs.evolve(RUN, kills=[kill(2.0), kill(1.5, CATCHING_UP)]))
    assert shown["kills"] == {"wanted": 1, "total": 2, ALL_READY: 1, CATCHING_UP: 1}
    assert shown["failover_ms"][ALL_READY]["median"] == 310.0
    assert shown["failover_ms"][CATCHING_UP]["median"] == 550.0


def test_what_is_lost_is_a_problem_with_examples() -> None:
    shown = report(coins=())
    assert not shown["ok"]
    assert shown["lost"] == 1
    assert shown["examples"] == {"lost": ["t0/0"], "contradicted": ["t0"]}
    assert any("t0/0" in problem for problem in shown["problems"])
    assert any("5 was minted and 0 is there" in problem for problem in shown["problems"])
    assert {each["kind"]: each["message"] for each in shown["violations"]} == {
        "lost": "t0/0",
        "contradicted": "",
        "unbalanced": "",
    }
    text = report_text(shown)
    assert "WRONG: " in text
    assert text.endswith("FAILED.")


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (attrs.evolve(RUN, kills_wanted=2), "1 kills instead of 2"),
        (attrs.evolve(RUN, transactions_wanted=4), "3 acknowledged transactions instead of at least 4"),
        (attrs.evolve(RUN, kills=[kill(2.0), kill(5.0)]), "no commit after the kill of b1 in epoch 1"),
        (attrs.evolve(RUN, problems=["b2 ended by itself, code 70"]), "b2 ended by itself, code 70"),
    ],
)
def test_shortfalls_fail_the_run(run: Run, complaint: str) -> None:
    shown = report(run)
    assert not shown["ok"]
    assert shown["problems"] == [complaint]


def test_an_unresolved_outcome_fails_the_run() -> None:
    shown = report(log=[one for one in LOG if one.event is not Event.RESOLVED])
    assert not shown["ok"]
    assert shown["transactions"]["unresolved"] == 1


def test_brokers_that_differ_fail_the_run() -> None:
    difference = Violation(kind=Kind.DIFFERING, promise="G2", text="brokers differ in a: b1 1, b2 2", queue="a")
    shown = report(differences=(difference,))
    assert not shown["ok"]
    assert shown["problems"] == ["brokers differ in a: b1 1, b2 2"]
    assert [each["kind"] for each in shown["violations"]] == ["differing"]


def test_nothing_done_is_reported_and_not_a_crash() -> None:
    shown = report(attrs.evolve(RUN, load_s=0.0, kills=[]), log=[], coins=())
    assert not shown["ok"]
    assert "could not be compared" in report_text({**shown, "digests_equal": None})
