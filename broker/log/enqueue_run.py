"""TX_ENQUEUEs of one transaction that stand one behind the other, decoded in one go: what a backup does most.

Each costs half of what `record.decode_tx_enqueue` costs. Records that are not like most (several queues, a message that was moved
or is delayed) end a run; their reader is that function.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log import record
from understudy.broker.log.record import RecordError, Target
from understudy.broker.message import Message, made

_ONE_TARGET: Final = Struct(">xIQHQIQxB")
_FIRST: Final = Struct(">QH")
_BEFORE_NAMES: Final = _ONE_TARGET.size - 2
_PROPERTIES_SIZE: Final = Struct(">I")
_TAILS: dict[bytes, tuple[str, str, bool, int] | None] = {}
_TAILS_LIMIT: Final = 4096


class EnqueueRun(NamedTuple):
    """Records of a run, read. All of them carry plain messages, each to one queue.

    Attributes:
        tx_id: of the transaction.
        events: (offset, message, targets) of each record.
        heads: of the same records, which the digest of the transaction covers.
        counts: how many of them go to each queue, by its id.
        octets: of all properties and bodies.
        end: where the record behind the run begins.
    """

    tx_id: int
    events: list[tuple[int, Message, list[Target]]]
    heads: list[bytes]
    counts: dict[int, int]
    octets: int
    end: int


def decode_run(buf: bytes, at: int, end: int, offset: int) -> EnqueueRun:
    """The run that begins at ``at``, if any does: it may be empty.

    Args:
        buf: TX_ENQUEUEs that no journal leaves out stand there from ``at`` to ``end``, and nothing else.
        at: where the first record begins.
        end: where the last record ends.
        offset: of the first record.

    Raises:
        RecordError, struct.error: a length is wrong.
    """
    tx_id, n = _FIRST.unpack_from(buf, at + 5)
    events: list[tuple[int, Message, list[Target]]] = []
    heads: list[bytes] = []
    counts: dict[int, int] = {}
    octets = 0
    unpack, tails = _ONE_TARGET.unpack_from, _TAILS
    while at < end and n == 1:
        length, of, n, queue_id, place, deadline_ms, exchange_size = unpack(buf, at)
        if n != 1 or of != tx_id:
            break
        names = at + _BEFORE_NAMES
        key = names + 2 + exchange_size
        head_end = key + 5 + buf[key]
        raw = buf[names:head_end]
        tail = tails.get(raw) or _tail(raw)
        if tail is None:
            break
        exchange, routing_key, persistent, size = tail
        properties_end = head_end + size
        behind = at + 5 + length
        if properties_end > behind:
            raise RecordError(f"message at byte {names}: properties end at {properties_end}, the record at {behind}")
        message = made(
            Message,
            exchange,
            routing_key,
            buf[head_end:properties_end],
            buf[properties_end:behind],
            behind - properties_end,
            persistent,
            offset,
        )
        events.append((offset, message, [(queue_id, place, deadline_ms)]))
        heads.append(buf[at:head_end])
        counts[queue_id] = counts.get(queue_id, 0) + 1
        octets += behind - head_end
        offset += 1
        at = behind
    return EnqueueRun(tx_id, events, heads, counts, octets, at)


def _tail(raw: bytes) -> tuple[str, str, bool, int] | None:
    """(exchange, routing key, persistent, octets of properties) of a plain message with this head; None if it is another kind."""
    if raw[0] >= record.MOVED:
        return None
    if len(_TAILS) >= _TAILS_LIMIT:
        _TAILS.clear()
    exchange, at = record.read_short(raw, 1)
    routing_key, at = record.read_short(raw, at)
    tail = _TAILS[raw] = (exchange, routing_key, raw[0] & 1 == 1, _PROPERTIES_SIZE.unpack_from(raw, at)[0])
    return tail
