"""Demonstration: brokers, workers, orders and kills, and then the books."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from understudy.client.runs.broker_group import BrokerGroup, GroupError, understudy_command
from understudy.client.stages.broker.addresses import addresses_of
from understudy.client.stages.broker.connection import Connection, close_channel, errors_as_ours
from understudy.client.stages.core.envelope import DEAD_LETTERS
from understudy.client.stages.demo.books import CUSTOMERS, ITEMS, Books, BooksPlace, SqliteBooks, problems_of
from understudy.client.stages.demo.settings import BROKER, DATABASE, ONCE
from understudy.client.stages.errors import AlreadyBegunError, NotCommittedError

WORKER: Final = "worker"
PRIMARY: Final = "primary broker"
REFUSED_EVERY: Final = 50
"""One order in so many has no amount, and must become a dead letter."""
READY_TIMEOUT_S: Final = 60.0
SETTLE_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
PROGRESS_S: Final = 2.0
STABLE: Final = 3
"""So many looks, a second apart, must find nothing under way: a failed message waits for up to two seconds."""
TWICE_EVERY: Final = 20
"""One order in so many is begun twice under one name; the second must be refused."""
CLIENTS: Final = 4
STAGES: Final = ("shop.reserve", "shop.charge", "shop.ship")
GET_EMPTY: Final = "Basic.GetEmpty"


@attrs.frozen(kw_only=True)
class Wishes:
    """Options of a demonstration.

    Attributes:
        seconds: how long orders come, at least.
        rate: orders a second.
        kills: how often each of the two kinds of process is killed.
        workers: processes.
        once: with inbox and outbox.
    """

    seconds: float
    rate: float
    kills: int
    workers: int
    once: bool
    port: int


class Demonstration:
    """One run, in a folder of its own.

    Args:
        say: told what happens.
        books: the database; None: an SQLite file in the folder.
        chance: decides who is killed and when, and what is ordered.
    """

    def __init__(
        self,
        wishes: Wishes,
        folder: Path,
        say: Callable[[str], None],
        books: BooksPlace | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.wishes = wishes
        self.folder = folder
        self.say = say
        self.books: BooksPlace = books or SqliteBooks(folder / "shop.db")
        self.workers: dict[int, asyncio.subprocess.Process] = {}
        self._killed: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self._address = ""
        self.orders = 0
        self._already = 0
        self._not_committed = 0
        self.dead_twice = 0
        self.random = chance or random.Random()  # noqa: S311  # chance for a load
        plan = [victim for victim in self.victims() for _ in range(wishes.kills)]
        self.plan = self.random.sample(plan, len(plan))

    async def run(self) -> dict[str, Any]:
        """Carry it out.

        Returns:
            The report.

        Raises:
            GroupError: the brokers did not come up.
        """
        await asyncio.to_thread(self.books.open)
        wishes = self.wishes
        self.say(f"Starting three brokers and {wishes.workers} workers in {self.folder}")
        group = BrokerGroup(self.folder / "brokers", wishes.port, lambda _: None, feed=self.feed)
        async with group:
            await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)
            self._address = "amqp://guest:guest@" + ",".join(map(str, group.addresses)) + "/"
            os.environ |= {BROKER: self._address, DATABASE: self.books.address, ONCE: "yes" if wishes.once else "no"}
            try:
                for number in range(wishes.workers):
                    await self.start_worker(number)
                report = await self._load(group)
            finally:
                await self._stop_workers()
        await self.after_brokers(group)
        group.sweep()
        report["problems"] += self.unexpected
        report["problems"] += [f"{what} ({count} times)" for what, count in group.unexpected.items()]
        report["ok"] = not report["problems"]
        return report

    async def _load(self, group: BrokerGroup) -> dict[str, Any]:
        shop = import_module(self.shop)  # it reads the environment when it is imported

        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(each) for each in self.helpers()]
            killer = tasks.create_task(self._kill(group))
            clients = [tasks.create_task(self.order(shop, killer)) for _ in range(CLIENTS)]
            await asyncio.gather(killer, *clients)
            took_s = time.monotonic() - started_s
            self.say("No more orders; waiting until all of them are through")
            books, dead = await self._settled()
            for helper in helpers:
                helper.cancel()
        await shop.stages.close()
        return self._report(books, dead, took_s)

    # -- orders ---------------------------------------------------------------------------------------------------------

    async def order(self, shop: Any, killer: asyncio.Task[None]) -> None:
        """Order until the time is over and all kills are done."""
        pause_s = CLIENTS / self.wishes.rate
        due_s = time.monotonic() + self.random.uniform(0, pause_s)
        end_s = time.monotonic() + self.wishes.seconds
        while time.monotonic() < end_s or not killer.done():
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + pause_s, time.monotonic())
            self.orders += 1
            await self.begin(shop, self.orders)

    async def begin(self, shop: Any, number: int) -> None:
        """Begin the flow of one order."""
        try:
            await self.begin_by_name(shop, number)
        except NotCommittedError:
            self._not_committed += 1

    async def begin_by_name(self, shop: Any, number: int) -> None:
        """Begin the flow of one order, or find that it was begun.

        Raises:
            StagesError: it is not begun, or that is not known.
        """
        cents = 0 if number % REFUSED_EVERY == 0 else self.random.randint(100, 900)
        order = shop.Order(number, self.random.randint(1, CUSTOMERS), self.random.randrange(ITEMS), cents)
        try:
            for _ in range(2 if number % TWICE_EVERY == 0 else 1):
                async with shop.begin(f"order-{number}") as tx:
                    await shop.note_order(tx.db, number, cents)
                    shop.checkout.send(order)
        except AlreadyBegunError:
            self._already += 1

    # -- workers and kills ----------------------------------------------------------------------------------------------

    async def start_worker(self, number: int) -> None:
        with (self.folder / f"worker-{number}.log").open("ab") as log:
            self.workers[number] = await asyncio.create_subprocess_exec(
                sys.executable, *self.worker_command(number),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    async def _stop_workers(self) -> None:
        for number, process in self.workers.items():
            if process.returncode is not None:
                self.unexpected.append(f"worker {number} ended by itself, code {process.returncode}")
                continue
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    if code := await process.wait():
                        self.unexpected.append(f"worker {number} ended with code {code} when it was asked to stop")
            except TimeoutError:
                self.unexpected.append(f"worker {number} did not stop within {STOP_TIMEOUT_S:g} s of SIGTERM")
                process.kill()
                await process.wait()

    async def _kill(self, group: BrokerGroup) -> None:
        for number, victim in enumerate(self.plan):
            await self.before_kill(number)
            name = await self.kill(victim, group)
            self._killed[victim] += 1
            self.say(f"SIGKILL to {name}")
        await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)

    async def kill(self, victim: str, group: BrokerGroup) -> str:
        """Kill one of `victims`, and start it again; its name.

        Raises:
            GroupError: it had ended by itself.
        """
        if victim == WORKER:
            number = self.random.choice(list(self.workers))
            process = self.workers[number]
            if process.returncode is not None:
                raise GroupError(f"worker {number} ended by itself, code {process.returncode}")
            process.kill()
            await process.wait()
            await self.start_worker(number)
            return f"worker {number}"
        await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)
        primary = group.primary
        assert primary is not None, "all are ready"
        group.kill(primary)
        return f"{primary.broker}, the primary"

    # -- what a longer run does otherwise -------------------------------------------------------------------------------

    shop = "understudy.client.stages.demo.shop"
    """The module of the application."""
    stable = STABLE
    feed = ""
    """The detail of the brokers' feeds; "": they write none."""

    def helpers(self) -> list[Coroutine[Any, Any, None]]:
        """Tasks that run beside the load, and are cancelled at its end."""
        return [self._progress()]

    async def before_kill(self, number: int) -> None:
        """Wait for the moment of a kill; ``number`` counts from 0."""
        await asyncio.sleep(self.random.uniform(0.5, 1.5) * self.wishes.seconds / (len(self.plan) + 1))

    def judge(self, books: Books, dead: list[int]) -> list[str]:
        """Faults of the run."""
        return problems_of(books, dead)

    def more(self, books: Books) -> dict[str, Any]:
        """Further entries of the report."""
        return {}

    async def after_brokers(self, group: BrokerGroup) -> None:
        """Look at what the brokers have left, before it is swept away."""

    def victims(self) -> tuple[str, ...]:
        """The kinds of process that are killed."""
        return WORKER, PRIMARY

    def worker_command(self, number: int) -> list[str]:
        """The arguments of a worker, by its number, for the interpreter."""
        return [understudy_command(), "stages", "run", "understudy.client.stages.demo.shop:stages"]

    # -- what becomes of the orders -------------------------------------------------------------------------------------

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            try:
                books = await asyncio.to_thread(self.books.read)
            except self.books.errors:
                continue
            counts = ", ".join(f"{len(set(numbers))} {name}" for name, numbers in books.effects.items())
            self.say(f"{len(books.orders)} orders, {counts}; {books.outbox} messages in the outbox")

    async def _settled(self) -> tuple[Books, list[int]]:
        """The books and the dead letters, when nothing is under way any more, or the time is over."""
        end_s = time.monotonic() + SETTLE_TIMEOUT_S
        connection = Connection(addresses_of(self._address), "the demo, at its end")
        stable = 0
        try:
            while True:
                books = await asyncio.to_thread(self.books.read)
                waiting = await self._waiting(connection)
                through = not books.outbox and not any(waiting.values())
                stable = stable + 1 if through else 0
                if stable > self.stable or time.monotonic() > end_s:
                    if not through:
                        self.unexpected.append(
                            f"not through within {SETTLE_TIMEOUT_S:g} s: {books.outbox} messages in the outbox, {waiting}"
                        )
                    return books, await self._dead_letters(connection)
                await asyncio.sleep(1)
        finally:
            await connection.close()

    async def _waiting(self, connection: Connection) -> dict[str, int]:
        """Ready messages in the queues of the stages. Those that a worker holds come back if it fails."""
        found: dict[str, int] = {}
        for queue in (*STAGES, *(each + DEAD_LETTERS for each in STAGES)):
            await connection.ensure(queue)  # no worker may be up yet
        channel = await connection.channel()
        for queue in STAGES:
            async with errors_as_ours():
                found[queue] = (await channel.queue_declare(queue, passive=True)).message_count or 0
        await close_channel(channel)
        return found

    async def _dead_letters(self, connection: Connection) -> list[int]:
        """The orders in dead-letter queues; a message that the relay has sent twice, under one id, counts once."""
        numbers: dict[str, int] = {}
        channel = await connection.channel()
        for queue in STAGES:
            async with errors_as_ours():
                while (
                    message := await channel.basic_get(queue + DEAD_LETTERS, no_ack=True)
                ).delivery.name != GET_EMPTY:
                    body = msgspec.json.decode(message.body)
                    id_ = message.header.properties.message_id or ""
                    self.dead_twice += id_ in numbers
                    numbers[id_] = body.get("order", body)["number"]
        return list(numbers.values())

    def _report(self, books: Books, dead: list[int], took_s: float) -> dict[str, Any]:
        problems = self.judge(books, dead)
        if not books.orders:
            problems.append("no order was begun")
        if left := Counter(self.plan) - self._killed:
            problems.append(f"not killed as often as asked for: {dict(left)}")
        return {
            "ok": not problems,
            "problems": problems,
            "once": self.wishes.once,
            "killed": dict(self._killed),
            "seconds": round(took_s, 1),
            "orders": len(books.orders),
            "begun_twice_refused": self._already,
            "not_committed": self._not_committed,
            **{name: len(numbers) for name, numbers in books.effects.items()},
            "dead_letters": len(dead),
            "dead_letters_of_one_id": self.dead_twice,
            "outbox": books.outbox,
            "cents": books.cents,
            **self.more(books),
        }
