"""Whole records, as the state reads them."""

from __future__ import annotations

from typing import Final

from understudy.broker.amqp.errors import MalformedFrameError
from understudy.broker.amqp.field_table import FieldTable, decode_table
from understudy.broker.core.topology.exchanges import exchange_class
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind
from understudy.broker.octets.chunks import LARGE_BYTES, named_bytes

EMPTY_TABLE: Final = b"\x00\x00\x00\x00"
"""No arguments."""


def separate(raw: bytes) -> bytes:
    """One record of a large batch, by itself: a large body is not copied, nor are many ids. All others have names to their end."""
    if raw[0] == record.DEQUEUE:
        return named_bytes(memoryview(raw))
    has_body = raw[0] & ~record.TRANSIENT in record.WITH_BODY
    return record.LargeRecord.of(memoryview(raw)) if has_body and len(raw) >= LARGE_BYTES else bytes(raw)


def check_readable(raw: bytes) -> None:
    """Raises for a topology record what registering it would raise, if this program cannot read it."""
    kind, end = raw[0], len(raw)
    if kind == record.QUEUE_DECLARE:
        table(record.decode_queue_declare(raw, 5, end)[-1])
    elif kind == record.EXCHANGE_DECLARE:
        vhost, name, exchange_type, _, arguments = record.decode_exchange_declare(raw, 5, end)
        if exchange_class(exchange_type, table(arguments)) is None:
            raise record.UnknownExchangeTypeError(vhost, name, exchange_type)
    elif kind == record.BIND:
        table(record.decode_bind(raw, 5, end)[-1])
    elif kind == record.EXCHANGE_BIND:
        table(decode_exchange_bind(raw, 5, end)[-1])


def table(raw: bytes) -> FieldTable:
    """Arguments, as a record has them."""
    try:
        return decode_table(raw, 0)[0]
    except MalformedFrameError as error:
        raise record.RecordError(f"arguments that cannot be read: {error}") from error


def plain(raw: bytes) -> bytes:
    """A whole record without its transient bit."""
    return bytes((raw[0] & ~record.TRANSIENT,)) + raw[1:]
