"""Cells: one side over one database in one round; the table of them.

In each round every side runs once, in an order that rotates, so that ratios of one round compare what the same machine did within
a minute.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from bench_tools.errors import BenchError
from bench_tools.stages import rivals
from bench_tools.stages.place import DATABASES, Place
from bench_tools.stages.sides import ALONE, BASES, SIDES

MOST_RATE: Final = 2500
"""So many flows a second wait for a side; one that is faster is not measured."""
IDLE_FLOWS: Final = 30
"""A side that does nothing for so many times the pause between two flows had no work left."""
START_S: Final = 60.0
ALL: Final = (*SIDES[:4], *rivals.RIVALS, *SIDES[4:])
"""In the order of the table."""


@attrs.frozen(kw_only=True)
class Cell:
    """One side over one database, in one round.

    Attributes:
        rate: flows that ended, a second.
        cpu_ms: of the side's process, a flow.
    """

    database: str
    side: str
    round: int
    rate: float
    cpu_ms: float


def run(
    place: Place,
    *,
    databases: Sequence[str],
    sides: Sequence[str],
    rounds: int,
    seconds: float,
    concurrency: int,
    say: Callable[[str], None],
) -> list[Cell]:
    """All cells.

    Raises:
        BenchError: a side ended, or had nothing more to do.
    """
    cells = []
    interpreter = rivals.environment(say) if set(sides) & set(rivals.RIVALS) else None
    for number in range(rounds):
        order = [*sides[number % len(sides) :], *sides[: number % len(sides)]]
        for database in databases:
            for side in order:
                if side == "xa" and database == "sqlite":
                    continue  # refused by the library
                found = (
                    _rival(place, interpreter, database, side, seconds, concurrency)
                    if interpreter is not None and side in rivals.RIVALS
                    else _ours(place, database, side, seconds, concurrency)
                )
                cell = _cell(database, side, number, seconds, found)
                cells.append(cell)
                say(f"round {number + 1}, {database}, {side}: {cell.rate:.0f} flows/s, {cell.cpu_ms:.2f} ms of CPU")
    return cells


def _ours(place: Place, database: str, side: str, seconds: float, concurrency: int) -> dict[str, float]:
    warmup_s = seconds / 3
    address, queue = place.cell(database, round(MOST_RATE * (seconds + warmup_s)), alone=side in ALONE)
    words = [side, place.broker, address, place.state_server, queue, str(warmup_s), str(seconds), str(concurrency)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench_tools.stages.sides", *words],
            capture_output=True, text=True, check=False, timeout=START_S + warmup_s + seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{side} over {database} did not end within {error.timeout:g} s") from error
    if done.returncode:
        raise BenchError(f"{side} over {database} ended with {done.returncode}: {done.stderr[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _rival(
    place: Place, interpreter: Path, database: str, side: str, seconds: float, concurrency: int
) -> dict[str, float]:
    rival, warmup_s = rivals.RIVALS[side], seconds / 3
    flows = round(MOST_RATE * (seconds + warmup_s))
    address, queue = place.cell(database, 0 if rival.celery else flows, alone=False)
    settings = rivals.settings_of(rival, place.broker, address, queue, concurrency)
    if rival.celery:
        settings["BENCH_QUEUE"] += ".celery"  # queues of its own making, and messages of its own form
        rivals.fill(interpreter, settings, flows)
    log = place.folder / f"{queue}.{side}.log"
    return rivals.measure(rival, interpreter, settings, log, warmup_s=warmup_s, seconds=seconds)


def _cell(database: str, side: str, number: int, seconds: float, found: Mapping[str, float]) -> Cell:
    if not found["flows"] or found["idle_s"] > max(1.0, IDLE_FLOWS * seconds / found["flows"]):
        raise BenchError(f"{side} over {database}: {found}; nothing was left to do before the end of the window")
    return Cell(
        database=database, side=side, round=number, rate=found["flows"] / seconds,
        cpu_ms=found["cpu_s"] * 1000 / found["flows"],
    )  # fmt: skip


def table(cells: Sequence[Cell]) -> str:
    """Medians over the rounds, and the median ratio to the bare consumer of the same round."""
    lines = ["| database | side | flows/s | CPU a flow | to the bare consumer |", "|---|---|---|---|---|"]
    for database in DATABASES:
        for side in ALL:
            here = [cell for cell in cells if (cell.database, cell.side) == (database, side)]
            if not here:
                continue
            rate = statistics.median(cell.rate for cell in here)
            cpu = statistics.median(cell.cpu_ms for cell in here)
            ratio = ratio_of(cells, database, side)
            shown = "" if ratio is None else f"{ratio:.2f}"
            lines.append(f"| {database} | {side} | {rate:,.0f} | {cpu:.2f} ms | {shown} |")
    return "\n".join(lines)


def ratio_of(cells: Sequence[Cell], database: str, side: str) -> float | None:
    """The median of a side's ratios to its base; None for a base, or if its base was not measured."""
    base = "bare" if side in rivals.RIVALS else BASES.get(side)
    rates = {(cell.side, cell.round): cell.rate for cell in cells if cell.database == database}
    if base is None or (base, 0) not in rates:
        return None
    rounds = {cell.round for cell in cells}
    return statistics.median(rates[side, each] / rates[base, each] for each in rounds)
