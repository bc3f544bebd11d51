"""Outcomes of tests, and what they mean: no I/O.

An outcome is one word: passed, failed, error (in a fixture) or skipped. A test is named ``class or module::name``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal
from xml.etree import ElementTree as ET

import attrs

from scripts.compatibility_tools.errors import CompatibilityError

Outcome = Literal["passed", "failed", "error", "skipped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("passed", "failed", "error", "skipped")
_BAD: Final = frozenset({"failed", "error"})


@attrs.frozen(kw_only=True)
class Difference:
    """Tests that fail here for a reason that is known.

    Attributes:
        tests: names; `*` stands for any text.
        reason: why they fail, for the user of a client.
        everywhere: they fail on RabbitMQ, too, or cannot run on a machine like this one.
        sometimes: they may pass, for example by their timing.
    """

    tests: str
    reason: str
    everywhere: bool = False
    sometimes: bool = False

    def covers(self, test: str) -> bool:
        """True if `tests` names ``test``."""
        pattern = ".*".join(map(re.escape, self.tests.split("*")))
        return re.fullmatch(pattern, test) is not None


@attrs.frozen(kw_only=True)
class Row:
    """A test that does not pass on both brokers alike.

    Attributes:
        here: the outcome on Understudy.
        rabbitmq: the outcome on RabbitMQ; "": RabbitMQ was not asked, or did not run the test.
        reason: of the known difference; "": it is not known.
    """

    test: str
    here: str
    rabbitmq: str
    reason: str


@attrs.frozen(kw_only=True)
class Verdict:
    """The judgement of a run by the table of known differences.

    Attributes:
        rows: what differs, or fails here.
        unexpected: tests that fail here, and that no known difference covers.
        vanished: known differences all of whose tests passed, and tests that pass though a difference covers them.
        unmatched: known differences that cover no test of the run.
    """

    rows: Sequence[Row]
    unexpected: Sequence[str]
    vanished: Sequence[str]
    unmatched: Sequence[str]

    @property
    def holds(self) -> bool:
        """True if the table of known differences says what happened."""
        return not (self.unexpected or self.vanished or self.unmatched)


def read_junit(texts: Iterable[str]) -> dict[str, Outcome]:
    """Outcomes of all tests in reports of JUnit's XML, by name.

    A test that stands there twice has the worse outcome: pytest reports an error of the teardown by itself.

    Raises:
        CompatibilityError: a text is no such report.
    """
    found: dict[str, Outcome] = {}
    for text in texts:
        try:
            root = ET.fromstring(text)  # noqa: S314 - the runner that we started has written it
        except ET.ParseError as error:
            raise CompatibilityError(f"the runner's report is no XML: {error}: {text[:100]!r}") from error
        for case in root.iter("testcase"):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            outcome = _outcome_of(case)
            if name not in found or _BADNESS[outcome] > _BADNESS[found[name]]:
                found[name] = outcome
    return found


_BADNESS: Final[Mapping[Outcome, int]] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}


def _outcome_of(case: ET.Element) -> Outcome:
    if case.find("failure") is not None:
        return "failed"
    if case.find("error") is not None:
        return "error"
    return "skipped" if case.find("skipped") is not None else "passed"


def counts(outcomes: Mapping[str, Outcome]) -> dict[Outcome, int]:
    """How many tests had each outcome; all four are named."""
    found = Counter(outcomes.values())
    return {outcome: found[outcome] for outcome in OUTCOMES}


def judge(
    here: Mapping[str, Outcome],
    rabbitmq: Mapping[str, Outcome] | None,
    known: Sequence[Difference],
    *,
    whole: bool,
) -> Verdict:
    """Hold the outcomes of a run against the known differences.

    Args:
        here: of Understudy.
        rabbitmq: of RabbitMQ; None: not asked.
        known: of this suite.
        whole: all tests of the suite ran, so that each difference must cover one.
    """
    beside = rabbitmq or {}
    reasons = {test: difference for test in [*here, *beside] for difference in known if difference.covers(test)}
    rows = [
        Row(test=test, here=here.get(test, "-"), rabbitmq=beside.get(test, ""), reason=_reason(reasons.get(test)))
        for test in sorted({*here, *beside})
        if _differs(here.get(test), beside.get(test), asked=rabbitmq is not None)
    ]
    unmatched = [each.tests for each in known if not any(each.covers(test) for test in here)] if whole else []
    return Verdict(
        rows=rows,
        unexpected=[test for test, outcome in here.items() if outcome in _BAD and test not in reasons],
        vanished=[
            test
            for test, outcome in here.items()
            if outcome == "passed" and test in reasons and not reasons[test].sometimes
        ],
        unmatched=unmatched,
    )


def _reason(difference: Difference | None) -> str:
    return difference.reason if difference else ""


def _differs(here: Outcome | None, there: Outcome | None, *, asked: bool) -> bool:
    return here in _BAD or (asked and here != there)
