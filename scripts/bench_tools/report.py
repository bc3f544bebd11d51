"""Medians of the rounds, and of the ratios of each round, as a plain table and as JSON."""

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

_COMPARED = ("messages_per_s", "broker_cpu_us_per_message", "p50_us", "p99_us")

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

    ``ratios`` has for each other side the medians of the rounds' ratios, ours divided by theirs (above 1 is better for rates, below
    1 for CPU and latency), and the lowest and the highest ratio of the rates; ``ratio`` is that to the first of them. ``goal_met``
    is None where no goal is stated or a side is missing. ``kept``, of a row with a delay, is by side the median of the rounds'
    rates divided by those at the row's first delay.
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
        entry |= _compare(row, sides, outcomes)
        entry["kept"] = {side: _kept(row, rows, side, outcomes) for side in sides}
        entries.append(entry)
    return entries


def _by_round(row: Row, side: SideName, outcomes: Sequence[Outcome]) -> dict[int, Sample]:
    return {each.round: each.sample for each in outcomes if each.row == row.name and each.side == side and each.sample}


def _kept(row: Row, rows: Sequence[Row], side: SideName, outcomes: Sequence[Outcome]) -> float | None:
    if row.delay_ms is None:
        return None
    name = row.name.partition("+")[0]
    first = next(each for each in rows if each.name.partition("+")[0] == name)
    before, now = _by_round(first, side, outcomes), _by_round(row, side, outcomes)
    shares = [now[number].messages_per_s / before[number].messages_per_s for number in now if number in before]
    return round(median(shares), 3) if shares and row is not first else None


def _median(samples: Sequence[Sample], name: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return round(median(values), 3) if values else None


def _spread(samples: Sequence[Sample]) -> float | None:
    """(highest - lowest) / median of the message rate over the rounds."""
    rates = [sample.messages_per_s for sample in samples]
    return round((max(rates) - min(rates)) / median(rates), 3) if rates and median(rates) else None


def _compare(row: Row, sides: Sequence[SideName], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ours = _by_round(row, "understudy", outcomes)
    ratios = {}
    for side in sides:
        theirs = _by_round(row, side, outcomes)
        both = [number for number in ours if number in theirs]
        if side != "understudy" and both:
            ratios[side] = _ratios([(ours[number], theirs[number]) for number in both])
    ratio = next(iter(ratios.values()), None)
    met = None
    if row.has_goal and ratio is not None:
        met = ratio["messages_per_s"] >= RATE_GOAL and ratio["broker_cpu_us_per_message"] <= CPU_GOAL
    return {"ratio": ratio, "ratios": ratios, "goal_met": met}


def _ratios(pairs: Sequence[tuple[Sample, Sample]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _COMPARED:
        values = [
            getattr(ours, name) / getattr(theirs, name)
            for ours, theirs in pairs
            if getattr(ours, name) is not None and getattr(theirs, name)
        ]
        found[name] = round(median(values), 3) if values else None
        if name == "messages_per_s":
            found |= {"lowest": round(min(values), 3), "highest": round(max(values), 3)}
    return found


def table(entries: Sequence[Mapping[str, Any]], sides: Sequence[SideName]) -> str:
    """The medians; one line a side and row, then ours against theirs."""
    lines = [["row", "side", *(title for title, *_ in _COLUMNS), "spread %"]]
    for entry in entries:
        lines += [[entry["row"], side, *_cells(entry[side])] for side in sides]
    text = aligned(lines)
    compared = [_ratio_line(entry, side) for entry in entries for side in entry["ratios"]]
    if compared:
        head = ["row", "ours / theirs", "msgs/s", "lowest", "highest", "broker us/msg", "p50", "p99", "goal"]
        text += "\n\n" + aligned([head, *compared])
    kept = [[entry["row"], side, f"{share:.2f}"] for entry in entries for side, share in entry["kept"].items() if share]
    if kept:
        text += "\n\n" + aligned([["row", "side", "rate / at first delay"], *kept])
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


def _ratio_line(entry: Mapping[str, Any], side: str) -> list[str]:
    ratio = entry["ratios"][side]
    goal = {None: "", True: "met", False: "missed"}[entry["goal_met"] if ratio is entry["ratio"] else None]
    rate, *others = _COMPARED
    return [
        entry["row"],
        side,
        *(_number(ratio[name], 1, 2) for name in (rate, "lowest", "highest", *others)),
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
