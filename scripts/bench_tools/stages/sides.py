"""Sides of the bench: each is a process that takes messages, inserts a row for each, and sends the next message.

    python -m bench_tools.stages.sides SIDE BROKER DATABASE STATE_SERVER QUEUE WARMUP_S SECONDS CONCURRENCY

A flow has two stages: one inserts a row and sends, one inserts a row. A flow of ``inbox`` and ``bare-last`` has the second stage
alone, which sends nothing.

    bare, bare-last  aio-pika and the database's driver: commit the row, publish with a confirm, acknowledge. A kill between these
                     doubles work, an error loses the message
    nothing          the stages library, once=False
    once, inbox      once=True: inbox and outbox; for a stage that sends nothing the inbox alone
    xa               xa=True, over PostgreSQL alone: functions are ``def``

Prints one JSON line: flows that ended in the window, and CPU seconds of the process in it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aio_pika
import aiosqlite
import msgspec
import psycopg

from understudy.client.stages import AsyncConnection, Stages, postgresql, sqlite
from understudy.client.stages.application.worker import Worker

SIDES: Final = ("bare", "nothing", "once", "xa", "bare-last", "inbox")
BASES: Final = {"nothing": "bare", "once": "bare", "xa": "bare", "inbox": "bare-last"}
"""The side that each side of ours is compared with."""
ALONE: Final = ("bare-last", "inbox")
"""Sides whose flow has one stage."""
POLL_S: Final = 0.01
POSTGRESQL: Final = "postgresql:"
TABLES: Final = ("first", "last")


class Order(msgspec.Struct):
    """The message of all stages."""

    number: int
    text: str


Count = Callable[[], None]


class Window:
    """Counts ends of flows for so many seconds; it begins ``warmup_s`` after the first one."""

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self._warmup_s = warmup_s
        self._seconds = seconds
        self._begin = self._end = 0.0
        self._ends: list[float] = []

    @property
    def count(self) -> int:
        return sum(self._begin <= each < self._end for each in self._ends)

    @property
    def idle_s(self) -> float:
        """Between the last end and that of the window."""
        return self._end - max(each for each in self._ends if each < self._end)

    def note(self) -> None:
        """A flow ended; from any thread."""
        self._ends.append(time.monotonic())

    async def cpu_s(self) -> float:
        """Wait until the window is over; the CPU seconds of this process in it."""
        while not self._ends:  # noqa: ASYNC110  # ends come from threads, too
            await asyncio.sleep(POLL_S)
        self._begin = time.monotonic() + self._warmup_s
        self._end = self._begin + self._seconds
        await asyncio.sleep(self._warmup_s)
        before = time.process_time()
        await asyncio.sleep(max(0.0, self._end - time.monotonic()))
        return time.process_time() - before


def application(
    broker: str, database: str, queue: str, *, side: str, concurrency: int, note: Count, state_server: str = ""
) -> Stages:
    """Two stages, ``queue.first`` and ``queue.last``, and the flow of both."""
    if side == "xa":
        return _application_xa(
            broker, database.removeprefix(POSTGRESQL), state_server, queue, concurrency=concurrency, note=note
        )
    if database.startswith(POSTGRESQL):
        stages = Stages(queue, broker=broker, database=postgresql(database.removeprefix(POSTGRESQL)))
        kind: Any = psycopg.AsyncConnection
        mark = "%s"
    else:
        stages = Stages(queue, broker=broker, database=sqlite(database))
        kind, mark = AsyncConnection, "?"

    async def first(order: Order, db: Any) -> Order:
        await db.execute(f"INSERT INTO first (number) VALUES ({mark})", (order.number,))  # noqa: S608
        return order

    async def last(order: Order, db: Any) -> None:
        await db.execute(f"INSERT INTO last (number) VALUES ({mark})", (order.number,))  # noqa: S608
        note()

    for function in (first, last):
        function.__annotations__["db"] = kind
    once = side in {"once", "inbox"}
    made = [
        stages.stage(f"{queue}.{function.__name__}", once=once, concurrency=concurrency)(function)
        for function in (first, last)
    ]
    stages.flow("both", *made)
    stages.flow("last", made[1])
    return stages


def _application_xa(
    broker: str, conninfo: str, state_server: str, queue: str, *, concurrency: int, note: Count
) -> Stages:
    stages = Stages(queue, broker=broker, database=postgresql(conninfo), state_server=state_server)

    @stages.stage(f"{queue}.first", xa=True, concurrency=concurrency)
    def first(order: Order, db: psycopg.Connection[Any]) -> Order:
        db.execute("INSERT INTO first (number) VALUES (%s)", (order.number,))
        return order

    @stages.stage(f"{queue}.last", xa=True, concurrency=concurrency)
    def last(order: Order, db: psycopg.Connection[Any]) -> None:
        db.execute("INSERT INTO last (number) VALUES (%s)", (order.number,))
        note()

    stages.flow("both", first, last)
    stages.flow("last", last)
    return stages


async def _ours(stages: Stages, window: Window) -> float:
    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        used = await window.cpu_s()
        worker.stop()
    return used


# -- the bare consumer ---------------------------------------------------------------------------------------------------


Insert = Callable[[str, int], Awaitable[None]]
Close = Callable[[], Awaitable[None]]


async def _insert_postgresql(conninfo: str, concurrency: int) -> tuple[Insert, Close]:
    free: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
    for _ in range(2 * concurrency):
        free.put_nowait(await psycopg.AsyncConnection.connect(conninfo))

    async def insert(table: str, number: int) -> None:
        db = await free.get()
        await db.execute(f"INSERT INTO {table} (number) VALUES (%s)".encode(), (number,))  # noqa: S608
        await db.commit()
        free.put_nowait(db)

    async def close() -> None:
        while not free.empty():
            await free.get_nowait().close()

    return insert, close


async def _insert_sqlite(path: str, _: int) -> tuple[Insert, Close]:
    db = await aiosqlite.connect(path)
    await db.execute("PRAGMA journal_mode = WAL")
    await db.execute("PRAGMA synchronous = FULL")
    turn = asyncio.Lock()

    async def insert(table: str, number: int) -> None:
        async with turn:
            await db.execute(f"INSERT INTO {table} (number) VALUES (?)", (number,))  # noqa: S608
            await db.commit()

    return insert, db.close


async def _bare(broker: str, database: str, queue: str, window: Window, *, concurrency: int, alone: bool) -> float:
    if database.startswith(POSTGRESQL):
        insert, close = await _insert_postgresql(database.removeprefix(POSTGRESQL), concurrency)
    else:
        insert, close = await _insert_sqlite(database, concurrency)
    connection = await aio_pika.connect(broker)
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=concurrency)

    async def first(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        await insert("first", msgspec.json.decode(message.body, type=Order).number)
        sent = aio_pika.Message(message.body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(sent, f"{queue}.last")
        await message.ack()

    async def last(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        await insert("last", msgspec.json.decode(message.body, type=Order).number)
        await message.ack()
        window.note()

    try:
        if not alone:
            await (await channel.get_queue(f"{queue}.first", ensure=False)).consume(first)
        await (await channel.get_queue(f"{queue}.last", ensure=False)).consume(last)
        return await window.cpu_s()
    finally:
        await connection.close()
        await close()


async def measure(
    side: str,
    broker: str,
    database: str,
    state_server: str,
    queue: str,
    warmup_s: float,
    seconds: float,
    concurrency: int,
) -> dict[str, float]:
    """One side's figures."""
    window = Window(warmup_s, seconds)
    if side.startswith("bare"):
        used = await _bare(broker, database, queue, window, concurrency=concurrency, alone=side in ALONE)
    else:
        stages = application(
            broker, database, queue, side=side, concurrency=concurrency, note=window.note, state_server=state_server
        )
        used = await _ours(stages, window)
    return {"flows": window.count, "cpu_s": used, "idle_s": window.idle_s}


def make_tables(database: str) -> None:
    """The tables of the work, empty."""
    statements = [f"CREATE TABLE {table} (number BIGINT NOT NULL)" for table in TABLES]
    if database.startswith(POSTGRESQL):
        with psycopg.connect(database.removeprefix(POSTGRESQL)) as db:
            for statement in statements:
                db.execute(statement.encode())
    else:
        with sqlite3.connect(database) as lite:
            lite.executescript("PRAGMA journal_mode = WAL;" + ";".join(statements))
        lite.close()


def main(arguments: list[str]) -> None:
    side, broker, database, state_server, queue, *numbers = arguments
    warmup_s, seconds, concurrency = numbers
    found = asyncio.run(
        measure(side, broker, database, state_server, queue, float(warmup_s), float(seconds), int(concurrency))
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
