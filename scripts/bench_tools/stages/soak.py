"""Soak: very many stages without a fault; is each effect there once, and is the memory of the worker flat?

One broker, one worker in a process of its own, flows of two stages over one SQLite file, without inbox and outbox: so an effect
that is there twice shows the window between the two commits. Flows are begun while others go on, a bounded number at a time.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench_tools.errors import BenchError
from bench_tools.stages.place import Place
from bench_tools.stages.sides import TABLES, Order, application
from understudy.client.stages.application.worker import Worker

MOST_IN_FLIGHT: Final = 2000
AT_ONCE: Final = 200
SAMPLE_S: Final = 5.0
POLL_S: Final = 0.2
IDLE_S: Final = 60.0
"""A worker that ends no flow for so long stands still."""
TEXT: Final = "x" * 100
MIB: Final = 1024.0 * 1024.0


def run(place: Place, *, stages: int, concurrency: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Carry it out: ``stages`` in all, of which each flow has two.

    Raises:
        BenchError: the worker ended, or stands still.
    """
    flows = -(-stages // 2)
    database, queue = place.cell("sqlite", 0, alone=False)
    log = place.folder / "soak.log"
    with log.open("wb") as said:
        worker = subprocess.Popen(
            [sys.executable, "-m", "bench_tools.stages.soak", place.broker, database, queue, str(concurrency)],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        began_s = time.monotonic()
        samples = asyncio.run(_load(place.broker, database, queue, flows, worker, say))
        seconds = time.monotonic() - began_s
    finally:
        worker.terminate()
        code = worker.wait()
    if code:
        raise BenchError(f"the worker ended with {code}: {log.read_text(encoding='utf-8', errors='replace')[-1000:]}")
    found = {table: _effects(database, table) for table in TABLES}
    slope = slope_of(samples[len(samples) // 2 :])
    table = (
        f"{2 * flows:,} stages in {seconds:,.0f} s; "
        + "; ".join(f"{name}: {there:,} effects, {twice} twice" for name, (there, twice) in found.items())
        + f"\nmemory of the worker: {samples[0][1]:.1f} MiB at the first sample, {samples[-1][1]:.1f} MiB at the last one; "
        f"in the second half {slope * 3600:+.2f} MiB an hour"
    )
    return {
        "table": table, "flows": flows, "seconds": seconds, "effects": found, "memory_mib": samples,
        "mib_an_hour": slope * 3600, "ok": all(each == (flows, 0) for each in found.values()),
    }  # fmt: skip


async def _load(
    broker: str, database: str, queue: str, flows: int, worker: subprocess.Popen[bytes], say: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Begin flows, until all have come to their end; the memory of the worker by time, s and MiB."""
    stages = application(broker, database, queue, side="nothing", concurrency=1, note=lambda: None)
    begun = done = 0
    began_s = moved_s = time.monotonic()
    samples: list[tuple[float, float]] = []
    with_rows = sqlite3.connect(database, timeout=60)
    try:
        while done < flows:
            if worker.poll() is not None or time.monotonic() - moved_s > IDLE_S:
                raise BenchError(f"the worker stands still, or has ended: {done:,} of {flows:,} flows")
            while begun < flows and begun - done <= MOST_IN_FLIGHT:
                async with stages.begin(outbox=False):
                    for number in range(begun, min(flows, begun + AT_ONCE)):
                        stages.flows["both"].send(Order(number, TEXT))
                begun = min(flows, begun + AT_ONCE)
            await asyncio.sleep(POLL_S)
            found = with_rows.execute("SELECT max(rowid) FROM last").fetchone()[0] or 0
            if found != done:
                done, moved_s = found, time.monotonic()
            if done and (not samples or time.monotonic() - began_s > samples[-1][0] + SAMPLE_S):
                samples.append((time.monotonic() - began_s, resident_mib(worker.pid)))
                say(f"{2 * done:,} stages, {samples[-1][1]:.1f} MiB")
    finally:
        with_rows.close()
        await stages.close()
    return samples


def _effects(database: str, table: str) -> tuple[int, int]:
    """How many numbers a table has, and how many rows more than numbers."""
    with sqlite3.connect(database) as db:
        sql = f"SELECT count(DISTINCT number), count(*) FROM {table} WHERE number >= 0"  # noqa: S608  # below: the place's own
        there, rows = db.execute(sql).fetchone()
    db.close()
    return int(there), int(rows - there)


def resident_mib(pid: int) -> float:
    """The memory of a process that is in use and not shared with files, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / MIB
    raise BenchError(f"process {pid} tells no RssAnon")


def slope_of(samples: Sequence[tuple[float, float]]) -> float:
    """Of the straight line with the least squares, MiB a second; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    mean_s = sum(at_s for at_s, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in samples)
    return sum((at_s - mean_s) * (value - mean) for at_s, value in samples) / spread


async def _work(broker: str, database: str, queue: str, concurrency: int) -> None:
    stages = application(broker, database, queue, side="nothing", concurrency=concurrency, note=lambda: None)
    worker = Worker(stages)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
