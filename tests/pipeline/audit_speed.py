"""What an audit takes, by the number of events: measured on made feeds, and drawn.

    python -m tests.pipeline.audit_speed measure --events 1000000 10000000 --work DIR
    python -m tests.pipeline.audit_speed draw

``measure`` makes each feed below DIR if it is not there, runs ``understudy audit`` on it, and adds a line to
``docs/figures/audit-size.csv``. ``draw`` makes ``docs/figures/audit-size.svg`` of the newest line for each number of events; plotly
draws, in a headless Chromium.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from tests.pipeline.made_feed import write_feed
from tests.pipeline.made_rows import Size

FIGURES: Final = Path(__file__).parents[2] / "docs" / "figures"
TABLE: Final = FIGURES / "audit-size.csv"
DRAWING: Final = FIGURES / "audit-size.svg"
UNDERSTUDY: Final = str(Path(sys.executable).with_name("understudy"))
LOOK_S: Final = 0.2
TICKS: Final = os.sysconf("SC_CLK_TCK")
GOAL: Final = 300_000
"""Events a second."""


@attrs.frozen(kw_only=True)
class Measured:
    """One audit. Times in seconds, sizes in megabytes.

    Attributes:
        commit: of the program.
        events: how many.
        feed_mb: of the feed's files.
        clock_s: from the command's start to its end.
        tasks_cpu_s: of Spark's tasks, on all cores.
        java_cpu_s: of the Java process: tasks, planning, compiling, collecting garbage.
        gc_s: of tasks, while garbage was collected.
        spilled_mb: what did not fit into memory.
        resident_mb: the most that the Java process had.
        load: mean number of processes that ran or waited for a core, in the minute before the end.
    """

    commit: str
    events: int
    feed_mb: float
    clock_s: float
    tasks_cpu_s: float
    java_cpu_s: float
    gc_s: float
    spilled_mb: float
    resident_mb: float
    load: float


# -- measure ------------------------------------------------------------------------------------------------------------


def measure(events: int, work: Path, master: str, memory: str) -> Measured:
    """Audit a made feed of ``events`` events. Raises: AssertionError: it is not proved."""
    feed = work / f"feed-{events}"
    if not feed.exists():
        write_feed(Size.of(events), feed)
    folder = Path(tempfile.mkdtemp(prefix="audit-", dir=work))
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    command = [
        UNDERSTUDY,
        "audit",
        "--json",
        "--feed",
        str(feed),
        "--master",
        master,
        "--memory",
        memory,
        "--work",
        str(folder),
    ]
    began_s = time.monotonic()
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    cpu_s, resident_mb = _watched(process)
    clock_s = time.monotonic() - began_s
    assert process.stdout is not None
    verdict = json.loads(process.stdout.read().splitlines()[-1])
    assert verdict["verdict"] == "PROVED", verdict
    return Measured(
        commit=subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
        events=verdict["events"],
        feed_mb=round(sum(file.stat().st_size for file in feed.rglob("*.parquet")) / 1e6, 1),
        clock_s=round(clock_s, 1),
        java_cpu_s=round(cpu_s, 1),
        resident_mb=round(resident_mb),
        load=round(os.getloadavg()[0], 1),
        **_of_tasks(folder),
    )


def _watched(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Until the command has ended: CPU seconds and the largest resident size, in MB, of its Java process."""
    cpu_s = resident_mb = 0.0
    while process.poll() is None:
        time.sleep(LOOK_S)
        for child in _below(process.pid):
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{child}/status").read_text()
            except OSError:
                continue  # it has just ended
            cpu_s = max(cpu_s, (int(fields[11]) + int(fields[12])) / TICKS)
            peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), "0")
            resident_mb = max(resident_mb, int(peak) / 1024)
    return cpu_s, resident_mb


def _below(pid: int) -> Iterator[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for each in map(int, found):
        yield each
        yield from _below(each)


def _of_tasks(folder: Path) -> dict[str, float]:
    """Sums over the tasks in Spark's event log."""
    cpu_ns = gc_ms = spilled = 0
    for file in folder.glob("*"):
        if not file.is_file() or file.suffix == ".conf":
            continue
        for line in file.open():
            if '"SparkListenerTaskEnd"' in line:
                found: dict[str, Any] = json.loads(line).get("Task Metrics") or {}
                cpu_ns += found.get("Executor CPU Time", 0)
                gc_ms += found.get("JVM GC Time", 0)
                spilled += found.get("Disk Bytes Spilled", 0)
    return {"tasks_cpu_s": round(cpu_ns / 1e9, 1), "gc_s": round(gc_ms / 1e3, 1), "spilled_mb": round(spilled / 1e6, 1)}


def note(found: Measured) -> None:
    """Add a line to the table."""
    fresh = not TABLE.exists()
    with TABLE.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in attrs.fields(Measured)], lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(attrs.asdict(found))


# -- draw ---------------------------------------------------------------------------------------------------------------


def newest() -> list[dict[str, float]]:
    """The last line for each number of events, ascending."""
    with TABLE.open(newline="") as file:
        rows = [{name: float(text) for name, text in row.items() if name != "commit"} for row in csv.DictReader(file)]
    return sorted({row["events"]: row for row in rows}.values(), key=lambda row: row["events"])


def page(rows: list[dict[str, float]]) -> str:
    """A page that turns into the drawing when a browser has run it."""
    import plotly.graph_objects as go
    import plotly.io

    events = [row["events"] for row in rows]
    figure = go.Figure()
    for name, label, colour in (
        ("clock_s", "clock", "#2a78d6"),
        ("java_cpu_s", "CPU of the Java process", "#d9822b"),
        ("tasks_cpu_s", "CPU of Spark's tasks", "#1d9a6c"),
    ):
        figure.add_scatter(
            x=events, y=[row[name] for row in rows], name=label, mode="lines+markers", line={"color": colour}
        )
    goal = {"color": "#777777", "dash": "dot"}
    figure.add_scatter(x=events, y=[each / GOAL for each in events], name=f"{GOAL:,} events/s", mode="lines", line=goal)
    axis = {"type": "log", "dtick": 1, "gridcolor": "#dddddd", "linecolor": "#777777"}
    figure.update_layout(
        width=760, height=420, plot_bgcolor="white", paper_bgcolor="white", margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis={**axis, "title": {"text": "events"}, "tickformat": ",d"}, yaxis={**axis, "title": {"text": "seconds"}},
        legend={"x": 0.98, "xanchor": "right", "y": 0.04},
    )  # fmt: skip
    script = "Plotly.toImage('it', {format: 'svg', width: 760, height: 420}).then(t => document.body.textContent = t)"
    text: str = plotly.io.to_html(figure, div_id="it", include_plotlyjs=True, post_script=script)
    return text


def draw() -> None:
    """Make the drawing."""
    from urllib.parse import unquote

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page(newest()))
        command = ["chromium", "--headless", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom", file.as_uri()]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    body = told.partition("data:image/svg+xml,")[2].partition("<")[0]
    assert body, told[-500:]
    DRAWING.write_text(unquote(body) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("measure")
    asked.add_argument("--events", type=int, nargs="+", required=True)
    asked.add_argument("--work", type=Path, required=True, metavar="DIR")
    asked.add_argument("--master", default="local[2]")
    asked.add_argument("--memory", default="6g")
    commands.add_parser("draw")
    options = parser.parse_args()
    if options.command == "draw":
        draw()
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    for events in options.events:
        found = measure(events, options.work.absolute(), options.master, options.memory)
        note(found)
        print(json.dumps(attrs.asdict(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
