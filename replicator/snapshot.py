"""Encodings of what a catch-up carries beside the log, and what a checkpoint keeps.

``Meta`` is everything that is not a message: topology, outcomes, epochs. The pieces of a queue or a transaction carry
messages with their ids. All of them are journaled by the joiner as notes, with the same bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue_returns import QueueReturns
from understudy.broker.log import record
from understudy.broker.log.body_place import AWAITED, in_note
from understudy.broker.log.frame import NOTE_HEADER_BYTES
from understudy.broker.log.paged_bodies import contents_of
from understudy.broker.log.record import decode_message
from understudy.broker.log.return_record import Returned
from understudy.broker.message import Message
from understudy.broker.octets.chunks import joined

_PIECE: Final = Struct(">QBI")
_ENTRY: Final = Struct(">QQBI")
_RETURNED: Final = Struct(">IIQ")
_REDELIVERED: Final = 1
_KNOWN: Final = 2
"""Of an entry: what its queue knows of it stands before the message. Queues of which that is written are in no older group."""
_EVENT: Final = Struct(">QI")
_U32: Final = Struct(">I")


class Brought(NamedTuple):
    """A message that a catch-up brings; ``returned`` is what its queue knows of it, None if that is nothing.

    ``at`` and ``size``: where its encoding begins in the piece, and how many octets it has.
    """

    entry_id: int
    deadline_ms: int
    redelivered: bool
    message: Message
    returned: Returned | None
    at: int
    size: int


def await_note(brought: list[Brought]) -> None:
    """The piece with these messages is being written to the journal."""
    for each in brought:
        each.message.put_at(AWAITED)


def put_at_note(brought: list[Brought], note: int) -> None:
    """The piece with these messages stands in the note at the place ``note``, durably; 0: that is not known."""
    for each in brought:
        each.message.put_at(in_note(note, NOTE_HEADER_BYTES + each.at, each.size))


def encode_message(message: Message, body: bytes) -> list[bytes]:
    """A message with its body, by itself, as in a record, in pieces."""
    return [record.message_head(message), message.properties, body]


def encode_queue_piece(
    kind: int, queue_id: int, transient: bool, entries: list[Entry], returns: QueueReturns | None = None
) -> bytes:
    """Messages of one queue. ``transient`` pieces are not journaled. A large body is not copied.

    ``returns`` is the queue's: what it knows of a message stands before that.
    """
    known = returns.known if returns is not None else {}
    parts = [bytes((kind,)), _PIECE.pack(queue_id, transient, len(entries))]
    bodies = contents_of([entry.message for entry in entries])
    for entry, body in zip(entries, bodies, strict=True):
        raw = encode_message(entry.message, body)
        flags = entry.redelivered | (_KNOWN if entry.id in known else 0)
        parts.append(_ENTRY.pack(entry.id, entry.deadline_ms, flags, sum(map(len, raw))))
        if entry.id in known:
            parts.append(_RETURNED.pack(*known[entry.id]))
        parts += raw
    return joined(parts)


def decode_queue_piece(buf: bytes) -> tuple[int, bool, list[Brought]]:
    """(queue id, transient, messages)."""
    queue_id, transient, count = _PIECE.unpack_from(buf, 1)
    at = 1 + _PIECE.size
    entries = []
    for _ in range(count):
        entry_id, deadline, flags, size = _ENTRY.unpack_from(buf, at)
        at += _ENTRY.size
        returned = None
        if flags & _KNOWN:
            returned = Returned(*_RETURNED.unpack_from(buf, at))
            at += _RETURNED.size
        message, _ = decode_message(buf, at, at + size)
        entries.append(Brought(entry_id, deadline, bool(flags & _REDELIVERED), message, returned, at, size))
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
    """True if a queue piece holds transient messages, which no journal keeps."""
    return bool(_PIECE.unpack_from(buf, 1)[1])
