"""The plots of a report: `Report` to plotly figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from understudy.pipeline.report.axis import Axis
from understudy.pipeline.report.failovers import ZOOM_BIN_MS, Failover, epoch_bands
from understudy.pipeline.report.gathered import Report
from understudy.pipeline.report.lives import DOWN, SILENT

STATES: Final = {
    "primary active": "#2a78d6",
    "primary recovering": "#7db2ee",
    "backup ready": "#1d9a6c",
    "backup behind": "#d9a400",
    "starting": "#9a7bd0",
    SILENT: "#c2569b",
    DOWN: "#d5483f",
}
READY: Final = "ready"
NOT_READY: Final = "not ready"
READINESS: Final = {READY: "#1d9a6c", NOT_READY: "#d9a400"}
COMMITS: Final = "#2a78d6"
MESSAGES: Final = "#9a7bd0"
FAULT: Final = "#d5483f"
REFUSED: Final = "#d9822b"
SHADES: Final = (("p50", "#7db2ee"), ("p95", "#2a78d6"), ("p99", "#7a5fc0"), ("max", "#c2569b"))
BROKERS: Final = ("#2a78d6", "#1d9a6c", "#d9822b", "#9a7bd0", "#c2569b", "#4a7f8c", "#8a6d3b")
PHASES: Final = (
    ("until it was noticed", "#d5483f"),
    ("election", "#d9822b"),
    ("recovery", "#7db2ee"),
    ("until the first commit", "#9a7bd0"),
)
TALLEST_ROLES: Final = 24
ROW_PX: Final = 26

Segment = tuple[str, int, int, str]
"""Row, from and until in ms, and what a pointer is told."""


def moment(at_ms: float) -> str:
    """A wall clock as plotly reads it: UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def run_figure(report: Report) -> go.Figure:
    """Throughput, latency, lag, roles and readiness over one axis of time; failovers and refused work as bands."""
    brokers = report.content.brokers
    backups = sorted({row["backup"] for row in report.readiness})
    heights = [190, 190, 150, 150, 24 + ROW_PX * len(brokers), 24 + ROW_PX * max(1, len(backups))]
    figure = make_subplots(
        rows=6, cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=0.022,
        specs=[[{"secondary_y": True}], *([[{}]] * 5)],
    )  # fmt: skip
    _throughput(figure, report)
    _latency(figure, report)
    _lag(figure, report)
    _delays(figure, report)
    _roles(figure, report)
    _readiness(figure, report)
    figure.update_layout(
        height=sum(heights) + 230,
        margin={"l": 90, "r": 60, "t": 20, "b": 150},
        legend={"orientation": "h", "y": -60 / sum(heights), "yanchor": "top", "traceorder": "normal"},
        shapes=list(_bands(report)),
        hovermode="closest",
    )
    axis = report.axis
    figure.update_xaxes(range=[moment(axis.from_ms), moment(max(axis.to_ms, axis.from_ms + 1))], showticklabels=False)
    figure.update_xaxes(title_text="time, UTC", showticklabels=True, row=6, col=1)
    return figure


def _times(axis: Axis) -> list[str]:
    return [moment(axis.begin_ms(bucket) + axis.width_ms / 2) for bucket in range(axis.buckets)]


def _throughput(figure: go.Figure, report: Report) -> None:
    times = _times(report.axis)
    figure.add_trace(
        go.Scatter(
            x=times, y=report.rates["commits"], name="commits/s", mode="lines", fill="tozeroy",
            line={"color": COMMITS, "width": 1.5}, hovertemplate="%{y:.1f} commits/s<extra></extra>",
        ),
        row=1, col=1, secondary_y=False,
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=times, y=report.rates["enqueues"], name="messages in/s (right)", mode="lines",
            line={"color": MESSAGES, "width": 1}, hovertemplate="%{y:.1f} messages/s<extra></extra>",
        ),
        row=1, col=1, secondary_y=True,
    )  # fmt: skip
    figure.update_yaxes(title_text="commits/s", rangemode="tozero", row=1, col=1, secondary_y=False)
    figure.update_yaxes(title_text="messages/s", rangemode="tozero", showgrid=False, row=1, col=1, secondary_y=True)


def _latency(figure: go.Figure, report: Report) -> None:
    axis = report.axis
    dense = _dense(report.commit_ms, axis)
    for name, colour in SHADES:
        figure.add_trace(
            go.Scatter(
                x=_times(axis), y=[None if row is None else max(row[name], 0.5) for row in dense], name=f"commit {name}",
                mode="lines+markers", marker={"size": 3}, line={"color": colour, "width": 1.2},
                hovertemplate=f"{name} %{{y:.0f}} ms<extra></extra>",
            ),
            row=2, col=1,
        )  # fmt: skip
    if any(row["told_p99"] is not None for row in report.commit_ms):
        figure.add_trace(
            go.Scatter(
                x=_times(axis), y=[None if row is None else row["told_p99"] for row in dense], mode="lines",
                name="until told p99", line={"color": FAULT, "width": 1, "dash": "dot"},
                hovertemplate="told p99 %{y:.0f} ms<extra></extra>",
            ),
            row=2, col=1,
        )  # fmt: skip
    figure.update_yaxes(title_text="commit, ms", type="log", row=2, col=1)


def _dense(rows: Iterable[Mapping[str, Any]], axis: Axis) -> list[Mapping[str, Any] | None]:
    """A place per bucket; None where there is no row, so that a line breaks there."""
    places: list[Mapping[str, Any] | None] = [None] * axis.buckets
    for row in rows:
        if 0 <= row["bucket"] < axis.buckets:
            places[row["bucket"]] = row
    return places


def colour_of(brokers: Sequence[str], broker: str) -> str:
    """A broker has the same colour in all plots."""
    return BROKERS[brokers.index(broker) % len(BROKERS)] if broker in brokers else BROKERS[-1]


def _lag(figure: go.Figure, report: Report) -> None:
    for broker, lags in report.lag.items():
        figure.add_trace(
            go.Scatter(
                x=_times(report.axis), y=lags, name=broker, legendgroup=broker, mode="lines",
                line={"color": colour_of(report.content.brokers, broker), "width": 1.2, "shape": "hv"},
                hovertemplate=f"{broker} lacks %{{y:,}} records<extra></extra>",
            ),
            row=3, col=1,
        )  # fmt: skip
    figure.update_yaxes(title_text="lag, records", rangemode="tozero", row=3, col=1)


def _delays(figure: go.Figure, report: Report) -> None:
    for broker in sorted({row["broker"] for row in report.delays}):
        dense = _dense([row for row in report.delays if row["broker"] == broker], report.axis)
        figure.add_trace(
            go.Scatter(
                x=_times(report.axis), y=[None if row is None else row["p99"] for row in dense], name=broker,
                legendgroup=broker, showlegend=broker not in report.lag, mode="lines+markers", marker={"size": 3},
                line={"color": colour_of(report.content.brokers, broker), "width": 1.2},
                hovertemplate=f"{broker}: p99 %{{y:.0f}} ms behind the primary<extra></extra>",
            ),
            row=4, col=1,
        )  # fmt: skip
    figure.update_yaxes(title_text="delay p99, ms", row=4, col=1)


def _roles(figure: go.Figure, report: Report) -> None:
    for state, colour in STATES.items():
        segments = [
            (span.broker, span.from_ms, span.until_ms, _span_text(span.broker, span.state, span.epoch))
            for span in report.spans
            if shown_state(span.state) == state
        ]
        figure.add_trace(_segments(state, colour, segments, group="roles"), row=5, col=1)
    figure.update_yaxes(
        title_text="roles", categoryorder="array", categoryarray=report.content.brokers[::-1], row=5, col=1
    )


def shown_state(state: str) -> str:
    """The state that has a colour."""
    if state in (DOWN, SILENT):
        return state
    role, _, status = state.partition(" ")
    if role == "primary":
        return "primary active" if status == "active" else "primary recovering"
    if role == "backup":
        return "backup ready" if status == "ready" else "backup behind"
    return "primary active" if role == "standalone" else "starting"


def _span_text(broker: str, state: str, epoch: int) -> str:
    return f"{broker}: {state}" + (f", epoch {epoch}" if epoch else "")


def _readiness(figure: go.Figure, report: Report) -> None:
    for state, colour in READINESS.items():
        segments = [
            (row["backup"], row["from_ms"], row["until_ms"], readiness_text(row))
            for row in report.readiness
            if row["ready"] == (state == READY)
        ]
        figure.add_trace(_segments(state, colour, segments, group="readiness"), row=6, col=1)
    backups = sorted({row["backup"] for row in report.readiness}, reverse=True)
    figure.update_yaxes(title_text="readiness", categoryorder="array", categoryarray=backups, row=6, col=1)


def readiness_text(row: Mapping[str, Any]) -> str:
    """The text that a pointer shows at a span of readiness."""
    words = [READY if row["ready"] else NOT_READY, f"says {row['teller']}"]
    words += [] if row["listed"] else ["not in the in-sync set"]
    words += [] if row["linked"] else ["no link"]
    return "<br>".join([f"{row['backup']}: {', '.join(words)}", *row["blockers"]])


def _segments(name: str, colour: str, segments: Sequence[Segment], *, group: str) -> go.Scatter:
    """Thick lines, one a segment; none has no place in the legend."""
    x: list[str | None] = []
    y: list[str | None] = []
    texts: list[str | None] = []
    for row, from_ms, until_ms, text in segments:
        x += [moment(from_ms), moment(until_ms), None]
        y += [row, row, None]
        texts += [text, text, None]
    return go.Scatter(
        x=x, y=y, text=texts, mode="lines", name=name, legendgroup=group, showlegend=bool(segments),
        line={"color": colour, "width": 13}, hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _bands(report: Report) -> Iterable[dict[str, Any]]:
    """Over all rows: no primary, and refused work. In the row of lag: when a broker was down."""
    for from_ms, until_ms, _ in epoch_bands(report.failovers, report.axis.to_ms):
        yield _band(from_ms, until_ms, FAULT, 0.16)
    for span in report.refusals:
        yield _band(span.from_ms, span.until_ms, REFUSED, 0.12)
    for span in report.spans:
        if span.state == DOWN:
            yield _band(span.from_ms, span.until_ms, FAULT, 0.05)


def _band(from_ms: int, until_ms: int, colour: str, opacity: float) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": moment(from_ms), "x1": moment(until_ms), "y0": 0, "y1": 1,
        "layer": "below", "fillcolor": colour, "opacity": opacity, "line": {"width": 0},
    }  # fmt: skip


# -- failovers --------------------------------------------------------------------------------------------------------


def failover_figure(report: Report) -> go.Figure:
    """A row per failover: its phases as bars, and commits as ticks, in seconds from the first sign."""
    shown = [each for each in report.failovers if each.number in report.zooms]
    rows = [failover_label(each) for each in shown]
    figure = go.Figure()
    for index, (phase, colour) in enumerate(PHASES):
        x: list[float | None] = []
        y: list[str | None] = []
        texts: list[str | None] = []
        for each in shown:
            ends = _phase_ends(each)
            begin, end = ends[index], ends[index + 1]
            if begin is not None and end is not None and end > begin:
                x += [_seconds(each, begin), _seconds(each, end), None]
                y += [failover_label(each), failover_label(each), None]
                texts += [f"{phase}: {end - begin:,} ms"] * 2 + [None]
        figure.add_trace(
            go.Scatter(
                x=x, y=y, text=texts, mode="lines", name=phase, line={"color": colour, "width": 14}, opacity=0.55,
                hovertemplate="%{text}<extra></extra>", showlegend=bool(x),
            )
        )  # fmt: skip
    figure.add_trace(_commit_ticks(report, shown))
    figure.add_vline(x=0, line={"color": FAULT, "width": 1, "dash": "dot"})
    figure.update_layout(
        height=130 + 30 * len(shown),
        margin={"l": 150, "r": 20, "t": 10, "b": 40},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )
    figure.update_xaxes(title_text="seconds from the first sign")
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], dtick=1)
    return figure


def failover_label(each: Failover) -> str:
    """The name of a row."""
    return f"{each.number}: {each.was} to {each.now}"


def _phase_ends(each: Failover) -> tuple[int | None, ...]:
    """Ends of the phases, in order: five moments; one that is earlier than the one before stands at that one."""
    first = each.began_ms
    if each.last_commit_ms is not None and first is not None:
        first = min(first, max(each.last_commit_ms, first - 15_000))
    ends: list[int | None] = []
    latest: int | None = None
    for each_ms in (first, each.began_ms, each.epoch_ms, each.active_ms, each.first_commit_ms):
        if each_ms is None:
            ends.append(None)
            continue
        latest = each_ms if latest is None else max(latest, each_ms)
        ends.append(latest)
    return tuple(ends)


def _seconds(each: Failover, at_ms: float) -> float:
    return (at_ms - (each.began_ms or 0)) / 1000


def _commit_ticks(report: Report, shown: Sequence[Failover]) -> go.Scatter:
    x: list[float] = []
    y: list[str] = []
    texts: list[str] = []
    heights: list[float] = []
    for each in shown:
        zoom = report.zooms[each.number]
        most = max(zoom["commits"].values(), default=1)
        for bin_number, count in sorted(zoom["commits"].items()):
            x.append(_seconds(each, zoom["from_ms"] + (bin_number + 0.5) * ZOOM_BIN_MS))
            y.append(failover_label(each))
            texts.append(f"{count:,} commits in {ZOOM_BIN_MS} ms")
            heights.append(6 + 12 * (count / most) ** 0.5)
    marker = {"symbol": "line-ns", "size": heights, "line": {"color": COMMITS, "width": 1.5}}
    return go.Scatter(
        x=x, y=y, text=texts, mode="markers", marker=marker, name=f"commits per {ZOOM_BIN_MS} ms",
        hovertemplate="%{x:.2f} s: %{text}<extra></extra>",
    )  # fmt: skip


# -- sizes ------------------------------------------------------------------------------------------------------------


def size_figure(report: Report) -> go.Figure:
    """Shares of sync groups by records, per broker; and of transactions by operations."""
    figure = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.09, subplot_titles=("log records per fsync", "operations per transaction")
    )
    classes = {size for each in report.syncs.values() for size in each["classes"]}
    for broker, each in report.syncs.items():
        figure.add_trace(
            _shares(each["classes"], classes, broker, colour_of(report.content.brokers, broker)), row=1, col=1
        )
    figure.add_trace(
        _shares(report.operations, set(report.operations), "transactions", MESSAGES, legend=False), row=1, col=2
    )
    figure.update_layout(
        height=330,
        barmode="group",
        margin={"l": 60, "r": 20, "t": 40, "b": 40},
        legend={"orientation": "h", "y": -0.15},
    )
    figure.update_yaxes(title_text="share, %", row=1, col=1)
    figure.update_xaxes(type="category")
    return figure


def _shares(
    counts: Mapping[int, int], classes: Iterable[int], name: str, colour: str, *, legend: bool = True
) -> go.Bar:
    ordered = range(min(classes, default=0), max(classes, default=-1) + 1)
    whole = sum(counts.values()) or 1
    return go.Bar(
        x=[_class_label(each) for each in ordered], y=[100 * counts.get(each, 0) / whole for each in ordered], name=name,
        marker={"color": colour}, showlegend=legend, customdata=[counts.get(each, 0) for each in ordered],
        hovertemplate=f"{name}: %{{customdata:,}} of size %{{x}}, %{{y:.1f}} %<extra></extra>",
    )  # fmt: skip


def _class_label(size_class: int) -> str:
    least, most = 2**size_class, 2 ** (size_class + 1) - 1
    return str(least) if least == most else f"{least}-{most}"
