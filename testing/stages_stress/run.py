"""Stress: the demonstration with a number of flows, more victims, and crashes at named points."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.client.runs.audited import DETAIL, AuditError, audit_problems, audited, bring_up
from understudy.client.runs.broker_group import BrokerGroup
from understudy.client.stages import NotCommittedError, OutcomeUnknownError
from understudy.client.stages.demo import worker
from understudy.client.stages.demo.books import EFFECTS, Books, BooksPlace, doubled_of, problems_of
from understudy.client.stages.demo.run import PRIMARY, WORKER, Demonstration, Wishes
from understudy.client.stages.demo.settings import STATE_SERVER as STATE_SERVER_VARIABLE
from understudy.client.stages.watching.points import Point
from understudy.testing.stages_stress.postgresql_books import PostgresqlBooks
from understudy.testing.stages_stress.state_server import StateServer

RELAY: Final = "relay"
DATABASE: Final = "PostgreSQL"
STATE_SERVER: Final = "state server"
XA_STABLE: Final = 15
"""So many looks, a second apart, must find nothing under way: branches that a killed worker has left are completed in seconds."""
RELAY_NUMBER: Final = -1
"""Of the relay's process among the workers."""
MOST_IN_FLIGHT: Final = 300
"""Orders that are begun and neither shipped nor refused: no more are begun meanwhile."""
LOOK_S: Final = 0.5
REVIVE_S: Final = 0.1
AGAIN_S: Final = 0.2
DOWN_S: Final = 0.5
"""So long a server is down at most before it is started again."""
EXCUSED_S: Final = 20.0
"""So long after a kill of a server a worker that starts may end because the server is away."""


@attrs.frozen(kw_only=True)
class StressWishes:
    """Options of a run.

    Attributes:
        flows: orders that are begun.
        kills: how often each kind of process gets SIGKILL from outside.
        chance: of a worker to end itself at each named point that it passes.
        point: the only such point; "": all.
        workers: processes.
        once: with inbox and outbox.
        xa: distributed transactions in place of both.
        audit: the run ends with the audit of the brokers' feeds.
        seed: of kills and orders.
    """

    flows: int
    kills: int
    chance: float
    point: str
    workers: int
    once: bool
    xa: bool
    audit: bool
    seed: int
    port: int


class Stress(Demonstration):
    """One run, in a folder of its own."""

    def __init__(self, wishes: StressWishes, folder: Path, say: Callable[[str], None], books: BooksPlace) -> None:
        self._own = wishes
        self._state: StateServer | None = None
        if wishes.xa:
            self._state = StateServer(folder)
            self.shop, self.stable = "understudy.client.stages.demo.shop_xa", XA_STABLE
        self._server = books if isinstance(books, PostgresqlBooks) else None
        self._log = folder / "crashes.log"
        self._through = 0
        self._moved = asyncio.Condition()  # notified when `orders` or `_through` has changed
        self._again = 0
        self._ended: Counter[str] = Counter()
        self._away_s = float("-inf")
        self._verdict: dict[str, Any] | None = None
        self.feed = DETAIL if wishes.audit else ""
        usual = Wishes(
            seconds=0, rate=1, kills=wishes.kills, workers=wishes.workers, once=wishes.once, port=wishes.port
        )  # fmt: skip
        chance = random.Random(wishes.seed)
        super().__init__(usual, folder, say, books, chance)
        self._kill_at = sorted(self.random.randrange(wishes.flows) for _ in self.plan)

    # -- what is killed -------------------------------------------------------------------------------------------------

    def victims(self) -> tuple[str, ...]:
        more = [DATABASE] if self._server is not None else []
        more += [STATE_SERVER] if self._state is not None else []
        return (WORKER, PRIMARY, RELAY, *more)

    async def before_kill(self, number: int) -> None:
        if number == 0:
            await self.start_worker(RELAY_NUMBER)
        async with self._moved:
            await self._moved.wait_for(lambda: self.orders >= self._kill_at[number])

    async def run(self) -> dict[str, Any]:
        if self._state is None:
            return await super().run()
        await asyncio.to_thread(self._state.start)
        os.environ[STATE_SERVER_VARIABLE] = self._state.address
        try:
            return await super().run()
        finally:
            await asyncio.to_thread(self._state.stop)

    async def kill(self, victim: str, group: BrokerGroup) -> str:
        if victim in {DATABASE, STATE_SERVER}:
            server = self._server if victim == DATABASE else self._state
            assert server is not None
            self._away_s = time.monotonic()
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(self.random.uniform(0, DOWN_S))
            await asyncio.to_thread(server.start)
            self._away_s = time.monotonic()
            return victim
        if victim == PRIMARY:
            return await super().kill(victim, group)
        number = RELAY_NUMBER if victim == RELAY else self.random.randrange(self._own.workers)
        if (process := self.workers[number]).returncode is None:  # else it has ended itself, and is started again
            process.kill()
        return victim if victim == RELAY else f"worker {number}"

    def helpers(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().helpers(), self._revive(), self._look()]

    def worker_command(self, number: int) -> list[str]:
        kind = "relay" if number == RELAY_NUMBER else "all"
        return worker.command(self.shop, kind, self._own.chance, self._own.point, str(self._log))

    async def _revive(self) -> None:
        """Start again what was killed, or has ended itself."""
        while True:
            await asyncio.sleep(REVIVE_S)
            for number, process in list(self.workers.items()):
                if process.returncode is None:
                    continue
                if process.returncode != -signal.SIGKILL:
                    self._ended[f"code {process.returncode}"] += 1
                    if time.monotonic() - self._away_s > EXCUSED_S:
                        self.unexpected.append(f"worker {number} ended by itself, code {process.returncode}")
                await self.start_worker(number)

    # -- orders ---------------------------------------------------------------------------------------------------------

    async def order(self, shop: Any, killer: asyncio.Task[None]) -> None:
        while self.orders < self._own.flows:
            async with self._moved:
                await self._moved.wait_for(self._may_begin)
                if self.orders == self._own.flows:  # other clients have begun the rest
                    return
                self.orders += 1
                number = self.orders
                self._moved.notify_all()
            await self.begin(shop, number)

    def _may_begin(self) -> bool:
        return self.orders == self._own.flows or self.orders - self._through <= MOST_IN_FLIGHT

    async def begin(self, shop: Any, number: int) -> None:
        """Until the order is begun: by its name it is begun once, whatever was lost meanwhile."""
        failures: tuple[type[Exception], ...] = (NotCommittedError, OutcomeUnknownError, *self.books.errors)
        while True:
            try:
                await self.begin_by_name(shop, number)
            except failures:
                self._again += 1
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _look(self) -> None:
        """How many orders are through."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                books = await asyncio.to_thread(self.books.read)
            except self.books.errors:
                continue
            refused = sum(cents <= 0 for cents in books.orders.values())
            async with self._moved:
                self._through = len(set(books.effects["shipments"])) + refused
                self._moved.notify_all()

    # -- the verdict ----------------------------------------------------------------------------------------------------

    def judge(self, books: Books, dead: list[int]) -> list[str]:
        """With inbox and outbox, or with xa, everything once; else nothing missing, and the window seen where it was hit."""
        if self._own.once or self._own.xa:
            return problems_of(books, dead)
        doubled = self._doubled(books)
        found = [each for each in problems_of(books, dead) if "missing" in each or "too much" in each]
        hit = self._crashes()[Point.AFTER_DATABASE_COMMIT.value]
        if hit and not any(doubled.values()):
            found.append(f"{hit} workers ended between the two commits, and no effect is there twice")
        return found

    async def after_brokers(self, group: BrokerGroup) -> None:
        if not self._own.audit:
            return
        feeds = group.folder / "feed"
        try:
            for broker in group.views:
                await bring_up(group.folder / broker, feeds / broker)
            self._verdict = await audited(feeds, None, self.folder / "audit", self.say)
        except AuditError as error:
            self.unexpected.append(str(error))
            return
        self.unexpected += audit_problems(self._verdict)

    def more(self, books: Books) -> dict[str, Any]:
        """Further entries of the report."""
        return {
            "seed": self._own.seed,
            "crashes": dict(self._crashes()),
            "begun_again": self._again,
            "doubled": self._doubled(books),
            "xa": self._own.xa,
            "ended_while_a_server_was_away": dict(self._ended),
        }

    @property
    def audit_verdict(self) -> dict[str, Any] | None:
        return self._verdict

    def _crashes(self) -> Counter[str]:
        """How often workers have ended themselves, by point."""
        if not self._log.exists():
            return Counter()
        return Counter(line.split("\t")[0] for line in self._log.read_text(encoding="utf-8").splitlines())

    @staticmethod
    def _doubled(books: Books) -> dict[str, int]:
        return {name: len(doubled_of(books.effects[name])) for name in EFFECTS}
