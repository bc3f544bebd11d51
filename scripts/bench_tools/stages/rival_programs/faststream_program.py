"""The two stages of the bench as subscribers of FastStream: ``python faststream_program.py``, until SIGTERM.

Settings come from the environment. BENCH_SAFE=yes returns a failed message to its queue, and sends persistent messages; the
defaults reject the one, and do not store the other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import aiosqlite
import psycopg
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

QUEUE = os.environ["BENCH_QUEUE"]
DATABASE = os.environ["BENCH_DATABASE"]
IN_HAND = int(os.environ["BENCH_IN_HAND"])
SAFE = os.environ["BENCH_SAFE"] == "yes"
POSTGRESQL = "postgresql:"
POLICY: dict[str, Any] = {"ack_policy": AckPolicy.NACK_ON_ERROR} if SAFE else {}

broker = RabbitBroker(os.environ["BENCH_BROKER"], default_channel=Channel(prefetch_count=IN_HAND))
app = FastStream(broker)
inserts: list[Callable[[str, int], Awaitable[None]]] = []


def queue(name: str) -> RabbitQueue:
    """One that is there, with whatever arguments."""
    return RabbitQueue(f"{QUEUE}.{name}", durable=True, declare=False)


@app.on_startup
async def open_database() -> None:
    """A connection for each message in hand, or the one file."""
    if DATABASE.startswith(POSTGRESQL):
        idle: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(2 * IN_HAND):
            idle.put_nowait(await psycopg.AsyncConnection.connect(DATABASE.removeprefix(POSTGRESQL), autocommit=True))

        async def insert(table: str, number: int) -> None:
            connection = await idle.get()
            try:
                await connection.execute(f"INSERT INTO {table} (number) VALUES (%s)".encode(), (number,))  # noqa: S608  # our own name
            finally:
                idle.put_nowait(connection)

    else:
        sqlite = await aiosqlite.connect(DATABASE, timeout=60, isolation_level=None)
        await sqlite.execute("PRAGMA synchronous = FULL")

        async def insert(table: str, number: int) -> None:
            await sqlite.execute(f"INSERT INTO {table} (number) VALUES (?)", (number,))  # noqa: S608  # our own name

    inserts.append(insert)


@broker.subscriber(queue("first"), **POLICY)
@broker.publisher(queue("last"), persist=SAFE)
async def first(order: dict[str, Any]) -> dict[str, Any]:
    """Insert a row, and send what is returned."""
    await inserts[0]("first", order["number"])
    return order


@broker.subscriber(queue("last"), **POLICY)
async def last(order: dict[str, Any]) -> None:
    """Insert a row."""
    await inserts[0]("last", order["number"])


if __name__ == "__main__":
    asyncio.run(app.run())
