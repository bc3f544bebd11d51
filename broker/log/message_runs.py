"""Messages that stand one behind the other in a batch, decoded in one go: what a broker that follows does most.

Each costs half of what `record.decode_enqueue` and `record.decode_tx_enqueue` cost. A record that is not like most (of several
queues, of a message that was moved or is delayed, one that no journal keeps) ends a run; its reader is one of those functions.
The two loops are alike, and apart: a function for what they share would be a call for each message.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log import record
from understudy.broker.log.pending import ENQUEUE, Pending
from understudy.broker.log.record import RecordError, Target
from understudy.broker.message import Message, made

_TX_ENQUEUE: Final = Struct(">xIQHQIQxB")
"""Up to the length of the exchange's name, if there is one target."""
_ENQUEUE: Final = Struct(">xIHQQQxB")
_TX_NAMES: Final = _TX_ENQUEUE.size - 2
_NAMES: Final = _ENQUEUE.size - 2
_TX_ID: Final = Struct(">Q")
_U32: Final = Struct(">I")
_TAILS: dict[bytes, tuple[str, str, bool, int] | None] = {}
_TAILS_LIMIT: Final = 4096


class TxRun(NamedTuple):
    """TX_ENQUEUEs of one transaction, read. All of them carry plain messages, each to one queue.

    Attributes:
        tx_id: of the transaction.
        events: (offset, message, targets) of each record.
        heads: of the same records, which the digest of the transaction covers.
        counts: how many of them go to each queue, by its id.
        octets: of all properties and bodies.
    """

    tx_id: int
    events: list[tuple[int, Message, list[Target]]]
    heads: list[bytes]
    counts: dict[int, int]
    octets: int


def decode_tx_run(buf: bytes, at: int, offset: int) -> tuple[TxRun, int, int] | None:
    """The run that begins at ``at``, where it ends, and the number of its records; None if no run begins there.

    Args:
        buf: a batch; its records end with it.
        at: where a TX_ENQUEUE begins.
        offset: of this record.

    Raises:
        RecordError, struct.error: a length is wrong.
    """
    tx_id = _TX_ID.unpack_from(buf, at + 5)[0]
    events: list[tuple[int, Message, list[Target]]] = []
    heads: list[bytes] = []
    counts: dict[int, int] = {}
    octets = 0
    size = len(buf)
    unpack, tails = _TX_ENQUEUE.unpack_from, _TAILS
    while at < size and buf[at] == record.TX_ENQUEUE:
        length, of, n, queue_id, place, deadline_ms, exchange_size = unpack(buf, at)
        if n != 1 or of != tx_id:
            break
        names = at + _TX_NAMES
        key = names + 2 + exchange_size
        head_end = key + 5 + buf[key]
        raw = buf[names:head_end]
        tail = tails.get(raw) or _tail(raw)
        if tail is None:
            break
        exchange, routing_key, persistent, properties_size = tail
        body = head_end + properties_size
        end = at + 5 + length
        if body > end:
            raise _outrun(names, body, end)
        properties, octets_of_it = buf[head_end:body], buf[body:end]
        message = made(Message, exchange, routing_key, properties, octets_of_it, end - body, persistent, offset)
        events.append((offset, message, [(queue_id, place, deadline_ms)]))
        heads.append(buf[at:head_end])
        counts[queue_id] = counts.get(queue_id, 0) + 1
        octets += end - head_end
        offset += 1
        at = end
    return (TxRun(tx_id, events, heads, counts, octets), at, len(events)) if events else None


def decode_run(buf: bytes, at: int, offset: int) -> tuple[list[Pending], int, int] | None:
    """As `decode_tx_run`, of ENQUEUEs: the run is that which waits to be applied."""
    pending: list[Pending] = []
    size = len(buf)
    unpack, tails = _ENQUEUE.unpack_from, _TAILS
    while at < size and buf[at] == record.ENQUEUE:
        length, n, queue_id, entry_id, deadline_ms, exchange_size = unpack(buf, at)
        if n != 1:
            break
        names = at + _NAMES
        key = names + 2 + exchange_size
        head_end = key + 5 + buf[key]
        raw = buf[names:head_end]
        tail = tails.get(raw) or _tail(raw)
        if tail is None:
            break
        exchange, routing_key, persistent, properties_size = tail
        body = head_end + properties_size
        end = at + 5 + length
        if body > end:
            raise _outrun(names, body, end)
        properties, octets = buf[head_end:body], buf[body:end]
        message = made(Message, exchange, routing_key, properties, octets, end - body, persistent, offset)
        pending.append((offset, ENQUEUE, (message, [(queue_id, entry_id, deadline_ms)])))
        offset += 1
        at = end
    return (pending, at, len(pending)) if pending else None


def _outrun(names: int, body: int, end: int) -> RecordError:
    return RecordError(f"message at byte {names}: properties end at {body}, the record at {end}")


def _tail(raw: bytes) -> tuple[str, str, bool, int] | None:
    """(exchange, routing key, persistent, octets of properties) of a plain message with this head; None if it is another kind."""
    if raw[0] >= record.MOVED:
        return None
    if len(_TAILS) >= _TAILS_LIMIT:
        _TAILS.clear()
    names_end = len(raw) - _U32.size
    tail = _TAILS[raw] = (*record.names_of(raw[1:names_end]), raw[0] & 1 == 1, _U32.unpack_from(raw, names_end)[0])
    return tail
