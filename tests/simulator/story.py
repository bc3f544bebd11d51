"""Bytes in the field's words, for a story that people read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.broker.amqp.constants import HEARTBEAT
from understudy.broker.amqp.frames import Event
from understudy.broker.amqp.methods import BASIC_DELIVER, BASIC_GET_OK, BASIC_PUBLISH, BASIC_RETURN, method_name
from understudy.broker.log import frame, record
from understudy.broker.log.move_record import decode_move
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.replicator import snapshot, wire

LIST_AT_MOST: Final = 12


def describe_message(message: bytes) -> str:
    """One message of the replication conversation."""
    teller = _TELLERS.get(message[0])
    return teller(message) if teller is not None else f"message of kind {message[0]}"


def describe_batch(data: bytes) -> str:
    """A batch: its place, and the records in it."""
    header = frame.decode_batch_header(data, 0)
    words = [text for _, _, text in records_of(data)]
    shown = ", ".join(words[:LIST_AT_MOST]) + (
        f", and {len(words) - LIST_AT_MOST} more" if len(words) > LIST_AT_MOST else ""
    )
    return f"{header.first_offset}..{header.last_offset} of epoch {header.epoch}: {shown}"


def records_of(data: bytes) -> list[tuple[int, int, str]]:
    """(offset, kind, words) of each record of a batch; a run of holes is one."""
    header = frame.decode_batch_header(data, 0)
    offset = header.first_offset
    at = frame.BATCH_HEADER_BYTES
    found = []
    while at < len(data):
        kind, length = record.HEAD.unpack_from(data, at)
        end = at + 5 + length
        if kind == record.HOLE:
            count = int.from_bytes(data[at + 5 : at + 9], "big")
            found.append((offset, kind, f"{count} places not kept"))
            offset += count
        else:
            found.append((offset, kind, _record(data, at, end)))
            offset += 1
        at = end
    return found


def _record(buf: bytes, at: int, end: int) -> str:
    raw_kind = buf[at]
    kind = raw_kind & 0x7F
    name = record.KIND_NAMES[kind]
    if raw_kind & record.TRANSIENT:
        name = f"transient {name}"
    teller = _RECORD_TELLERS.get(kind)
    return f"{name} {teller(buf, at + 5, end)}" if teller is not None else name


def _ids(groups: list[record.Group]) -> str:
    return ", ".join(f"{[tx_id_text(i) for i in ids]} of queue {tx_id_text(queue)}" for queue, ids in groups)


def _enqueue(buf: bytes, at: int, end: int) -> str:
    targets, message = record.decode_enqueue(buf, at, end)
    where = ", ".join(f"queue {tx_id_text(queue)} as {tx_id_text(entry)}" for queue, entry, _ in targets)
    return f"{_short(message.content())} to {where}"


def _tx_enqueue(buf: bytes, at: int, end: int) -> str:
    tx_id, targets, message, _ = record.decode_tx_enqueue(buf, at, end)
    where = ", ".join(f"queue {tx_id_text(queue)} place {place}" for queue, place, _ in targets)
    return f"tx {tx_id_text(tx_id)}: {_short(message.content())} to {where}"


def _body_part(buf: bytes, at: int, end: int) -> str:
    tx_id, number, start, octets, _ = record.decode_body_part(buf, at, end)
    return f"tx {tx_id_text(tx_id)}: body {number} from {start}, {len(octets)} bytes"


def _tx_enqueue_parted(buf: bytes, at: int, end: int) -> str:
    each = record.decode_tx_enqueue_parted(buf, at, end)
    where = ", ".join(f"queue {tx_id_text(queue)} place {place}" for queue, place, _ in each.targets)
    whose = f"tx {tx_id_text(each.tx_id)}{' of its own' if each.own else ''}"
    return f"{whose}: body {each.number} ({each.size_bytes} bytes) to {where}"


def _tx_dequeue(buf: bytes, at: int, end: int) -> str:
    tx_id, groups = record.decode_tx_dequeue(buf, at)
    return f"tx {tx_id_text(tx_id)}: {_ids(groups)}"


def _prepare(buf: bytes, at: int, end: int) -> str:
    prepare = record.decode_prepare(buf, at)
    return f"tx {tx_id_text(prepare.tx_id)} {prepare.name!r} csn {prepare.csn}, {prepare.events} events"


def _short(body: bytes) -> str:
    text = body.split(b" ", 1)[0][:40].decode("utf-8", "replace")
    return repr(text)


def _move(buf: bytes, at: int, end: int) -> str:
    move = decode_move(buf, at, end)
    where = ", ".join(f"queue {tx_id_text(queue)} as {tx_id_text(entry)}" for queue, entry, _ in move.targets)
    why = record.REASON_NAMES[move.reason]
    return f"({why}) {tx_id_text(move.entry_id)} of queue {tx_id_text(move.queue_id)} to {where}"


_RECORD_TELLERS: dict[int, Callable[[bytes, int, int], str]] = {
    record.EPOCH: lambda buf, at, end: (
        "{} led by {}".format(*record.decode_epoch(buf, at)[:2])
        + (" (transients lost)" if record.decode_epoch(buf, at)[2] else "")
    ),
    record.QUEUE_DECLARE: lambda buf, at, end: repr(record.decode_queue_declare(buf, at, end)[2]),
    record.QUEUE_DELETE: lambda buf, at, end: f"queue {tx_id_text(record.decode_queue_delete(buf, at))}",
    record.EXCHANGE_DECLARE: lambda buf, at, end: repr(record.decode_exchange_declare(buf, at, end)[1]),
    record.EXCHANGE_DELETE: lambda buf, at, end: repr(record.decode_exchange_delete(buf, at)[1]),
    record.ENQUEUE: _enqueue,
    record.DEQUEUE: lambda buf, at, end: (
        f"({record.REASON_NAMES[record.decode_dequeue(buf, at)[0]]}) " + _ids(record.decode_dequeue(buf, at)[1])
    ),
    record.MOVE: _move,
    record.TX_ENQUEUE: _tx_enqueue,
    record.TX_ENQUEUE_TIMED: _tx_enqueue,
    record.TX_DEQUEUE: _tx_dequeue,
    record.TX_BODY_PART: _body_part,
    record.TX_ENQUEUE_PARTED: _tx_enqueue_parted,
    record.PREPARE: _prepare,
    record.COMMIT: lambda buf, at, end: f"tx {tx_id_text(record.decode_commit(buf, at)[0])}",
    record.ROLLBACK: lambda buf, at, end: "tx {} {!r}: {}".format(
        tx_id_text(record.decode_rollback(buf, at)[0]), *record.decode_rollback(buf, at)[2:]
    ),
    record.OUTCOME: lambda buf, at, end: f"bars {record.decode_outcome(buf, at)[0]!r}",
}


# -- the conversation ---------------------------------------------------------------------------------------------


def _sync(message: bytes) -> str:
    sync = wire.decode_sync(message)
    flags = (" fresh" if sync.fresh else "") + (" part" if sync.part else "")
    votes = f", says no to {[tx_id_text(tx) for tx, _ in sync.no_votes]}" if sync.no_votes else ""
    return f"SYNC holds {sync.log_start}..{sync.end} in epochs {list(sync.starts)[-3:]}, has seen {sync.epoch_seen}{flags}{votes}"


def _base(message: bytes) -> str:
    form = ("BASE of a catch-up", "BASE of a refill", "BASE again, further on")[wire.base_form(message)]
    return f"{form}, without transient events" if wire.base_is_lacking(message) else form


def _queue(message: bytes) -> str:
    queue, transient, entries = snapshot.decode_queue_piece(message)
    kind = "transient " if transient else ""
    return (
        f"QUEUE {tx_id_text(queue)}: {len(entries)} {kind}messages {[tx_id_text(e[0]) for e in entries[:LIST_AT_MOST]]}"
    )


def _transaction(message: bytes) -> str:
    records = snapshot.decode_transaction_piece(message)
    tx_id = int.from_bytes(records[0][1][5:13], "big") if records else 0
    return f"TRANSACTION {tx_id_text(tx_id)}: {len(records)} events"


def _no(message: bytes) -> str:
    tx_id, offset, reason = wire.decode_no(message)
    return f"NO to tx {tx_id_text(tx_id)}, PREPARE at {offset}: {reason}"


_TELLERS: dict[int, Callable[[bytes], str]] = {
    wire.SYNC: _sync,
    wire.RESUME: lambda m: "RESUME epoch {} after {}, stable {}".format(*wire.decode_resume(m)),
    wire.CATCH_UP: lambda m: f"CATCH_UP epoch {wire.decode_catch_up(m)}",
    wire.IDS: lambda m: f"IDS of {len(wire.decode_ids(m))} queues",
    wire.BASE: _base,
    wire.DROP: lambda m: "DROP {1} from queue {0}".format(*wire.decode_drop(m)),
    wire.TRANSACTION: _transaction,
    wire.QUEUE: _queue,
    wire.CAUGHT_UP: lambda m: "CAUGHT_UP",
    wire.BATCH: lambda m: f"BATCH (stable {wire.decode_number(m)}) {describe_batch(m[9:])}",
    wire.STABLE: lambda m: f"STABLE {wire.decode_number(m)}",
    wire.ACK: lambda m: f"ACK {wire.decode_number(m)}",
    wire.PIECE_ACK: lambda m: f"PIECE_ACK {wire.decode_number(m)}",
    wire.NO: _no,
    wire.STATUS: lambda m: f"STATUS {wire.decode_status(m)}",
}


def describe_event(event: Event) -> str:
    """Text for what a client is sent; "" for what a story can do without."""
    key, args = event[1], event[2]
    if key == HEARTBEAT:
        return ""
    words = method_name(key)
    if key in (BASIC_DELIVER, BASIC_GET_OK, BASIC_RETURN, BASIC_PUBLISH):
        return f"{words} {_short(event[4])} {args}"  # type: ignore[misc]
    if words.startswith("connection.") and not words.startswith("connection.close"):
        return ""
    return f"{words} {args}" if args else words
