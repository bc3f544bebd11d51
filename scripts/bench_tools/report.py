"""Medians of the rounds, as a plain table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from attrs import asdict, fields

from bench_tools.rows import Row
from bench_tools.runner import Outcome, SideName
from bench_tools.sample import Sample

RATE_GOAL = 2.0
CPU_GOAL = 0.5
_BUSY_MACHINE = 0.10

_FIGURES = tuple(a.name for a in fields(Sample) if a.name not in ("checks", "seconds", "feed_cpu_us_per_message"))

# title, figure, scale, decimals
_COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    ("commits/s", "commits_per_s", 1, 0),
    ("msgs/s", "messages_per_s", 1, 0),
    ("p50 ms", "p50_us", 1e-3, 2),
    ("p95 ms", "p95_us", 1e-3, 2),
    ("p99 ms", "p99_us", 1e-3, 2),
    ("p99.9 ms", "p999_us", 1e-3, 2),
    ("max ms", "max_us", 1e-3, 1),
    ("broker us/msg", "broker_cpu_us_per_message", 1, 0),
    ("broker cores", "broker_cores", 1, 2),
    ("gen us/msg", "generator_cpu_us_per_message", 1, 1),
    ("gen cores", "generator_cores", 1, 2),
    ("other %", "other_cpu_share", 100, 0),
    ("queued", "queued", 1, 0),
)


def summarise(rows: Sequence[Row], sides: Sequence[SideName], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One entry a row: per side the median of each figure, every round, and what went wrong; then the ratios.

    ``ratio`` is ours divided by theirs (above 1 is better for rates, below 1 for CPU and latency); ``goal_met`` is None
    where no goal is stated or a side is missing.
    """
    entries: list[dict[str, Any]] = []
    for row in rows:
        entry: dict[str, Any] = {"row": row.name, "load": asdict(row)}
        for side in sides:
            mine = [outcome for outcome in outcomes if outcome.row == row.name and outcome.side == side]
            measured = [(outcome.round, outcome.sample) for outcome in mine if outcome.sample is not None]
            samples = [sample for _, sample in measured]
            entry[side] = {
                "median": {name: _median(samples, name) for name in _FIGURES} if samples else None,
                "spread": _spread(samples),
                "rounds": [{"round": number, **asdict(sample)} for number, sample in measured],
                "problems": [f"round {outcome.round}: {outcome.error}" for outcome in mine if outcome.error],
            }
        entry |= _compare(row, entry)
        entries.append(entry)
    return entries


def _median(samples: Sequence[Sample], name: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return round(median(values), 3) if values else None


def _spread(samples: Sequence[Sample]) -> float | None:
    """(highest - lowest) / median of the message rate over the rounds."""
    rates = [sample.messages_per_s for sample in samples]
    return round((max(rates) - min(rates)) / median(rates), 3) if rates and median(rates) else None


def _compare(row: Row, entry: Mapping[str, Any]) -> dict[str, Any]:
    ours = (entry.get("understudy") or {}).get("median")
    theirs = (entry.get("rabbitmq") or {}).get("median")
    if not ours or not theirs:
        return {"ratio": None, "goal_met": None}
    ratio = {
        name: round(ours[name] / theirs[name], 3) if ours[name] is not None and theirs[name] else None
        for name in ("messages_per_s", "broker_cpu_us_per_message", "p50_us", "p99_us")
    }
    met = None
    if row.has_goal and ratio["messages_per_s"] is not None and ratio["broker_cpu_us_per_message"] is not None:
        met = ratio["messages_per_s"] >= RATE_GOAL and ratio["broker_cpu_us_per_message"] <= CPU_GOAL
    return {"ratio": ratio, "goal_met": met}


def table(entries: Sequence[Mapping[str, Any]], sides: Sequence[SideName]) -> str:
    """The medians; one line a side and row, then ours against theirs."""
    lines = [["row", "side", *(title for title, *_ in _COLUMNS), "spread %"]]
    for entry in entries:
        lines += [[entry["row"], side, *_cells(entry[side])] for side in sides]
    text = aligned(lines)
    compared = [entry for entry in entries if entry["ratio"]]
    if compared:
        text += "\n\n" + aligned(
            [
                ["row", "ours / theirs", "msgs/s", "broker us/msg", "p50", "p99", "goal"],
                *(_ratio_line(entry) for entry in compared),
            ]
        )
    problems = [
        f"  {entry['row']} {side} {problem.splitlines()[0]}"
        for entry in entries
        for side in sides
        for problem in entry[side]["problems"]
    ]
    busy = [
        f"  {entry['row']} {side} round {sample['round']}: {sample['other_cpu_share']:.0%}"
        for entry in entries
        for side in sides
        for sample in entry[side]["rounds"]
        if sample["other_cpu_share"] > _BUSY_MACHINE
    ]
    if problems:
        text += "\n\nproblems:\n" + "\n".join(problems)
    if busy:
        text += f"\n\nsomebody else used over {_BUSY_MACHINE:.0%} of the machine during:\n" + "\n".join(busy)
    return text


def _cells(summary: Mapping[str, Any]) -> list[str]:
    figures, spread = summary["median"], summary["spread"]
    if figures is None:
        return ["failed", *("" for _ in _COLUMNS)]
    cells = [_number(figures[name], scale, decimals) for _, name, scale, decimals in _COLUMNS]
    return [*cells, _number(spread, 100, 0)]


def _ratio_line(entry: Mapping[str, Any]) -> list[str]:
    ratio = entry["ratio"]
    goal = {None: "", True: "met", False: "missed"}[entry["goal_met"]]
    return [
        entry["row"],
        "",
        *(_number(ratio[name], 1, 2) for name in ("messages_per_s", "broker_cpu_us_per_message", "p50_us", "p99_us")),
        goal,
    ]


def _number(value: float | None, scale: float, decimals: int) -> str:
    return "-" if value is None else f"{value * scale:,.{decimals}f}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart, the first two to the left and figures to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
