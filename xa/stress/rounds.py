"""Rounds: clients work, one process dies at a random moment, everything recovers, both resource managers must agree."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import XaError
from understudy.xa.demo.books import open_books
from understudy.xa.demo.stage import Stage
from understudy.xa.manager import TransactionManager
from understudy.xa.stress.client import Told, work
from understudy.xa.stress.crew import Crew, Work
from understudy.xa.stress.evidence import ViolationError, check_told, settled_books
from understudy.xa.stress.report import Report

VICTIMS: Final = {"client": 70, "state server": 12, "broker": 9, "database": 9}
"""Of a hundred kills. A client is cheap: it is back within 20 ms, a server within a second."""
PAIRS: Final = 0.1
"""Share of rounds in which a second process dies at the same moment."""
MOMENT_S: Final = 0.12
"""Clients work up to so long before the kill; a transfer takes some 10 ms."""
CLIENTS: Final = 4
JOBS: Final = 2
"""What a killed client has left, another one of the same job may be given, too."""


class Rounds:
    """One run.

    Args:
        folder: of all data and logs.
        kills: how many.
        seed: of victims and moments.
        bound_s: how long something may stay in doubt when all processes are back.
        say: takes lines of progress.
        work: what a client does, with or without a known bug.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        bound_s: float,
        say: Callable[[str], None],
        work: Work = work,
    ) -> None:
        self._folder = folder
        self._kills = kills
        self._bound_s = bound_s
        self._say = say
        self._work = work
        self._chance = random.Random(seed)  # noqa: S311  # a test's chance
        self._report = Report(seed)
        self._stage = Stage(folder)

    def run(self) -> Report:
        """All rounds, or all up to the first violation."""
        began = time.monotonic()
        self._say(f"Starting PostgreSQL, the broker and the state server in {self._folder}")
        with self._stage:
            manager = TransactionManager.from_file(self._stage.profiles, "demo", job="stress-looks")
            open_books(manager)
            crew = Crew(
                self._folder, self._stage.profiles, number=CLIENTS, jobs=JOBS, chance=self._chance, work=self._work
            )
            try:
                self._all_rounds(crew, manager)
            except XaError as error:
                self._report.problems.append(f"round {self._report.rounds + 1}: {error}")
            finally:
                crew.close()
                self._report.end(time.monotonic() - began)
        return self._report

    def _all_rounds(self, crew: Crew, manager: TransactionManager) -> None:
        report, next_word = self._report, time.monotonic() + 10
        while report.kills < self._kills:
            self._round(crew, manager)
            if time.monotonic() > next_word:
                next_word += 10
                self._say(f"{report.kills} of {self._kills} kills, {report.transfers} transfers; both sides agree")

    def _round(self, crew: Crew, manager: TransactionManager) -> None:
        victims = self._victims()
        time.sleep(self._chance.uniform(0, MOMENT_S))
        numbers = self._chance.sample(range(len(crew)), k=victims["client"])
        told: list[Told] = []
        for victim in sorted(victims):
            self._kill(victim, crew, numbers, told)
        for victim in sorted(victims):
            self._start(victim, crew, numbers)
        back = time.monotonic()
        said, paused = crew.pause(self._bound_s)
        told += said
        books = settled_books(manager, back + self._bound_s)
        settled_s = time.monotonic() - back
        check_told(manager, told)
        if settled_s > self._bound_s:
            raise ViolationError(f"after {victims} the books were settled only after {settled_s:.1f} s")
        self._report.add_round(victims, told, paused, settled_s, books.ledger_rows)
        crew.go()

    def _victims(self) -> Counter[str]:
        number = min(2 if self._chance.random() < PAIRS else 1, self._kills - self._report.kills)
        while True:
            found = Counter(self._chance.choices(list(VICTIMS), list(VICTIMS.values()), k=number))
            if all(count == 1 or victim == "client" for victim, count in found.items()):
                return found

    def _kill(self, victim: str, crew: Crew, numbers: list[int], told: list[Told]) -> None:
        match victim:
            case "client":
                for number in numbers:
                    told += crew.kill(number)
            case "broker":
                self._stage.broker.kill()
            case "database":
                self._stage.postgresql.kill()
            case _:
                self._stage.state_server.kill()

    def _start(self, victim: str, crew: Crew, numbers: list[int]) -> None:
        match victim:
            case "client":
                for number in numbers:
                    crew.start(number)
            case "broker":
                self._stage.broker.start()
            case "database":
                self._stage.postgresql.start()
            case _:
                self._stage.state_server.start()
