"""Books: what the shop's database holds, and what is wrong with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from understudy.client.stages.databases.port import OUTBOX

CUSTOMERS: Final = 20
ITEMS: Final = 10
CENTS: Final = 1_000_000
PIECES: Final = 100_000
EFFECTS: Final = ("holds", "charges", "shipments")
SHOWN: Final = 10

_SCHEMA: Final = """\
CREATE TABLE orders (number INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE stock (item INTEGER PRIMARY KEY, pieces INTEGER NOT NULL);
CREATE TABLE accounts (customer INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE holds (number INTEGER NOT NULL);
CREATE TABLE charges (number INTEGER NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE shipments (number INTEGER NOT NULL, item INTEGER NOT NULL);
"""


@attrs.frozen(kw_only=True)
class Books:
    """Contents of the database.

    Attributes:
        orders: number to cents.
        effects: for each table, the numbers of its rows.
        cents, pieces: in all accounts; in stock and shipped.
        outbox: messages that are not known to be sent.
    """

    orders: dict[int, int]
    effects: dict[str, list[int]]
    cents: int
    pieces: int
    outbox: int


def open_books(path: Path) -> None:
    """A new database with customers and stock."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA)
        db.executemany("INSERT INTO accounts VALUES (?, ?)", [(each, CENTS) for each in range(CUSTOMERS + 1)])
        db.executemany("INSERT INTO stock VALUES (?, ?)", [(each, PIECES) for each in range(ITEMS)])
    db.close()


def read_books(path: Path) -> Books:
    """Read the contents now, in one transaction."""
    db = sqlite3.connect(path, timeout=20)
    try:
        db.execute("BEGIN")
        shipped = db.execute("SELECT count(*) FROM shipments").fetchone()[0]
        return Books(
            orders=dict(db.execute("SELECT number, cents FROM orders")),
            effects={name: [row[0] for row in db.execute(f"SELECT number FROM {name}")] for name in EFFECTS},  # noqa: S608
            cents=db.execute("SELECT sum(cents) FROM accounts").fetchone()[0],
            pieces=db.execute("SELECT sum(pieces) FROM stock").fetchone()[0] + shipped,
            outbox=db.execute(f"SELECT count(*) FROM {OUTBOX}").fetchone()[0],  # noqa: S608
        )
    finally:
        db.close()


def problems_of(books: Books, dead: Iterable[int]) -> list[str]:
    """Faults of the books; empty if everything holds.

    ``dead`` are the numbers of the orders in dead-letter queues, as often as they are there.
    """
    dead = list(dead)
    refused = {number for number, cents in books.orders.items() if cents <= 0}
    found = _compared("dead-letter queue", dead, refused)
    for table in EFFECTS:
        found += _compared(table, books.effects[table], set(books.orders) - refused)
    for name, held, due in (
        ("accounts hold", books.cents, (CUSTOMERS + 1) * CENTS),
        ("stock and shipments hold", books.pieces, ITEMS * PIECES),
        ("the outbox holds", books.outbox, 0),
    ):
        if held != due:
            found.append(f"{name} {held}; they should hold {due}")
    return found


def _compared(place: str, numbers: list[int], due: set[int]) -> list[str]:
    there = set(numbers)
    doubled = sorted({number for number in there if numbers.count(number) > 1}) if len(there) < len(numbers) else []
    found = []
    for what, which in (("missing", sorted(due - there)), ("doubled", doubled), ("too much", sorted(there - due))):
        if which:
            more = "" if len(which) <= SHOWN else ", ..."
            found.append(f"{place}: {len(which)} orders {what}: {', '.join(map(str, which[:SHOWN]))}{more}")
    return found
