"""The two stages of the bench as tasks of Celery.

    python -m celery -A celery_program worker -Q QUEUE.first,QUEUE.last
    python celery_program.py NUMBER     sends so many flows

Settings come from the environment; BENCH_SAFE=yes is the late acknowledgement with what belongs to it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable

import psycopg
from celery import Celery

QUEUE = os.environ["BENCH_QUEUE"]
DATABASE = os.environ["BENCH_DATABASE"]
POSTGRESQL = "postgresql:"
LATE = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {"confirm_publish": True},
}

app = Celery("celery_program", broker=os.environ["BENCH_BROKER"])
app.conf.task_ignore_result = True
if os.environ["BENCH_SAFE"] == "yes":
    app.conf.update(LATE)

_opened: list[Callable[[str, int], None]] = []
"""The database of this process, once it has worked."""


def _open() -> Callable[[str, int], None]:
    if DATABASE.startswith(POSTGRESQL):
        postgresql = psycopg.connect(DATABASE.removeprefix(POSTGRESQL), autocommit=True)

        def insert(table: str, number: int) -> None:
            postgresql.execute(f"INSERT INTO {table} (number) VALUES (%s)".encode(), (number,))  # noqa: S608  # our own name

    else:
        sqlite = sqlite3.connect(DATABASE, timeout=60, isolation_level=None)
        sqlite.execute("PRAGMA synchronous = FULL")

        def insert(table: str, number: int) -> None:
            sqlite.execute(f"INSERT INTO {table} (number) VALUES (?)", (number,))  # noqa: S608  # our own name

    return insert


def _insert(table: str, number: int) -> None:
    if not _opened:
        _opened.append(_open())
    _opened[0](table, number)


@app.task(name="first")
def first(number: int, text: str) -> None:
    """Insert a row, and send the next task."""
    _insert("first", number)
    last.apply_async((number, text), queue=f"{QUEUE}.last")


@app.task(name="last")
def last(number: int, text: str) -> None:  # noqa: ARG001  # each message carries it
    """Insert a row."""
    _insert("last", number)


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        first.apply_async((each, "x" * 100), queue=f"{QUEUE}.first")
