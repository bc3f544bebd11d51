"""Inbox and outbox as each business database has them: columns, rows, and what a stage may not do in their transaction."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.port import INBOX, LINES, OUTBOX, PARKED
from understudy.client.stages.errors import ConfigurationError, DemarcationError

COLUMNS: Final = "id, queue, stage, headers, body, due_ms, stored_ms"
"""Of the outbox: those that make an envelope, in the order in which `row_of` and `envelope_of` have them."""
ALL_COLUMNS: Final = {
    INBOX: {"stage", "message_id", "at_ms"},
    OUTBOX: {*COLUMNS.split(", "), "seq", "from_stage", "from_message", "lease", "leased_until_ms"},
    LINES: {"stage", "line_key", "head", "since_ms"},
    PARKED: {"seq", "stage", "line_key", "message_id", "headers", "body", "parked_ms"},
}

LEFT: Final = f"SELECT count(*), min(stored_ms) FROM {OUTBOX}"  # noqa: S608  # our own name
"""How many messages the outbox holds, and when the oldest was stored, in ms since 1970."""

EARLIER_IS_FREE: Final = f"""\
NOT EXISTS (
        SELECT 1 FROM {OUTBOX} AS earlier WHERE earlier.from_stage = free.from_stage
        AND earlier.from_message = free.from_message AND earlier.seq < free.seq AND earlier.leased_until_ms >= {{}}
    )"""  # noqa: S608
"""Of a row ``free``: no relay has an earlier row of the same message now, whose messages stay in their order so."""


def check_columns(address: str, table: str, found: Collection[str]) -> None:
    """Check that a table is of this version.

    Raises:
        ConfigurationError: it has other columns; names the table.
    """
    known = ALL_COLUMNS[table]
    if set(found) != known:
        added, missing = sorted(set(found) - known), sorted(known - set(found))
        raise ConfigurationError(
            f"{address}: table {table} has the columns {sorted(found)}; this version of the library knows {sorted(known)}. "
            + (
                f"A newer version has added {added}: install that one"
                if added
                else f"{missing} are missing: `understudy stages tables` prints the table"
            )
        )


def row_of(envelope: Envelope, now_ms: int) -> tuple[Any, ...]:
    """The values of `COLUMNS` for an envelope that is stored now."""
    headers = json.dumps(envelope.headers)
    return envelope.id, envelope.queue, envelope.stage, headers, envelope.body, now_ms + envelope.after_ms, now_ms


def envelope_of(row: Sequence[Any], now_ms: int | None = None) -> Envelope:
    """The envelope of a row; what is left of its delay at ``now_ms``, or all of it."""
    id_, queue, stage, headers, body, due_ms, stored_ms = row
    after_ms = due_ms - (stored_ms if now_ms is None else now_ms)
    return Envelope(
        id=id_, queue=queue, stage=stage, headers=json.loads(headers), body=bytes(body), after_ms=max(0, after_ms)
    )


def refuse(what: str) -> NoReturn:
    """Refuse what would end the transaction of a stage.

    Raises:
        DemarcationError: always.
    """
    raise DemarcationError(
        f"{what} inside of a stage: the library commits when the stage returns, or rolls back if it raises"
    )


def refuse_late() -> NoReturn:
    """Refuse a statement for which no transaction is open.

    Raises:
        DemarcationError: always.
    """
    raise DemarcationError("a statement after the stage has returned: its transaction is over")


class Guarded(Protocol):
    """A connection that a stage is given: `commit`, `rollback` and `close` of it are the library's."""

    ours: bool


G = TypeVar("G", bound=Guarded)


@contextlib.contextmanager
def ours(connection: G) -> Iterator[G]:
    """Mark calls within as calls of the library, not of a stage."""
    before, connection.ours = connection.ours, True
    try:
        yield connection
    finally:
        connection.ours = before


@contextlib.contextmanager
def extra_of(address: str, extra: str) -> Iterator[None]:
    """Name the extra of this package whose library is missing.

    Raises:
        ConfigurationError: an import within has failed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{address}: {error}: pip install 'understudy[{extra}]'") from error


def tables_sql(*, text: str, number: str, octets: str, serial: str, keyed: str = "") -> str:
    """The statements that make inbox, outbox, lines and parked messages.

    Args:
        text: type of a column of texts.
        number: type of a column of numbers of 64 bits.
        octets: type of a column of octets.
        serial: a number that the database gives by itself, as the primary key.
        keyed: what follows a table that has another primary key.
    """
    return f"""\
CREATE TABLE IF NOT EXISTS {INBOX} (
    stage {text} NOT NULL,
    message_id {text} NOT NULL,
    at_ms {number} NOT NULL,
    PRIMARY KEY (stage, message_id)
){keyed};
CREATE INDEX IF NOT EXISTS {INBOX}_by_time ON {INBOX} (at_ms);
CREATE TABLE IF NOT EXISTS {OUTBOX} (
    seq {serial},
    id {text} NOT NULL UNIQUE,
    from_stage {text} NOT NULL,
    from_message {text} NOT NULL,
    queue {text} NOT NULL,
    stage {text} NOT NULL,
    headers {text} NOT NULL,
    body {octets} NOT NULL,
    due_ms {number} NOT NULL,
    stored_ms {number} NOT NULL,
    lease {text},
    leased_until_ms {number} NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS {OUTBOX}_by_message ON {OUTBOX} (from_stage, from_message);
CREATE TABLE IF NOT EXISTS {LINES} (
    stage {text} NOT NULL,
    line_key {text} NOT NULL,
    head {text} NOT NULL,
    since_ms {number} NOT NULL,
    PRIMARY KEY (stage, line_key)
){keyed};
CREATE TABLE IF NOT EXISTS {PARKED} (
    seq {serial},
    stage {text} NOT NULL,
    line_key {text} NOT NULL,
    message_id {text} NOT NULL,
    headers {text} NOT NULL,
    body {octets} NOT NULL,
    parked_ms {number} NOT NULL,
    UNIQUE (stage, message_id)
);
CREATE INDEX IF NOT EXISTS {PARKED}_by_line ON {PARKED} (stage, line_key, seq);
"""
