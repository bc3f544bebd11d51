"""``scripts/demo xa``: options in, exit code out."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from understudy.run_folder import RunFolder

JOBS: Final = 2
"""Workers share them: what a killed one has left, another one finishes."""
VICTIMS: Final = ("worker", "broker", "database", "state server")


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long money moves, at least.")] = 20.0,
    kills: Annotated[int, typer.Option(min=0, help="How often each of the four kinds of process is killed.")] = 3,
    workers: Annotated[int, typer.Option(min=1, max=50, help="Programs that move money, under two jobs.")] = 4,
    brokers: Annotated[
        int, typer.Option(min=1, max=5, help="A group of so many keeps the state server's decisions, too.")
    ] = 1,
    keep_logs: Annotated[
        Path | None, typer.Option(help="A new folder, where everything is kept.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
) -> None:
    """Money moves between PostgreSQL and the broker; program, broker, database and state server are killed; the books balance.

    Exit codes: 0 the books balance and all was done; 1 not, or a server could not be had; 2 the folder cannot be used.
    """
    try:
        import psycopg  # noqa: F401, PLC0415  # the extra of this command

        from understudy.xa.demo.stage import StageError  # noqa: PLC0415  # as above
    except ImportError as error:
        typer.echo(f"understudy xa demo: {error}: pip install 'understudy[xa]'", err=True)
        raise typer.Exit(1) from error
    from understudy.xa.core.errors import XaError  # noqa: PLC0415  # as above

    folder = RunFolder("understudy xa demo", keep_logs, for_others=True)
    try:
        report = _Demonstration(
            folder.path, seconds, kills, workers, brokers, lambda line: typer.echo(line, err=True)
        ).run()
    except (StageError, XaError) as error:
        report = {"ok": False, "problems": [str(error)]}
    except KeyboardInterrupt:
        raise folder.interrupted() from None
    folder.finish(report, _text(report), as_json=as_json)


class _Demonstration:
    """One run."""

    def __init__(
        self, folder: Path, seconds: float, kills: int, workers: int, brokers: int, say: Callable[[str], None]
    ) -> None:
        from understudy.xa.demo.stage import Stage  # noqa: PLC0415  # as in demo

        self._folder = folder
        self._seconds = seconds
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._number = workers
        self._say = say
        self._stage = Stage(folder, brokers)
        self._plan = [victim for victim in VICTIMS for _ in range(kills)]
        random.shuffle(self._plan)
        self._killed: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        from understudy.xa.demo import books  # noqa: PLC0415  # as in demo
        from understudy.xa.manager import TransactionManager  # noqa: PLC0415  # as in demo

        self._say(f"Starting PostgreSQL, the brokers and the state server in {self._folder}")
        with self._stage:
            manager = TransactionManager.from_file(self._stage.profiles, "demo", job=_job(0))
            books.open_books(manager)
            try:
                for number in range(self._number):
                    self._start_worker(number)
                self._kill_in_turn()
            finally:
                self._stop_workers()
            for number in range(min(JOBS, self._number)):
                TransactionManager.from_file(self._stage.profiles, "demo", job=_job(number)).recover()
            found = books.read_books(manager)
        outcomes = self._outcomes()
        problems = [*found.problems]
        if not outcomes["committed"]:
            problems.append("no transfer was committed")
        if left := Counter(self._plan) - self._killed:
            problems.append(f"not killed as often as asked for: {dict(left)}")
        return {
            "ok": not problems,
            "problems": problems,
            "killed": dict(self._killed),
            "outcomes": dict(outcomes),
            "in_accounts": found.in_accounts,
            "in_queue": found.in_queue,
            "messages": found.messages,
            "transfers": found.ledger_rows,
            "total": books.TOTAL,
            "in_doubt": found.in_doubt,
        }

    def _kill_in_turn(self) -> None:
        pause = self._seconds / (len(self._plan) + 1)
        for victim in self._plan:
            time.sleep(pause)
            self._kill(victim)
            self._killed[victim] += 1
            self._say(f"killed {victim}, and started it again; {self._outcomes()['committed']} transfers so far")
        time.sleep(pause)

    def _kill(self, victim: str) -> None:
        match victim:
            case "worker":
                number = random.choice(list(self._workers))  # noqa: S311  # a demo's chance
                self._workers[number].kill()
                self._workers[number].wait()
                self._start_worker(number)
            case "broker":
                self._stage.broker.kill()
                self._stage.broker.start()
            case "database":
                self._stage.postgresql.kill()
                self._stage.postgresql.start()
            case _:
                self._stage.state_server.kill()
                self._stage.state_server.start()

    def _start_worker(self, number: int) -> None:
        from understudy.xa.demo.stage import spawn  # noqa: PLC0415  # as in demo

        command = [sys.executable, "-m", "understudy.xa.demo.worker", str(self._stage.profiles)]
        self._workers[number] = spawn(command, self._folder, f"worker-{number}", UNDERSTUDY_JOB=_job(number))

    def _stop_workers(self) -> None:
        from understudy.xa.demo.stage import end  # noqa: PLC0415  # as in demo

        for process in self._workers.values():
            end(process)

    def _outcomes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for log in self._folder.glob("worker-*.log"):
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith('{"outcome": ') and line.endswith("}"):
                    found[json.loads(line)["outcome"]] += 1
        return found


def _job(number: int) -> str:
    return f"demo-{number % JOBS}"


def _text(report: dict[str, Any]) -> list[str]:
    if "killed" not in report:
        return [f"FAILED: {problem}" for problem in report["problems"]]
    killed = ", ".join(f"{victim} {count} times" for victim, count in report["killed"].items()) or "nothing"
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(report["outcomes"].items()))
    lines = [
        f"Killed: {killed}",
        f"The workers were told: {outcomes}",
        f"Transfers in the ledger: {report['transfers']}; branches in doubt: {report['in_doubt']}",
        f"Accounts hold {report['in_accounts']}, the queue holds {report['in_queue']} in {report['messages']} messages",
        f"Together {report['in_accounts'] + report['in_queue']} of {report['total']}",
    ]
    if report["ok"]:
        return [*lines, "The books balance."]
    return [*lines, *(f"FAILED: {problem}" for problem in report["problems"])]
