"""The report as one HTML page, which needs no network: plotly's script is in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import plotly.graph_objects as go
import plotly.io

from understudy.pipeline.report.failovers import MOST_IN_FLIGHT, Failover
from understudy.pipeline.report.gathered import Report, story_key
from understudy.pipeline.report.page_text import SCRIPT, STYLE
from understudy.pipeline.report.plots import (
    NOT_READY,
    READY,
    failover_figure,
    failover_label,
    moment,
    run_figure,
    size_figure,
)
from understudy.pipeline.report.transactions import MOST_STORY_EVENTS

MOST_READINESS_ROWS: Final = 200
SHORTEST_SHOWN_MS: Final = 1000
RUN_TEXT: Final = (
    "<p>Drag to zoom, double-click to go back. Red bands: no primary took work; lighter ones: a broker was down."
    " Orange bands: the primary refused work.</p>"
)


def make_page(report: Report, feed: str) -> str:
    """The page.

    Args:
        report: what the feed tells.
        feed: its name, as the user gave it.
    """
    content = report.content
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Report: {escape(content.group)}</title><style>{STYLE}</style></head><body><main>",
            *_head(report, feed),
            "<h2>The run</h2>",
            RUN_TEXT,
            _plot(run_figure(report), "run", with_script=True),
            *_failovers(report),
            *_readiness(report),
            *_sizes(report),
            *_transactions(report),
            f"</main><script>{SCRIPT}</script></body></html>",
        )
    )


def _plot(figure: go.Figure, name: str, *, with_script: bool = False) -> str:
    figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
    text: str = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=with_script,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    return text


# -- tables -----------------------------------------------------------------------------------------------------------


def _table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[int] = (), name: str = ""
) -> str:
    """Cells are escaped. ``numbers``: the columns that stand to the right."""
    kind = [' class="number"' if index in numbers else "" for index in range(len(head))]
    last = len(head) - 1
    cells = [
        "".join(
            f"<td{kind[index] or (' class=text' if index == last else ' class=time')}>{escape(str(cell))}</td>"
            for index, cell in enumerate(row)
        )
        for row in rows
    ]
    titles = "".join(f"<th{kind[index]}>{escape(title)}</th>" for index, title in enumerate(head))
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="scroll"><table class="{name}"><tr>{titles}</tr>{body}</table></div>'


def _facts(rows: Mapping[str, object]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f'<div class="scroll"><table>{body}</table></div>'


def ms_text(value: float | None) -> str:
    """A duration that a person reads."""
    if value is None:
        return "-"
    if value < 10_000:
        return f"{value:,.0f} ms"
    return f"{value / 1000:,.1f} s" if value < 600_000 else f"{value / 60_000:,.1f} min"


def _clock(at_ms: float | None) -> str:
    return moment(at_ms)[11:] if at_ms else "-"


# -- parts ------------------------------------------------------------------------------------------------------------


def _head(report: Report, feed: str) -> Iterator[str]:
    content, axis, commit = report.content, report.axis, report.commit_all_ms
    yield f"<h1>Group {escape(content.group)}</h1>"
    yield (
        f"<p>{moment(axis.from_ms)} to {moment(axis.to_ms)} UTC, {content.events:,} events of"
        f" {len(content.brokers)} brokers</p>"
    )
    if report.gaps or report.cut:
        yield '<p class="warn">Parts are missing here:</p><ul>'
        yield "".join(f'<li class="warn">{escape(each)}</li>' for each in [*report.gaps, *report.cut]) + "</ul>"
    else:
        yield '<p class="good">The feed has no gap.</p>'
    rows: dict[str, object] = {
        "feed": feed,
        "brokers": ", ".join(content.brokers),
        "foundings": ", ".join(content.foundings) or "-",
        "transactions": ", ".join(f"{count:,} {fate}" for fate, count in sorted(report.fates.items())) or "none",
        "failovers": f"{len(report.failovers):,}",
    }
    if commit:
        rows["commit"] = ", ".join(f"{name} {ms_text(commit[name])}" for name in ("p50", "p95", "p99", "max"))
    stopped = [each.commits_stopped_ms for each in report.failovers if each.commits_stopped_ms is not None]
    if stopped:
        rows["commits stopped"] = f"median {ms_text(sorted(stopped)[len(stopped) // 2])}, worst {ms_text(max(stopped))}"
    yield _facts(rows)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in content.counts.items())
    yield f"<details><summary>Events by kind</summary><p>{escape(kinds)}</p></details>"


def _failovers(report: Report) -> Iterator[str]:
    yield "<h2>Failovers</h2>"
    if not report.failovers:
        yield "<p>The primary never changed.</p>"
        return
    yield (
        "<p>Phases from the last commit to the first one of a new transaction, and commits as ticks."
        " Times are those of the broker that tells them: two clocks may differ.</p>"
    )
    if report.zooms:
        yield _plot(failover_figure(report), "failovers")
    head = ("failover", "epoch", "took over after", "commits stopped", "in flight", "first sign")
    yield _table(
        head,
        [
            (
                failover_label(each), each.epoch, ms_text(each.takeover_ms), ms_text(each.commits_stopped_ms),
                f"{sum(each.became.values()):,}", f"{_clock(each.began_ms)} {each.why}",
            )
            for each in report.failovers
            if each.number in report.zooms or not report.zooms
        ],
        numbers=(1, 2, 3, 4),
    )  # fmt: skip
    for each in report.failovers:
        if each.number in report.zooms:
            yield from _failover(report, each)


def _failover(report: Report, each: Failover) -> Iterator[str]:
    became = ", ".join(f"{count:,} {fate}" for fate, count in sorted(each.became.items())) or "nothing in flight"
    yield f"<details><summary>{escape(failover_label(each))} <small>{escape(became)}</small></summary>"
    yield _facts(
        {
            f"last record of {each.was}": _clock(each.last_record_ms),
            "noticed": f"{_clock(each.noticed_ms)} {each.why}",
            f"epoch {each.epoch} of {each.now}": _clock(each.epoch_ms),
            f"{each.now} active": _clock(each.active_ms),
            "last commit before": _clock(each.last_commit_ms),
            "first commit of a new transaction": _clock(each.first_commit_ms),
        }
    )
    flights = report.in_flight.get(each.number, [])
    if flights:
        rows = [
            (row["tx"], row["name"] or row["xid"], _clock(row["opened_ms"]), _prepared(row), _held(row), _became(row))
            for row in flights
        ]
        yield _table(("transaction", "name", "opened", "prepared", "logged by", "became"), rows)
        if sum(each.became.values()) > len(flights):
            yield f"<p>The first {MOST_IN_FLIGHT} of {sum(each.became.values()):,}.</p>"
    yield "</details>"


def _prepared(row: Mapping[str, Any]) -> str:
    if row["branch_ms"]:
        return f"{_clock(row['branch_ms'])} as a branch"
    return _clock(row["prepare_ms"])


def _held(row: Mapping[str, Any]) -> str:
    return ", ".join(row["holders"])


def _became(row: Mapping[str, Any]) -> str:
    text = str(row["became"])
    if row["commit_ms"]:
        return f"{text}, {_clock(row['commit_ms'])}, CSN {row['csn']}"
    return f"{text}: {row['reason']}" if row["reason"] else text


def _readiness(report: Report) -> Iterator[str]:
    waits = [
        row for row in report.readiness if not row["ready"] and row["until_ms"] - row["from_ms"] >= SHORTEST_SHOWN_MS
    ]
    yield "<h2>Not ready</h2>"
    if not report.readiness:
        yield "<p>The feed tells nothing of readiness.</p>"
        return
    if not waits:
        yield f"<p>Every backup was {READY}, but for less than {ms_text(SHORTEST_SHOWN_MS)} at a time.</p>"
        return
    longest = sorted(waits, key=lambda row: row["from_ms"] - row["until_ms"])[:MOST_READINESS_ROWS]
    yield f"<p>When a backup was {NOT_READY} for {ms_text(SHORTEST_SHOWN_MS)} or longer, and why; the longest first.</p>"
    rows = [
        (row["backup"], _clock(row["from_ms"]), ms_text(row["until_ms"] - row["from_ms"]), row["teller"], _why(row))
        for row in longest
    ]
    table = _table(("backup", "from", "for", "told by", "blockers"), rows, numbers=(2,))
    yield table if len(rows) <= 12 else f"<details><summary>{len(rows)} times</summary>{table}</details>"
    if len(waits) > len(longest):
        yield f"<p>The longest {len(longest)} of {len(waits):,}.</p>"


def _why(row: Mapping[str, Any]) -> str:
    words = list(row["blockers"])
    words += [] if row["listed"] else ["not in the in-sync set"]
    words += [] if row["linked"] else ["no link"]
    return "; ".join(words) or "-"


def _sizes(report: Report) -> Iterator[str]:
    yield "<h2>Sizes of groups</h2>"
    yield "<p>How many log records one fsync makes durable, and how many operations a transaction has.</p>"
    if report.syncs or report.operations:
        yield _plot(size_figure(report), "sizes")
    head = ("broker", "fsyncs", "records", "p50", "p95", "p99", "largest")
    rows = [
        (broker, f"{each['groups']:,}", f"{each['records']:,}", *(f"{each[name]:,.0f}" for name in ("p50", "p95", "p99", "max")))
        for broker, each in report.syncs.items()
    ]  # fmt: skip
    yield _table(head, rows, numbers=range(1, 7))


def _transactions(report: Report) -> Iterator[str]:
    yield "<h2>Slowest transactions</h2>"
    yield "<p>From PREPARE until COMMIT is in the first journal. Open one to see its events.</p>"
    for row in report.slowest:
        told = f", told after {ms_text(row['told_ms'] - row['prepare_ms'])}" if row["told_ms"] else ""
        yield from _story(report, row, f"{ms_text(row['latency_ms'])}{told}")
    if not report.slowest:
        yield "<p>None was committed.</p>"
    yield "<h2>Open longest</h2>"
    yield "<p>From the first record to the outcome, or to the end of the feed.</p>"
    for row in report.longest_open:
        yield from _story(report, row, f"{ms_text(row['open_ms'])}, {row['fate']}")


def _story(report: Report, row: Mapping[str, Any], what: str) -> Iterator[str]:
    events = report.stories.get(story_key(row), [])
    name = f" {row['name']}" if row["name"] else ""
    text = f"{what}, {row['operations']:,} operations"
    yield f"<details><summary>{escape(row['tx'])}{escape(name)} <small>{escape(text)}</small></summary>"
    rows = [
        (_clock(each["at_ms"]), each["broker"], f"{each['epoch']}:{each['offset']}", each["event"], each["text"])
        for each in events
    ]
    yield _table(("time", "broker", "position", "event", "what"), rows, name="story")
    if len(events) >= MOST_STORY_EVENTS:
        yield f"<p>The first {MOST_STORY_EVENTS} events.</p>"
    yield "</details>"
