"""The report of a run: tables for people, one object as JSON. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from scripts.compatibility_tools.outcomes import OUTCOMES, Outcome, Verdict, counts


@attrs.frozen(kw_only=True)
class SuiteReport:
    """One suite, run.

    Attributes:
        sides: outcomes by product, "Understudy 0.9" for one.
        took_s: seconds a side.
        excluded: tests that were run on no side; each with the reason.
    """

    name: str
    version: str
    sides: Mapping[str, Mapping[str, Outcome]]
    took_s: Mapping[str, float]
    verdict: Verdict
    excluded: Mapping[str, str]


def as_json(report: SuiteReport) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "suite": report.name,
        "version": report.version,
        "sides": {
            side: {**counts(outcomes), "took_s": round(report.took_s[side], 1)}
            for side, outcomes in report.sides.items()
        },
        "holds": report.verdict.holds,
        **attrs.asdict(report.verdict),
        "excluded": dict(report.excluded),
    }


def as_text(report: SuiteReport) -> str:
    """Counts a side, each test that differs, and what the table of known differences does not say."""
    lines = table(
        [f"{report.name} {report.version}", *OUTCOMES, "seconds"],
        [
            [side, *map(str, counts(outcomes).values()), f"{report.took_s[side]:.0f}"]
            for side, outcomes in report.sides.items()
        ],
    )
    asked = len(report.sides) > 1
    if report.verdict.rows:
        head = ["test", "here", *(["RabbitMQ"] if asked else []), "reason"]
        cells = [
            [row.test, row.here, *([row.rabbitmq or "-"] if asked else []), row.reason or "not known"]
            for row in report.verdict.rows
        ]
        lines += ["", *table(head, cells)]
    lines += [f"not run: {test}: {reason}" for test, reason in report.excluded.items()]
    for title, names in (
        ("fails here, and is no known difference", report.verdict.unexpected),
        ("passes here, and is a known difference", report.verdict.vanished),
        ("a known difference that covers no test", report.verdict.unmatched),
    ):
        lines += [f"{title}: {name}" for name in names]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width; the last column is as wide as its text."""
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *rows]
    ]
