"""The application of the demonstration; workers run it by ``understudy stages run understudy.client.stages.demo.shop:stages``.

Environment variables say where it is: see `settings`. The functions are the same over SQLite and PostgreSQL: only the type of the
database parameter and the mark of a parameter in SQL differ.
"""

from __future__ import annotations

import os
import random
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import msgspec

from understudy.client.stages import AsyncConnection, Context, Refuse, Retry, Stages, postgresql, sqlite
from understudy.client.stages.application.begin import Begin
from understudy.client.stages.demo.settings import BROKER, DATABASE, ONCE, POSTGRESQL

FAILS: Final = 0.03
"""The share of calls in which a stage raises an error that goes away."""
CONCURRENCY: Final = 4
RETRY: Final = Retry(7, first=0.2, factor=2, most=2)


class Order(msgspec.Struct, frozen=True):
    """A wish of a customer: one piece of an item."""

    number: int
    customer: int
    item: int
    cents: int


class Reserved(msgspec.Struct, frozen=True):
    """An order whose piece is taken from the stock."""

    order: Order


class Charged(msgspec.Struct, frozen=True):
    """An order that is paid."""

    order: Order
    receipt: str


class AwayError(Exception):
    """Something outside does not answer; it will, later."""


_database: Final = os.environ.get(DATABASE, "shop.db")
if TYPE_CHECKING:
    AsyncDatabase = AsyncConnection
    Database = sqlite3.Connection
elif _database.startswith(POSTGRESQL):
    from psycopg import AsyncConnection as AsyncDatabase
    from psycopg import Connection as Database
else:
    AsyncDatabase = AsyncConnection
    Database = sqlite3.Connection

stages: Final = Stages(
    "shop",
    broker=os.environ.get(BROKER, "amqp://127.0.0.1/"),
    database=postgresql(_database.removeprefix(POSTGRESQL)) if _database.startswith(POSTGRESQL) else sqlite(_database),
)
_once: Final = os.environ.get(ONCE, "yes") == "yes"


def _sql(statement: str) -> str:
    """A statement with the marks of the database; it has no question mark besides."""
    return statement.replace("?", "%s") if _database.startswith(POSTGRESQL) else statement


@stages.stage("shop.reserve", once=_once, retry=RETRY, concurrency=CONCURRENCY)
async def reserve(order: Order, db: AsyncDatabase) -> Reserved:
    """Take a piece from the stock."""
    if order.cents <= 0:
        raise Refuse(f"order {order.number} has no amount")
    await db.execute(_sql("UPDATE stock SET pieces = pieces - 1 WHERE item = ?"), (order.item,))
    await db.execute(_sql("INSERT INTO holds (number) VALUES (?)"), (order.number,))
    may_fail("the warehouse")
    return Reserved(order)


@stages.stage("shop.charge", once=_once, retry=RETRY, concurrency=CONCURRENCY)
def charge(reserved: Reserved, db: Database, ctx: Context) -> Charged:
    """Move the customer's money; an ordinary function, which runs in a thread."""
    order = reserved.order
    db.execute(_sql("UPDATE accounts SET cents = cents - ? WHERE customer = ?"), (order.cents, order.customer))
    db.execute(_sql("UPDATE accounts SET cents = cents + ? WHERE customer = 0"), (order.cents,))
    db.execute(_sql("INSERT INTO charges (number, cents) VALUES (?, ?)"), (order.number, order.cents))
    may_fail("the bank")
    return Charged(order, ctx.message_id)


@stages.stage("shop.ship", once=_once, retry=RETRY, concurrency=CONCURRENCY)
async def ship(charged: Charged, db: AsyncDatabase) -> None:
    """Give the piece to the carrier."""
    await db.execute(
        _sql("INSERT INTO shipments (number, item) VALUES (?, ?)"), (charged.order.number, charged.order.item)
    )
    may_fail("the carrier")


checkout: Final = stages.flow("checkout", reserve, charge, ship)


def begin(name: str) -> Begin:
    """Begin an order."""
    return stages.begin(name=name)


async def note_order(db: Any, number: int, cents: int) -> None:
    """Write an order down, in the transaction that begins its flow."""
    await db.execute(_sql("INSERT INTO orders (number, cents) VALUES (?, ?)"), (number, cents))


def may_fail(whom: str) -> None:
    """Fail by chance, as services outside do.

    Raises:
        AwayError: ``whom`` does not answer.
    """
    if random.random() < FAILS:  # noqa: S311  # chance for a load
        raise AwayError(f"{whom} does not answer")
