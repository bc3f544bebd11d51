"""Books: what the shop's database holds, and what is wrong with it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

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


class BooksPlace(Protocol):
    """The database of the books.

    Attributes:
        address: as the variable `settings.DATABASE` has it.
        errors: what its driver raises.
    """

    address: str
    errors: tuple[type[Exception], ...]

    def open(self) -> None:
        """Make the tables, with customers and stock."""

    def read(self) -> Books:
        """Read the contents now, in one transaction."""


class SqliteBooks:
    """Books in a file."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._path = path

    def open(self) -> None:
        open_books(self._path)

    def read(self) -> Books:
        return read_books(self._path)


def schema() -> list[str]:
    """Statements that make the tables, with customers and stock; for SQLite and PostgreSQL."""
    accounts = ", ".join(f"({each}, {CENTS})" for each in range(CUSTOMERS + 1))
    stock = ", ".join(f"({each}, {PIECES})" for each in range(ITEMS))
    tables = [each.strip() for each in _SCHEMA.split(";") if each.strip()]
    return [*tables, f"INSERT INTO accounts VALUES {accounts}", f"INSERT INTO stock VALUES {stock}"]  # noqa: S608


def open_books(path: Path) -> None:
    """A new database with customers and stock."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in schema():
            db.execute(statement)
    db.close()


def read_books(path: Path) -> Books:
    """Read the contents now, in one transaction."""
    db = sqlite3.connect(path, timeout=20)
    try:
        db.execute("BEGIN")
        return books_of(lambda sql: db.execute(sql).fetchall())
    finally:
        db.close()


def books_of(query: Callable[[str], list[Any]]) -> Books:
    """The contents, by queries of one transaction."""

    def number(sql: str) -> int:
        return int(query(sql)[0][0])

    return Books(
        orders=dict(query("SELECT number, cents FROM orders")),
        effects={name: [row[0] for row in query(f"SELECT number FROM {name}")] for name in EFFECTS},  # noqa: S608
        cents=number("SELECT sum(cents) FROM accounts"),
        pieces=number("SELECT sum(pieces) FROM stock") + number("SELECT count(*) FROM shipments"),
        outbox=number(f"SELECT count(*) FROM {OUTBOX}"),  # noqa: S608
    )


def doubled_of(numbers: Iterable[int]) -> list[int]:
    """The numbers that are there more than once, sorted."""
    return sorted(number for number, count in Counter(numbers).items() if count > 1)


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
    found = []
    for what, which in (
        ("missing", sorted(due - there)), ("doubled", doubled_of(numbers)), ("too much", sorted(there - due)),
    ):  # fmt: skip
        if which:
            more = "" if len(which) <= SHOWN else ", ..."
            found.append(f"{place}: {len(which)} orders {what}: {', '.join(map(str, which[:SHOWN]))}{more}")
    return found
