"""Outcomes of foreign suites: JUnit's reports, known differences, the verdict."""

from __future__ import annotations

import pytest

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.outcomes import Difference, Outcome, counts, judge, read_junit

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest">
<testcase classname="t.A" name="good" time="1"/>
<testcase classname="t.A" name="bad"><failure message="no">trace</failure></testcase>
<testcase classname="t.A" name="left"><skipped/></testcase>
<testcase classname="t.A" name="ends badly"/>
<testcase classname="t.A" name="ends badly"><error>teardown</error></testcase>
</testsuite></testsuites>"""
KNOWN = Difference(tests="t.A::bad*", reason="not here")


def test_a_report_gives_each_test_its_worst_outcome() -> None:
    found = read_junit([REPORT])
    assert found == {"t.A::good": "passed", "t.A::bad": "failed", "t.A::left": "skipped", "t.A::ends badly": "error"}
    assert counts(found) == {"passed": 1, "failed": 1, "error": 1, "skipped": 1}


def test_a_report_that_ends_too_early_is_refused() -> None:
    with pytest.raises(CompatibilityError, match=r"no XML: .*<testsuite"):
        read_junit([REPORT[:60]])


@pytest.mark.parametrize(
    ("test", "covered"),
    [("t.A::bad", True), ("t.A::bad[x-1]", True), ("t.A::good", False), ("a.t.A::bad", False), ("t.A::BAD", False)],
)
def test_a_star_stands_for_any_text_and_brackets_for_themselves(test: str, covered: bool) -> None:
    assert KNOWN.covers(test) == covered
    assert Difference(tests="t::b[*-1]", reason="").covers("t::b[x-1]")
    assert not Difference(tests="t::b[*-1]", reason="").covers("t::bx")


@pytest.mark.parametrize(
    ("here", "unexpected", "vanished", "unmatched"),
    [
        ({"t.A::bad": "failed", "t.A::good": "passed"}, [], [], []),
        ({"t.A::bad": "failed", "t.A::good": "error"}, ["t.A::good"], [], []),
        ({"t.A::bad": "passed", "t.A::good": "passed"}, [], ["t.A::bad"], []),
        ({"t.A::bad": "skipped", "t.A::good": "passed"}, [], [], []),
        ({"t.A::good": "passed"}, [], [], ["t.A::bad*"]),
    ],
)
def test_the_verdict_names_what_the_table_does_not_say(
    here: dict[str, Outcome], unexpected: list[str], vanished: list[str], unmatched: list[str]
) -> None:
    verdict = judge(here, None, [KNOWN], whole=True)
    assert (verdict.unexpected, verdict.vanished, verdict.unmatched) == (unexpected, vanished, unmatched)
    assert verdict.holds == (not unexpected and not vanished and not unmatched)
    assert not judge(here, None, [KNOWN], whole=False).unmatched


def test_a_difference_that_comes_and_goes_may_pass() -> None:
    known = Difference(tests="t.A::bad*", reason="timing", sometimes=True)
    assert judge({"t.A::bad": "passed"}, None, [known], whole=True).holds


def test_rows_are_what_fails_here_or_is_not_alike_on_rabbitmq() -> None:
    here: dict[str, Outcome] = {"t.A::bad": "failed", "b": "passed", "c": "passed", "d": "failed"}
    there: dict[str, Outcome] = {"t.A::bad": "passed", "b": "failed", "c": "passed", "e": "passed"}
    rows = [(row.test, row.here, row.rabbitmq, row.reason) for row in judge(here, there, [KNOWN], whole=True).rows]
    assert rows == [
        ("b", "passed", "failed", ""),
        ("d", "failed", "", ""),
        ("e", "-", "passed", ""),
        ("t.A::bad", "failed", "passed", "not here"),
    ]
    assert [row.test for row in judge(here, None, [KNOWN], whole=True).rows] == ["d", "t.A::bad"]
