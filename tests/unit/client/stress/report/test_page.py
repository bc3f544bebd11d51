"""The page says the verdict, needs no network, and takes nothing that a broker or a client has said for markup."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.client.stress.report.test_figures import fault, history
from understudy.client.stress.faults.watch import Moment
from understudy.client.stress.report.page import make_page
from understudy.client.stress.report.summary import Run, make_report, report_text
from understudy.client.verdicts import BrokerContent, Case, Kind, Violation

SETTING: dict[str, Any] = {
    "place": "local", "store": "file", "seed": 1, "workload": "bank", "nemeses": ["kill-primary"], "libraries": ["pika"],
    "clients": 2, "rate": 10.0,
}  # fmt: skip
MOMENTS = [
    Moment(at_s=9.0, broker="b1", role="primary", status="active", epoch=1),
    Moment(at_s=9.0, broker="b2", role="backup", status="ready", epoch=1),
    Moment(at_s=12.0, broker="b1", role="-", status="down", epoch=0),
    Moment(at_s=12.3, broker="b2", role="primary", status="active", epoch=2),
]


def made(*problems: str, violations: tuple[Violation, ...] = ()) -> tuple[dict[str, Any], str]:
    """Report and page of a run with one kill at 12 s; the load is from 10 s to 20 s."""
    seen = history((11.0, 11.1), (12.5, 12.6), (15.0, 15.1))
    run = Run(
        setting=SETTING, began_s=10.0, ended_s=20.0, faults=[fault(1, 12.0)], moments=MOMENTS, problems=problems, equal=True
    )  # fmt: skip
    report = make_report(run, Case(history=seen, content=BrokerContent.of("a client", {"q": []})), violations)
    return report, make_page(report, run, seen)


def test_a_run_that_held() -> None:
    report, page = made()
    assert report["ok"]
    assert report["failover_ms"] == {"kill-primary": {"number": 1, "median": 600.0, "max": 600.0}}
    assert "<h1>Everything held</h1>" in page
    assert "HELD" in report_text(report)
    assert "median 600.0 ms, worst 600.0 ms, of 1" in report_text(report)


def test_the_page_needs_no_network() -> None:
    page = made()[1]
    assert not re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=", page)


@pytest.mark.parametrize(
    "violations",
    [(), (Violation(kind=Kind.LOST, promise="G4", text="lost", message="<i>m</i>"),)],
    ids=["problem", "violation"],
)
def test_what_is_wrong_is_said_and_escaped(violations: tuple[Violation, ...]) -> None:
    report, page = made("b1 said <script>alert(1)</script>", violations=violations)
    assert not report["ok"]
    assert report["lost"] == len(violations)
    assert "<h1>Something is wrong</h1>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page
    assert "<i>m</i>" not in page
    assert "WRONG" in report_text(report)
