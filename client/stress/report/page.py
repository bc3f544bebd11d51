"""The report as one HTML page, which needs no network: the verdict, the figures, and the run as plots. Pure.

Plots are plotly's, whose script is in the page. The page follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import plotly.graph_objects as go
import plotly.io
from plotly.subplots import make_subplots

from understudy.client.stress.faults.conductor import Fault
from understudy.client.stress.report.figures import Failover, failovers
from understudy.client.stress.report.page_text import SCRIPT, STYLE
from understudy.client.stress.report.summary import Run
from understudy.client.verdicts.evidence.history import History

BIN_S: Final = 0.5
MOST_POINTS: Final = 20_000
BEFORE_S: Final = 1.0
LONGEST_ZOOM_S: Final = 15.0
ZOOM_ROW_PX: Final = 18
RUN_ID: Final = "run"

STATES: Final = {
    "primary active": "#2a78d6",
    "primary recovering": "#7db2ee",
    "backup ready": "#1d9a6c",
    "backup behind": "#d9a400",
    "starting": "#9a7bd0",
    "silent": "#c2569b",
    "down": "#d5483f",
}
FAMILIES: Final = {
    "kill": "#d5483f",
    "restart": "#d9822b",
    "pause": "#c2569b",
    "zk": "#7a5fc0",
    "store": "#7a5fc0",
    "disk": "#8a6d3b",
}
NETWORK: Final = "#4a7f8c"
COMMITS: Final = "#2a78d6"
FIRST: Final = "#d5483f"


def make_page(report: Mapping[str, Any], run: Run, history: History) -> str:
    """The page.

    Args:
        report: as ``report.json`` has it.
        run: what happened beside.
        history: what the clients wrote down.
    """
    taken = failovers(history, run.faults)
    plots = [
        _html(_run_figure(run, history), RUN_ID, with_script=True),
        _zoom_buttons(taken, run),
    ]
    if taken:
        plots += [_html(_zoomed(taken, run.faults, history), "zoomed"), _html(_distribution(taken), "distribution")]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f"<title>Stress: {'held' if report['ok'] else 'FAILED'}</title><style>{STYLE}</style></head><body><main>",
            *_head(report),
            "<h2>The run</h2>",
            "<p>Drag to zoom, double-click to go back. Bands are faults, from the strike to the healing.</p>",
            plots[0],
            plots[1],
            *_titled(plots[2:]),
            f"</main><script>{SCRIPT}</script></body></html>",
        )
    )


def _titled(plots: Sequence[str]) -> Iterator[str]:
    titles = (
        ("Each failover", "A row each: every commit before and after the strike, and the first of a new transaction."),
        ("Failover times", "From the strike to the first commit of a transaction begun after it."),
    )
    for (title, text), plot in zip(titles, plots, strict=False):
        yield f"<h2>{title}</h2><p>{text}</p>{plot}"


# -- words ------------------------------------------------------------------------------------------------------------


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    verdict = "Everything held" if report["ok"] else "Something is wrong"
    yield f"<h1>{verdict}</h1>"
    yield (
        f'<p class="{"ok" if report["ok"] else "bad"}">'
        + ("Nothing lost, torn, doubled or out of order; all brokers equal." if report["ok"] else "See below.")
        + "</p>"
    )
    if report["problems"]:
        yield "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in report["problems"]) + "</ul>"
    tx, commit = report["transactions"], report["commit_ms"]
    facts = {
        "place": report["place"],
        "store": report["store"],
        "workload": f"{report['workload']}, {report['clients']} clients ({', '.join(report['libraries'])})",
        "seed": report["seed"],
        "load": f"{report['load_s']:,} s, {report['commits_per_s']} commits a second",
        "kills of the primary": report["kills"],
        "faults": ", ".join(f"{number} {kind}" for kind, number in report["faults"].items()) or "none",
        "transactions": f"{tx['begun']:,} begun, {tx['committed']:,} committed, {tx['unknown']:,} unknown",
        "lost, torn, doubled": f"{report['lost']}, {report['partial']}, {report['doubled']}",
        "out of order, stale": f"{report['unordered']}, {report['stale']}",
        "commit": f"p50 {_ms(commit['p50'])}, p99 {_ms(commit['p99'])}, max {_ms(commit['max'])}",
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    yield f"<table>{rows}</table>"
    if report["failover_ms"]:
        cells = "".join(
            f"<tr><td>{escape(kind)}</td><td>{each['number']}</td><td>{_ms(each['median'])}</td><td>{_ms(each['max'])}</td></tr>"
            for kind, each in report["failover_ms"].items()
        )
        yield f"<table><tr><th>failover after</th><th>number</th><th>median</th><th>worst</th></tr>{cells}</table>"


def _zoom_buttons(taken: Sequence[Failover], run: Run) -> str:
    """Buttons that zoom the run to one failover."""
    if not taken:
        return ""
    buttons = "".join(
        f'<button data-from="{each.fault.began_s - run.began_s:.3f}" data-ms="{each.ms or 0}">'
        f"{each.fault.number} {escape(each.fault.kind)} {_ms(each.ms)}</button>"
        for each in taken
    )
    return (
        f'<details><summary>Zoom to a failover</summary><div id="zooms"><button data-all="1">whole run</button>{buttons}'
        "</div></details>"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


# -- plots ------------------------------------------------------------------------------------------------------------


def _html(figure: go.Figure, name: str, *, with_script: bool = False) -> str:
    figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hovermode="closest")
    text: str = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=with_script,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    return text


def _run_figure(run: Run, history: History) -> go.Figure:
    """Throughput, latency, roles and faults over the time of the run."""
    kinds = sorted({fault.kind for fault in run.faults})
    brokers = sorted({moment.broker for moment in run.moments}, reverse=True)
    figure = make_subplots(
        rows=4, cols=1, shared_xaxes=True, vertical_spacing=0.03,
        row_heights=[0.26, 0.26, 0.08 + 0.06 * len(brokers), 0.08 + 0.03 * max(1, len(kinds))],
    )  # fmt: skip
    answered = sorted(
        (tx.answered_s - run.began_s, 1000 * (tx.answered_s - tx.commit_sent_s))
        for tx in history.transactions.values()
        if tx.answered_s is not None and tx.commit_sent_s is not None
    )
    figure.add_trace(_throughput([at for at, _ in answered], run.ended_s - run.began_s), row=1, col=1)
    shown = answered[:: max(1, len(answered) // MOST_POINTS)]
    figure.add_trace(
        go.Scattergl(
            x=[at for at, _ in shown], y=[ms for _, ms in shown], mode="markers", name="commit",
            marker={"size": 3, "color": COMMITS, "opacity": 0.6}, showlegend=False,
            hovertemplate="%{x:.2f} s: %{y:.1f} ms<extra></extra>",
        ),
        row=2, col=1,
    )  # fmt: skip
    for state, colour in STATES.items():
        figure.add_trace(_segments(state, colour, _roles(run, state)), row=3, col=1)
    for kind in kinds:
        spans = [(fault.kind, _span(fault, run), _told(fault)) for fault in run.faults if fault.kind == kind]
        figure.add_trace(_segments(kind, _colour(kind), spans, legend=False), row=4, col=1)
    figure.update_layout(
        height=640 + 20 * len(kinds),
        margin={"l": 110, "r": 20, "t": 20, "b": 40},
        legend={"orientation": "h", "y": -0.08},
        shapes=[_band(fault, run) for fault in run.faults],
    )
    figure.update_yaxes(title_text="commits/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="tx.commit, ms", type="log", row=2, col=1)
    figure.update_yaxes(categoryorder="array", categoryarray=brokers, row=3, col=1)
    figure.update_yaxes(categoryorder="array", categoryarray=kinds[::-1], row=4, col=1)
    figure.update_xaxes(range=[0, run.ended_s - run.began_s])
    figure.update_xaxes(title_text="seconds of the load", row=4, col=1)
    return figure


def _throughput(answered: Sequence[float], length_s: float) -> go.Scatter:
    bins = [0] * (int(length_s / BIN_S) + 1)
    for at in answered:
        if 0 <= at <= length_s:
            bins[int(at / BIN_S)] += 1
    return go.Scatter(
        x=[BIN_S * (index + 0.5) for index in range(len(bins))], y=[count / BIN_S for count in bins], mode="lines",
        line={"color": COMMITS, "width": 1.5}, fill="tozeroy", name="commits", showlegend=False,
        hovertemplate="%{x:.1f} s: %{y:.0f}/s<extra></extra>",
    )  # fmt: skip


Span = tuple[str, tuple[float, float], str]
"""A row, from when to when, and what a pointer is told."""


def _segments(name: str, colour: str, spans: Sequence[Span], *, legend: bool = True) -> go.Scatter:
    """Thick lines, one a span."""
    x: list[float | None] = []
    y: list[str | None] = []
    text: list[str | None] = []
    for row, (start, end), told in spans:
        x += [start, end, None]
        y += [row, row, None]
        text += [told, told, None]
    return go.Scatter(
        x=x, y=y, text=text, mode="lines", name=name, line={"color": colour, "width": 12}, showlegend=legend,
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _roles(run: Run, state: str) -> list[Span]:
    """When each broker was in that state."""
    spans: list[Span] = []
    for broker in {moment.broker for moment in run.moments}:
        own = [moment for moment in run.moments if moment.broker == broker]
        ends = [moment.at_s for moment in own[1:]] + [run.ended_s]
        for moment, end_s in zip(own, ends, strict=True):
            if _state(moment.role, moment.status) == state:
                span = (max(moment.at_s, run.began_s) - run.began_s, min(end_s, run.ended_s) - run.began_s)
                if span[0] < span[1]:
                    spans.append((broker, span, f"{broker} {moment.role} {moment.status}, epoch {moment.epoch}"))
    return spans


def _state(role: str, status: str) -> str:
    if status in ("silent", "down"):
        return status
    if role == "primary":
        return "primary active" if status == "active" else "primary recovering"
    if role == "backup":
        return "backup ready" if status == "ready" else "backup behind"
    return "starting"


def _colour(kind: str) -> str:
    return FAMILIES.get(kind.partition("-")[0], NETWORK)


def _span(fault: Fault, run: Run) -> tuple[float, float]:
    return fault.began_s - run.began_s, fault.healed_s - run.began_s


def _told(fault: Fault) -> str:
    return f"{fault.number} {fault.kind} of {', '.join(fault.targets)}, {fault.healed_s - fault.began_s:.1f} s"


def _band(fault: Fault, run: Run) -> dict[str, Any]:
    start, end = _span(fault, run)
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1, "layer": "below",
        "fillcolor": _colour(fault.kind), "opacity": 0.12, "line": {"width": 0},
    }  # fmt: skip


def _zoomed(taken: Sequence[Failover], faults: Sequence[Fault], history: History) -> go.Figure:
    """A row each: commits as ticks, from a second before the strike until the next strike."""
    answers = sorted(tx.answered_s for tx in history.transactions.values() if tx.answered_s is not None)
    longest_s = min(LONGEST_ZOOM_S, max((each.ms or 0) / 1000 for each in taken) + BEFORE_S)
    x: list[float] = []
    y: list[str] = []
    for each in taken:
        began_s = each.fault.began_s
        until_s = min((other.began_s for other in faults if other.began_s > began_s), default=float("inf"))
        near = [at - began_s for at in answers if began_s - BEFORE_S <= at <= min(until_s, began_s + longest_s)]
        x += near
        y += [_row(each)] * len(near)
    figure = go.Figure()
    tick: Callable[[str, int], dict[str, Any]] = lambda colour, size: {  # noqa: E731
        "symbol": "line-ns", "size": size, "line": {"color": colour, "width": 1}
    }  # fmt: skip
    figure.add_trace(go.Scattergl(x=x, y=y, mode="markers", marker=tick(COMMITS, 9), name="commits", hoverinfo="x+y"))
    first = [each for each in taken if each.ms is not None]
    figure.add_trace(
        go.Scatter(
            x=[(each.ms or 0) / 1000 for each in first], y=[_row(each) for each in first], mode="markers",
            marker={"color": FIRST, "size": 7}, name="first of a new transaction",
            text=[f"{each.fault.kind}: {_ms(each.ms)}" for each in first], hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": FIRST, "width": 1, "dash": "dot"})
    figure.update_layout(
        height=120 + ZOOM_ROW_PX * len(taken),
        margin={"l": 170, "r": 20, "t": 10, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    figure.update_xaxes(title_text="seconds since the strike", range=[-BEFORE_S, longest_s])
    figure.update_yaxes(categoryorder="array", categoryarray=[_row(each) for each in reversed(taken)], dtick=1)
    return figure


def _row(each: Failover) -> str:
    return f"{each.fault.number} {each.fault.kind}"


def _distribution(taken: Sequence[Failover]) -> go.Figure:
    figure = go.Figure()
    kinds: dict[str, list[float]] = {}
    for each in taken:
        if each.ms is not None:
            kinds.setdefault(each.fault.kind + (", not all ready" if each.fault.early else ""), []).append(each.ms)
    for kind, times in sorted(kinds.items(), reverse=True):
        figure.add_trace(
            go.Box(
                x=times, name=kind, boxpoints="all", jitter=0.5, pointpos=0, marker={"color": _colour(kind), "size": 4},
                line={"width": 1}, fillcolor="rgba(0,0,0,0)", showlegend=False,
            )
        )  # fmt: skip
    figure.update_layout(height=100 + 60 * max(1, len(kinds)), margin={"l": 220, "r": 20, "t": 10, "b": 40})
    figure.update_xaxes(title_text="milliseconds", type="log")
    return figure
