"""The MOVE record: one message leaves a queue and enters others under new ids, with new properties, in one step.

A MOVE carries no body: the message that leaves has it, on every broker. So a moved message costs what its properties cost, and a
queue's limit or time to live moves a large message for nothing. Two cases need the body once more:

- A persistent message of a queue that is not durable stands in no journal, and enters a durable queue: it is to survive a restart.
- An outlet, which reads the journal alone, sends what enters the queue (``core/moving/moved_bodies.py``).

A broker that lacks the message that leaves (it has restarted, and the message was transient; or what fills its log has not brought
it) cannot put it anywhere: the plugin that fills the log brings it to the queues that it has entered.

Payload: ``queue id u64 | id u64 | reason u8 | body u8 | size u64 | targets u16 | (queue id, id, deadline ms) each | message``. The
message is that of an ENQUEUE, its body of ``size`` octets is there if ``body`` is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log.record import (
    HEAD,
    MOVE,
    TARGET,
    RecordError,
    Target,
    decode_message,
    decode_targets,
    message_head,
)
from understudy.broker.message import MovedMessage

_PLACE: Final = Struct(">QQBBQH")


class Move(NamedTuple):
    """A MOVE, read.

    Attributes:
        queue_id, entry_id: what leaves, and where from; both 0 if its queue is not in the log.
        reason: why, of ``record.REASON_NAMES``.
        targets: what it enters; at least one.
        message: as it is in the targets; its body is empty unless ``has_body``.
        has_body: the record carries the body.
        size_bytes: of the body, wherever it is.
    """

    queue_id: int
    entry_id: int
    reason: int
    targets: list[Target]
    message: MovedMessage
    has_body: bool
    size_bytes: int


def encode_move(
    queue_id: int, entry_id: int, reason: int, targets: Sequence[Target], message: MovedMessage, has_body: bool
) -> bytes:
    """The head of a MOVE; ``message.properties`` follow it and, with ``has_body``, the body.

    ``message.size`` is that of the body in either case.
    """
    names = message_head(message)
    numbers = b"".join([TARGET.pack(*target) for target in targets])
    size = len(message.properties) + (message.size if has_body else 0)
    place = _PLACE.pack(queue_id, entry_id, reason, has_body, message.size, len(targets))
    return HEAD.pack(MOVE, len(place) + len(numbers) + len(names) + size) + place + numbers + names


def decode_move(buf: bytes, at: int, end: int) -> Move:
    """``at`` and ``end`` bound the payload."""
    queue_id, entry_id, reason, has_body, size_bytes, count = _PLACE.unpack_from(buf, at)
    at += _PLACE.size
    targets = decode_targets(TARGET, count, buf, at, end)
    message = decode_message(buf, at + TARGET.size * count, end)[0]
    if not isinstance(message, MovedMessage):
        raise RecordError(f"the message of a move at byte {at} is not marked as moved")
    if message.size != size_bytes * has_body:
        raise RecordError(f"a move at byte {at} has {message.size} octets of a body of {size_bytes}")
    return Move(queue_id, entry_id, reason, targets, message, bool(has_body), size_bytes)


def decode_move_place(buf: bytes, at: int, end: int) -> tuple[int, int, int, int, list[Target], int]:
    """(queue id, id, reason, size of the body, targets, where the message begins): for readers that need no message."""
    queue_id, entry_id, reason, _, size_bytes, count = _PLACE.unpack_from(buf, at)
    at += _PLACE.size
    return queue_id, entry_id, reason, size_bytes, decode_targets(TARGET, count, buf, at, end), at + TARGET.size * count
