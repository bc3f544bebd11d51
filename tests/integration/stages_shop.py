"""An application of three stages for tests, and a worker that ends itself with SIGKILL at a named point.

python stages_shop.py BROKER DATABASE PREFIX POINT STAGE
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from typing import Any

import attrs
import psycopg

from understudy.client.stages import AsyncConnection, Context, Refuse, Retry, Stage, Stages, postgresql, sqlite
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.watching.points import Point

STAGES = ("reserve", "charge", "ship")


@attrs.frozen
class Order:
    number: int
    refused: bool = False


def application(broker: str, database: str, prefix: str) -> Stages:
    """The tables have no unique keys: an effect that is done twice shows.

    Args:
        database: the path of an SQLite file, or ``postgresql:`` with a connection string of libpq; or ``xa:`` with the address
            of a state server, ``|``, and a connection string.
    """
    stages, kinds, mark, once = _over(broker, database, prefix)
    retry = Retry(3, first=0.05, most=0.1)

    async def reserve(order: Order, db: Any) -> Order:
        if order.refused:
            raise Refuse("refused")
        await db.execute(f"INSERT INTO reserve VALUES ({mark})", (order.number,))
        return order

    def charge(order: Order, db: Any, ctx: Context) -> Order:
        db.execute(f"INSERT INTO charge VALUES ({mark})", (order.number,))
        if ctx.attempt == 1 and order.number == 2:
            raise ValueError("the bank is away")
        return order

    async def ship(order: Order, db: Any) -> None:
        await db.execute(f"INSERT INTO ship VALUES ({mark})", (order.number,))

    def reserve_blocking(order: Order, db: Any) -> Order:
        if order.refused:
            raise Refuse("refused")
        db.execute(f"INSERT INTO reserve VALUES ({mark})", (order.number,))
        return order

    def ship_blocking(order: Order, db: Any) -> None:
        db.execute(f"INSERT INTO ship VALUES ({mark})", (order.number,))

    made: list[Stage[..., Any]] = []
    functions: tuple[Any, ...] = (reserve, charge, ship)
    if "xa" in once:
        functions = (reserve_blocking, charge, ship_blocking)
    for stage, function, kind in zip(STAGES, functions, (kinds[0], kinds[1], kinds[0]), strict=True):
        function.__annotations__["db"] = kind
        made.append(stages.stage(f"{prefix}.{stage}", retry=retry, **once)(function))
    stages.flow("checkout", *made)
    return stages


def _over(broker: str, database: str, prefix: str) -> tuple[Stages, tuple[Any, Any], str, dict[str, Any]]:
    """The application, its types of parameter, its mark for a value in SQL, and the option that makes a stage do its work once."""
    name, _, conninfo = database.partition(":")
    if name == "xa":
        state_server, _, conninfo = conninfo.partition("|")
        stages = Stages(prefix, broker=broker, database=postgresql(conninfo), state_server=state_server)
        return stages, (psycopg.Connection, psycopg.Connection), "%s", {"xa": True}
    if name == "postgresql":
        stages = Stages(prefix, broker=broker, database=postgresql(conninfo))
        return stages, (psycopg.AsyncConnection, psycopg.Connection), "%s", {"once": True}
    stages = Stages(prefix, broker=broker, database=sqlite(database))
    return stages, (AsyncConnection, sqlite3.Connection), "?", {"once": True}


def main(broker: str, database: str, prefix: str, point: str, stage: str) -> None:
    wanted: Any = Point(point)

    def at_point(passed: Point, where: str) -> None:
        if passed is wanted and where in {"", f"{prefix}.{stage}"}:
            os.kill(os.getpid(), signal.SIGKILL)

    worker = Worker(application(broker, database, prefix), relay_grace_s=0.5, relay_lease_s=1, at_point=at_point)
    asyncio.run(worker.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
