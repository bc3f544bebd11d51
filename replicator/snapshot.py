"""What a catch-up carries beside the log, and what a checkpoint keeps: encodings.

``Meta`` is everything that is not a message: topology, outcomes, epochs. The pieces of a queue or a transaction carry
messages with their ids. All of them are journaled by the joiner as notes, with the same bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from understudy.broker.chunks import joined
from understudy.broker.core.entry import Entry
from understudy.broker.log import record
from understudy.broker.log.record import decode_message
from understudy.broker.message import Message

_PIECE: Final = Struct(">QBI")
_ENTRY: Final = Struct(">QQBI")
_EVENT: Final = Struct(">QI")
_U32: Final = Struct(">I")


def encode_message(message: Message) -> list[bytes]:
    """A message by itself, as in a record, in pieces."""
    return [record.message_head(message), message.properties, message.content()]


def encode_queue_piece(kind: int, queue_id: int, transient: bool, entries: list[Entry]) -> bytes:
    """Messages of one queue. ``transient`` pieces are not journaled. A large body is not copied."""
    parts = [bytes((kind,)), _PIECE.pack(queue_id, transient, len(entries))]
    for entry in entries:
        raw = encode_message(entry.message)
        parts.append(_ENTRY.pack(entry.id, entry.deadline_ms, entry.redelivered, sum(map(len, raw))))
        parts += raw
    return joined(parts)


def decode_queue_piece(buf: bytes) -> tuple[int, bool, list[tuple[int, int, bool, Message]]]:
    """(queue id, transient, [(id, deadline ms, redelivered, message)])."""
    queue_id, transient, count = _PIECE.unpack_from(buf, 1)
    at = 1 + _PIECE.size
    entries = []
    for _ in range(count):
        entry_id, deadline, redelivered, size = _ENTRY.unpack_from(buf, at)
        at += _ENTRY.size
        message, _ = decode_message(buf, at, at + size)
        entries.append((entry_id, deadline, bool(redelivered), message))
        at += size
    return queue_id, bool(transient), entries


def encode_transaction_piece(kind: int, records: list[tuple[int, bytes]]) -> bytes:
    """Records of one transaction with the offsets at which they stand in the log."""
    parts = [bytes((kind,)), _U32.pack(len(records))]
    for offset, raw in records:
        parts.append(_EVENT.pack(offset, len(raw)))
        parts.append(raw)
    return b"".join(parts)


def decode_transaction_piece(buf: bytes) -> list[tuple[int, bytes]]:
    (count,) = _U32.unpack_from(buf, 1)
    at = 5
    records = []
    for _ in range(count):
        offset, size = _EVENT.unpack_from(buf, at)
        at += _EVENT.size
        records.append((offset, buf[at : at + size]))
        at += size
    return records


def is_transient(buf: bytes) -> bool:
    """Whether a queue piece holds transient messages, which no journal keeps."""
    return bool(_PIECE.unpack_from(buf, 1)[1])
