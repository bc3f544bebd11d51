"""The kit as one call: all checks on one coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from understudy.testing.coordinator_kit import (
    crash_checks,
    decision_checks,
    hook_checks,
    lifecycle_checks,
    order_checks,
    waiting_checks,
)
from understudy.testing.coordinator_kit.check import Check, NotMetError
from understudy.testing.coordinator_kit.subject import Subject

ROOMS: Final = (lifecycle_checks, order_checks, decision_checks, hook_checks, waiting_checks, crash_checks)
CHECKS: Final = tuple(each for room in ROOMS for each in vars(room).values() if isinstance(each, Check))
"""All checks, the quick ones first."""


@attrs.frozen
class Result:
    """The result of one check.

    Attributes:
        failure: None if the coordinator passes.
    """

    check: Check
    failure: NotMetError | None = None


def run_kit(subject: Subject) -> Iterator[Result]:
    """Run each check that concerns ``subject``, one at a time; none behind a check that has to be the last if it fails."""
    for check in CHECKS:
        if check.concerns(subject):
            try:
                check.run(subject)
            except NotMetError as failure:
                yield Result(check, failure)
                if check.last_if_it_fails:
                    return
            else:
                yield Result(check)


def failures(subject: Subject) -> list[NotMetError]:
    """Requirements that ``subject`` does not meet; empty for one that passes."""
    return [result.failure for result in run_kit(subject) if result.failure is not None]
