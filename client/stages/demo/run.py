"""Demonstration: brokers, workers, orders and kills, and then the books."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from understudy.client.demo.broker_group import BrokerGroup, GroupError, understudy_command
from understudy.client.stages.addresses import addresses_of
from understudy.client.stages.connection import Connection, close_channel, errors_as_ours
from understudy.client.stages.core.envelope import DEAD_LETTERS
from understudy.client.stages.demo.books import CUSTOMERS, ITEMS, Books, open_books, problems_of, read_books
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
    """One run, in a folder of its own."""

    def __init__(self, wishes: Wishes, folder: Path, say: Callable[[str], None]) -> None:
        self._wishes = wishes
        self.folder = folder
        self._say = say
        self._database = folder / "shop.db"
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._killed: Counter[str] = Counter()
        self._unexpected: list[str] = []
        self._address = ""
        self._orders = 0
        self._already = 0
        self._not_committed = 0
        plan = [victim for victim in (WORKER, PRIMARY) for _ in range(wishes.kills)]
        self._random = random.Random()  # noqa: S311  # chance for a load
        self._plan = self._random.sample(plan, len(plan))

    async def run(self) -> dict[str, Any]:
        """Carry it out.

        Returns:
            The report.

        Raises:
            GroupError: the brokers did not come up.
        """
        await asyncio.to_thread(open_books, self._database)
        wishes = self._wishes
        self._say(f"Starting three brokers and {wishes.workers} workers in {self.folder}")
        group = BrokerGroup(self.folder / "brokers", wishes.port, lambda _: None)
        async with group:
            await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)
            self._address = "amqp://guest:guest@" + ",".join(map(str, group.addresses)) + "/"
            os.environ |= {BROKER: self._address, DATABASE: str(self._database), ONCE: "yes" if wishes.once else "no"}
            try:
                for number in range(wishes.workers):
                    await self._start_worker(number)
                report = await self._load(group)
            finally:
                await self._stop_workers()
        group.sweep()
        report["problems"] += self._unexpected
        report["problems"] += [f"{what} ({count} times)" for what, count in group.unexpected.items()]
        report["ok"] = not report["problems"]
        return report

    async def _load(self, group: BrokerGroup) -> dict[str, Any]:
        from understudy.client.stages.demo import shop  # noqa: PLC0415  # it reads the environment when it is imported

        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            progress = tasks.create_task(self._progress())
            killer = tasks.create_task(self._kill(group))
            clients = [tasks.create_task(self._order(shop, killer)) for _ in range(CLIENTS)]
            await asyncio.gather(killer, *clients)
            took_s = time.monotonic() - started_s
            self._say("No more orders; waiting until all of them are through")
            books, dead = await self._settled()
            progress.cancel()
        await shop.stages.close()
        return self._report(books, dead, took_s)

    # -- orders ---------------------------------------------------------------------------------------------------------

    async def _order(self, shop: Any, killer: asyncio.Task[None]) -> None:
        """Order until the time is over and all kills are done."""
        pause_s = CLIENTS / self._wishes.rate
        due_s = time.monotonic() + self._random.uniform(0, pause_s)
        end_s = time.monotonic() + self._wishes.seconds
        while time.monotonic() < end_s or not killer.done():
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + pause_s, time.monotonic())
            self._orders += 1
            await self._begin(shop, self._orders)

    async def _begin(self, shop: Any, number: int) -> None:
        cents = 0 if number % REFUSED_EVERY == 0 else self._random.randint(100, 900)
        order = shop.Order(number, self._random.randint(1, CUSTOMERS), self._random.randrange(ITEMS), cents)
        try:
            for _ in range(2 if number % TWICE_EVERY == 0 else 1):
                async with shop.stages.begin(name=f"order-{number}") as tx:
                    await tx.db.execute("INSERT INTO orders VALUES (?, ?)", (number, cents))
                    shop.checkout.send(order)
        except AlreadyBegunError:
            self._already += 1
        except NotCommittedError:
            self._not_committed += 1

    # -- workers and kills ----------------------------------------------------------------------------------------------

    async def _start_worker(self, number: int) -> None:
        with (self.folder / f"worker-{number}.log").open("ab") as log:
            self._workers[number] = await asyncio.create_subprocess_exec(
                sys.executable, understudy_command(), "stages", "run", "understudy.client.stages.demo.shop:stages",
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    async def _stop_workers(self) -> None:
        for number, process in self._workers.items():
            if process.returncode is not None:
                self._unexpected.append(f"worker {number} ended by itself, code {process.returncode}")
                continue
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    if code := await process.wait():
                        self._unexpected.append(f"worker {number} ended with code {code} when it was asked to stop")
            except TimeoutError:
                self._unexpected.append(f"worker {number} did not stop within {STOP_TIMEOUT_S:g} s of SIGTERM")
                process.kill()
                await process.wait()

    async def _kill(self, group: BrokerGroup) -> None:
        pause_s = self._wishes.seconds / (len(self._plan) + 1)
        for victim in self._plan:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * pause_s)
            if victim == WORKER:
                number = self._random.choice(list(self._workers))
                process = self._workers[number]
                if process.returncode is not None:
                    raise GroupError(f"worker {number} ended by itself, code {process.returncode}")
                process.kill()
                await process.wait()
                await self._start_worker(number)
                name = f"worker {number}"
            else:
                await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)
                primary = group.primary
                assert primary is not None, "all are ready"
                group.kill(primary)
                name = f"{primary.broker}, the primary"
            self._killed[victim] += 1
            self._say(f"SIGKILL to {name}")
        await group.wait_until("all brokers are ready", lambda: group.all_ready, READY_TIMEOUT_S)

    # -- what becomes of the orders -------------------------------------------------------------------------------------

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            books = await asyncio.to_thread(read_books, self._database)
            counts = ", ".join(f"{len(set(numbers))} {name}" for name, numbers in books.effects.items())
            self._say(f"{len(books.orders)} orders, {counts}; {books.outbox} messages in the outbox")

    async def _settled(self) -> tuple[Books, list[int]]:
        """The books and the dead letters, when nothing is under way any more, or the time is over."""
        end_s = time.monotonic() + SETTLE_TIMEOUT_S
        connection = Connection(addresses_of(self._address), "the demo, at its end")
        stable = 0
        try:
            while True:
                books = await asyncio.to_thread(read_books, self._database)
                waiting = await self._waiting(connection)
                through = not books.outbox and not any(waiting.values())
                stable = stable + 1 if through else 0
                if stable > STABLE or time.monotonic() > end_s:
                    if not through:
                        self._unexpected.append(
                            f"not through within {SETTLE_TIMEOUT_S:g} s: {books.outbox} messages in the outbox, {waiting}"
                        )
                    return books, await self._dead_letters(connection)
                await asyncio.sleep(1)
        finally:
            await connection.close()

    async def _waiting(self, connection: Connection) -> dict[str, int]:
        """Ready messages in the queues of the stages. Those that a worker holds come back if it fails."""
        found: dict[str, int] = {}
        channel = await connection.channel()
        for queue in STAGES:
            async with errors_as_ours():
                found[queue] = (await channel.queue_declare(queue, passive=True)).message_count or 0
        await close_channel(channel)
        return found

    async def _dead_letters(self, connection: Connection) -> list[int]:
        numbers: list[int] = []
        channel = await connection.channel()
        for queue in STAGES:
            async with errors_as_ours():
                while (
                    message := await channel.basic_get(queue + DEAD_LETTERS, no_ack=True)
                ).delivery.name != GET_EMPTY:
                    body = msgspec.json.decode(message.body)
                    numbers.append(body.get("order", body)["number"])
        return numbers

    def _report(self, books: Books, dead: list[int], took_s: float) -> dict[str, Any]:
        problems = problems_of(books, dead)
        if not books.orders:
            problems.append("no order was begun")
        if left := Counter(self._plan) - self._killed:
            problems.append(f"not killed as often as asked for: {dict(left)}")
        return {
            "ok": not problems,
            "problems": problems,
            "once": self._wishes.once,
            "killed": dict(self._killed),
            "seconds": round(took_s, 1),
            "orders": len(books.orders),
            "begun_twice_refused": self._already,
            "not_committed": self._not_committed,
            **{name: len(numbers) for name, numbers in books.effects.items()},
            "dead_letters": len(dead),
            "outbox": books.outbox,
            "cents": books.cents,
        }
