"""The same shop with ``xa=True``: no tables of the library, one distributed transaction a message (docs/stages.md).

Environment variables say where it is: see `settings`. The database is PostgreSQL.
"""

from __future__ import annotations

import os
from typing import Any, Final

from psycopg import Connection

from understudy.client.stages import Context, Refuse, Stages, postgresql
from understudy.client.stages.application.begin import Begin
from understudy.client.stages.demo.settings import BROKER, DATABASE, POSTGRESQL, STATE_SERVER
from understudy.client.stages.demo.shop import CONCURRENCY, RETRY, Charged, Order, Reserved, may_fail

__all__ = ["Order", "begin", "checkout", "note_order", "stages"]

stages: Final = Stages(
    "shop",
    broker=os.environ[BROKER],
    database=postgresql(os.environ[DATABASE].removeprefix(POSTGRESQL)),
    state_server=os.environ[STATE_SERVER],
)


@stages.stage("shop.reserve", xa=True, retry=RETRY, concurrency=CONCURRENCY)
def reserve(order: Order, db: Connection) -> Reserved:
    """Take a piece from the stock."""
    if order.cents <= 0:
        raise Refuse(f"order {order.number} has no amount")
    db.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = %s", (order.item,))
    db.execute("INSERT INTO holds (number) VALUES (%s)", (order.number,))
    may_fail("the warehouse")
    return Reserved(order)


@stages.stage("shop.charge", xa=True, retry=RETRY, concurrency=CONCURRENCY)
def charge(reserved: Reserved, db: Connection, ctx: Context) -> Charged:
    """Move the customer's money."""
    order = reserved.order
    db.execute("UPDATE accounts SET cents = cents - %s WHERE customer = %s", (order.cents, order.customer))
    db.execute("UPDATE accounts SET cents = cents + %s WHERE customer = 0", (order.cents,))
    db.execute("INSERT INTO charges (number, cents) VALUES (%s, %s)", (order.number, order.cents))
    may_fail("the bank")
    return Charged(order, ctx.message_id)


@stages.stage("shop.ship", xa=True, retry=RETRY, concurrency=CONCURRENCY)
def ship(charged: Charged, db: Connection) -> None:
    """Give the piece to the carrier."""
    order = charged.order
    db.execute("INSERT INTO shipments (number, item) VALUES (%s, %s)", (order.number, order.item))
    may_fail("the carrier")


checkout: Final = stages.flow("checkout", reserve, charge, ship)


def begin(name: str) -> Begin:
    """Begin an order; its message is sent once, since no inbox would drop a second one."""
    return stages.begin(name=name, xa=True)


async def note_order(db: Any, number: int, cents: int) -> None:
    """Write an order down, in the transaction that begins its flow."""
    await db.execute("INSERT INTO orders (number, cents) VALUES (%s, %s)", (number, cents))
