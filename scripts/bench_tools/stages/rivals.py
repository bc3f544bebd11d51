"""Rivals: FastStream and Celery doing the work of the bench, each in an environment apart from the product's.

Versions are pinned in ``rivals.txt``. The environment is made once, in the user's cache, and is named for them. A rival counts no
flows itself: rows of the last stage are counted in the database, and CPU is that of its process and the processes below it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg

from bench_tools.errors import BenchError

POSTGRESQL: Final = "postgresql:"
HERE: Final = Path(__file__).parent
PROGRAMS: Final = HERE / "rival_programs"
PINNED: Final = HERE / "rivals.txt"
START_S: Final = 60.0
POLL_S: Final = 0.05
STOP_S: Final = 10.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class Rival:
    """A library, with its defaults or with what it calls safe.

    Attributes:
        celery: Celery; else FastStream.
        safe: the message is acknowledged after the work, and comes again if that fails.
    """

    celery: bool
    safe: bool


RIVALS: Final[Mapping[str, Rival]] = {
    "faststream": Rival(celery=False, safe=False),
    "faststream-safe": Rival(celery=False, safe=True),
    "celery": Rival(celery=True, safe=False),
    "celery-late": Rival(celery=True, safe=True),
}


def environment(say: Callable[[str], None]) -> Path:
    """The interpreter of the rivals; the environment is made if it is not there.

    Raises:
        BenchError: pip could not make it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"
    python = sys.version_info
    pins = hashlib.blake2b(PINNED.read_bytes(), digest_size=4).hexdigest()
    folder = cache / f"bench-stages-rivals-{python.major}.{python.minor}-{pins}"
    interpreter, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return interpreter
    say(f"installing {PINNED.name} into {folder} (once)")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(PINNED)],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise BenchError(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr[-1000:]}")
    done.touch()
    return interpreter


def fill(interpreter: Path, settings: Mapping[str, str], flows: int) -> None:
    """Send Celery's messages, which are of a form of its own.

    Raises:
        BenchError: Celery ended with an error.
    """
    ran = subprocess.run(
        [str(interpreter), "celery_program.py", str(flows)],
        capture_output=True, text=True, check=False, cwd=PROGRAMS, env={**os.environ, **settings},
    )  # fmt: skip
    if ran.returncode:
        raise BenchError(f"Celery could not send: {ran.stderr[-1000:]}")


def settings_of(rival: Rival, broker: str, database: str, queue: str, concurrency: int) -> dict[str, str]:
    """The environment variables of a rival's program."""
    return {
        "BENCH_BROKER": broker,
        "BENCH_DATABASE": database,
        "BENCH_QUEUE": queue,
        "BENCH_SAFE": "yes" if rival.safe else "no",
        "BENCH_IN_HAND": str(concurrency),
    }


def measure(
    rival: Rival, interpreter: Path, settings: Mapping[str, str], log: Path, *, warmup_s: float, seconds: float
) -> dict[str, float]:
    """Figures of one rival, as a side of ours prints them.

    Raises:
        BenchError: it ended, or no flow came to its end.
    """
    words = ["faststream_program.py"]
    if rival.celery:
        queues = ",".join(f"{settings['BENCH_QUEUE']}.{each}" for each in ("first", "last"))
        words = ["-m", "celery", "-A", "celery_program", "worker", "-Q", queues, "-c", settings["BENCH_IN_HAND"]]
    with _running([str(interpreter), *words], settings, log) as pid, _counted(settings["BENCH_DATABASE"]) as count:
        ready_s = time.monotonic() + START_S
        while not count():
            if time.monotonic() > ready_s or not _lives(pid):
                raise BenchError(
                    f"no flow came to its end: {log.read_text(encoding='utf-8', errors='replace')[-1000:]}"
                )
            time.sleep(POLL_S)
        time.sleep(warmup_s)
        before, cpu_s, began_s = count(), cpu_of(pid), time.monotonic()
        last, moved_s = before, began_s
        while (now_s := time.monotonic()) < began_s + seconds:
            time.sleep(min(POLL_S, began_s + seconds - now_s))
            if (found := count()) != last:
                last, moved_s = found, time.monotonic()
        ended_s = time.monotonic()
        flows = (last - before) * seconds / (ended_s - began_s)
        return {"flows": flows, "cpu_s": cpu_of(pid) - cpu_s, "idle_s": ended_s - moved_s}


@contextlib.contextmanager
def _running(command: list[str], settings: Mapping[str, str], log: Path) -> Iterator[int]:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=PROGRAMS, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # of a session of its own
            process.wait()


@contextlib.contextmanager
def _counted(database: str) -> Iterator[Callable[[], int]]:
    """A function that counts flows that came to their end."""
    sql = "SELECT count(*) FROM last"
    if database.startswith(POSTGRESQL):
        connection: Any = psycopg.connect(database.removeprefix(POSTGRESQL), autocommit=True)
    else:
        connection = sqlite3.connect(database, timeout=60)
    try:
        yield lambda: int(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()


def _lives(pid: int) -> bool:
    found = _stat(pid)
    return found is not None and found[0] != "Z"


def cpu_of(root: int) -> float:
    """CPU seconds of a process and of all below it that run."""
    stats = {int(each.name): _stat(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit()}
    used, wanted = 0, {root}
    while wanted:
        used += sum(found[2] for pid in wanted if (found := stats.get(pid)) is not None)
        wanted = {pid for pid, found in stats.items() if found is not None and found[1] in wanted}
    return used / _TICKS_PER_S


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and CPU ticks of a process; None if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), int(words[11]) + int(words[12])
