"""Record kinds and their bytes.

A record is ``kind u8 | payload length u32 | payload``; everything is big-endian. Records stand in batches (``frame``);
a batch gives them their offsets, so a record does not repeat its own. The top bit of the kind marks a *transient* record:
it travels to other brokers like any other, but a journal keeps only its place (a HOLE), for transient messages and
non-durable queues must not outlive the group.

A message and the queues it goes to are ONE record, with one small entry per queue inside: the body is there once,
each queue's entry is visible to ``journal dump``, and a message routed to five queues can never be cut in two.
See ``docs/decisions/0001-one-record-per-message.md``.

Encoders return the head only where a body follows, so that a body is copied once, by the batch's join. The digest of a
transaction chains over those heads (ids, queues, names, lengths); bodies are covered by the batch's CRC.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from understudy.broker.errors import UnderstudyError
from understudy.broker.message import DelayedMessage, Message, MovedMessage, SpilledBody, made
from understudy.broker.octets.chunks import named_bytes
from understudy.broker.transactions.dtx_branch import BranchName, DtxBranch, Owner
from understudy.broker.transactions.xid import Xid

FORMAT_VERSION: Final = 6
"""The newest that this code reads, and writes."""
OLDEST_FORMAT_VERSION: Final = 1
"""The oldest that it reads."""
OLDEST_WRITTEN_VERSION: Final = 1
"""The oldest to which it can confine itself when it leads: see :data:`NEWEST_KINDS`."""
BRANCHES_VERSION: Final = 2
"""The one with which branches of distributed transactions came."""
TIMED_VERSION: Final = 3
"""The one with which times to live came that a commit begins."""
PARTS_VERSION: Final = 4
"""The one with which bodies in parts came."""
MOVES_VERSION: Final = 5
"""The one with which messages came that leave one queue for others, that are counted when they come back, or come late."""
EXCHANGE_BINDINGS_VERSION: Final = 6
"""The one with which bindings between exchanges came."""

HOLE: Final = 0
EPOCH: Final = 1
QUEUE_DECLARE: Final = 2
QUEUE_DELETE: Final = 3
EXCHANGE_DECLARE: Final = 4
EXCHANGE_DELETE: Final = 5
BIND: Final = 6
UNBIND: Final = 7
ENQUEUE: Final = 8
DEQUEUE: Final = 9
TX_ENQUEUE: Final = 10
TX_DEQUEUE: Final = 11
PREPARE: Final = 12
COMMIT: Final = 13
ROLLBACK: Final = 14
OUTCOME: Final = 15
OUTCOMES_TRIMMED: Final = 16
BARRIER: Final = 17
DTX_PREPARE: Final = 18
DTX_ROLLBACK: Final = 19
DTX_FORGET: Final = 20
TX_ENQUEUE_TIMED: Final = 22
TX_BODY_PART: Final = 23
TX_ENQUEUE_PARTED: Final = 24
MOVE: Final = 25
RETURN: Final = 26
ID_TIME: Final = 27
EXCHANGE_BIND: Final = 28
EXCHANGE_UNBIND: Final = 29
TRANSIENT: Final = 0x80

NEWEST_KINDS: Final[dict[int, int]] = {
    1: BARRIER,
    2: DTX_FORGET,
    3: TX_ENQUEUE_TIMED,
    4: TX_ENQUEUE_PARTED,
    5: ID_TIME,
    6: EXCHANGE_UNBIND,
}
"""Format to the newest kind of record that a log of it may hold.

Kinds are numbered in the order in which they came, and the bytes of a kind never change: what changes gets a new one. So a number
tells who can read a record, and the broker that leads holds back whatever its group cannot (``Log.confine``). No record has the
number 21.
"""
TOPOLOGY: Final = frozenset(
    (
        *(QUEUE_DECLARE, QUEUE_DELETE, EXCHANGE_DECLARE, EXCHANGE_DELETE),
        *(BIND, UNBIND, EXCHANGE_BIND, EXCHANGE_UNBIND),
    )
)
KIND_NAMES: Final = {
    HOLE: "hole",
    EPOCH: "epoch",
    QUEUE_DECLARE: "queue-declare",
    QUEUE_DELETE: "queue-delete",
    EXCHANGE_DECLARE: "exchange-declare",
    EXCHANGE_DELETE: "exchange-delete",
    BIND: "bind",
    UNBIND: "unbind",
    ENQUEUE: "enqueue",
    DEQUEUE: "dequeue",
    TX_ENQUEUE: "tx-enqueue",
    TX_DEQUEUE: "tx-dequeue",
    PREPARE: "prepare",
    COMMIT: "commit",
    ROLLBACK: "rollback",
    OUTCOME: "outcome",
    OUTCOMES_TRIMMED: "outcomes-trimmed",
    BARRIER: "barrier",
    DTX_PREPARE: "dtx-prepare",
    DTX_ROLLBACK: "dtx-rollback",
    DTX_FORGET: "dtx-forget",
    TX_ENQUEUE_TIMED: "tx-enqueue-timed",
    TX_BODY_PART: "tx-body-part",
    TX_ENQUEUE_PARTED: "tx-enqueue-parted",
    MOVE: "move",
    RETURN: "return",
    ID_TIME: "id-time",
    EXCHANGE_BIND: "exchange-bind",
    EXCHANGE_UNBIND: "exchange-unbind",
}

# Why a message left its queue.
ACKNOWLEDGED: Final = 1
EXPIRED: Final = 2
PURGED: Final = 3
REJECTED: Final = 4
MAXLEN: Final = 5
DELIVERY_LIMIT: Final = 6
REASON_NAMES: Final = {
    ACKNOWLEDGED: "acknowledged",
    EXPIRED: "expired",
    PURGED: "purged",
    REJECTED: "rejected",
    MAXLEN: "maxlen",
    DELIVERY_LIMIT: "delivery_limit",
}

HEAD: Final = Struct(">BI")
_new: Final = object.__new__
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
MAX_TARGETS: Final = (1 << 16) - 1
"""So many queues one record of a message can name."""
_U64: Final = Struct(">Q")
_DEQUEUE_HEAD: Final = Struct(">BIBI")
_TX_DEQUEUE_HEAD: Final = Struct(">BIQI")
_GROUP: Final = Struct(">QI")
_PREPARE_HEAD: Final = Struct(">QQBQIIII")
_PREPARE_QUEUE: Final = Struct(">QQI")
_COMMIT: Final = Struct(">BIQQQ")
_ROLLBACK: Final = Struct(">QQ")
_EPOCH: Final = Struct(">IBQ")
_OUTCOME: Final = Struct(">BQ")
_DTX_PREPARE: Final = Struct(">QQIIII")

Target = tuple[int, int, int]
"""ENQUEUE: (queue id, replication id, deadline ms). TX_ENQUEUE: (queue id, place within the transaction, deadline ms).

TX_ENQUEUE_TIMED is TX_ENQUEUE with `FROM_COMMIT` and a time to live in ms instead of each deadline; 0 is for never, in all of them.
TX_ENQUEUE_PARTED has either.
"""
FROM_COMMIT: Final = 1 << 63
"""Of a number that stands for a deadline: the rest is a time to live, in ms, which the commit begins (:func:`deadline_at`)."""
Group = tuple[int, Sequence[int]]
"""(queue id, replication ids)."""

MANY_IDS: Final = 4096
"""A group of more is an array of 64-bit numbers when it is decoded."""

_BODY_PART: Final = Struct(">QIQ")
_BODY_PART_HEAD: Final = Struct(">BIQIQ")
_PARTED_TAIL: Final = Struct(">BIQ")
_TX_TARGET: Final = Struct(">QIQ")
_TX_ENQUEUE_HEAD: Final = Struct(">QH")
_TX_TARGETS: Final = [Struct(">BIQH" + "QIQ" * n) for n in range(9)]
_pack_tx_enqueue: Final = _TX_TARGETS[1].pack
_TX_ENQUEUE_BYTES: Final = _TX_TARGETS[1].size - 5
TARGET: Final = Struct(">QQQ")
_TARGETS: Final = [Struct(">BIH" + "QQQ" * n) for n in range(9)]
_pack_enqueue: Final = _TARGETS[1].pack
_ENQUEUE_BYTES: Final = _TARGETS[1].size - 5
MOVED: Final = 2
"""Added to the flags of a message that the broker has moved (`MovedMessage`). The flag 1: it is persistent."""
DELAYED: Final = 4
"""Likewise, of a message that is withheld until it is due (`DelayedMessage`): its due time stands behind its head."""
EVERYWHERE: Final = 8
"""Added to `DELAYED`: it is delayed in all its queues."""
_MESSAGE_HEADS: dict[tuple[str, str, bool, int, type[Message]], bytes] = {}
_MESSAGE_HEADS_LIMIT: Final = 4096


class RecordError(UnderstudyError):
    """A record's bytes do not follow the format; names kind and place."""


class UnknownKindError(RecordError):
    """A record of a kind that this program does not know: a newer one has written it."""

    def __init__(self, kind: int, place: str) -> None:
        name = KIND_NAMES.get(kind, "")
        super().__init__(
            f"record kind {kind}{f' ({name})' if name else ''} {place} is not known to this program, which reads record formats "
            f"{OLDEST_FORMAT_VERSION} to {FORMAT_VERSION}"
        )
        self.kind = kind


class UnknownExchangeTypeError(RecordError):
    """An exchange of a type that this program does not know: a newer one has declared it."""

    def __init__(self, vhost: str, name: str, kind: str) -> None:
        super().__init__(f"exchange '{name}' in vhost '{vhost}' is of type {kind!r}, which this program does not know")


def short(text: str) -> bytes:
    """A string of at most 255 bytes (utf-8), preceded by its length."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise RecordError(f"{text[:40]!r}... is {len(raw)} bytes long, 255 is the most")
    return bytes((len(raw),)) + raw


def read_short(buf: bytes, at: int) -> tuple[str, int]:
    """The short string at ``at``, and where it ends."""
    end = at + 1 + buf[at]
    return buf[at + 1 : end].decode("utf-8", "surrogateescape"), end


def message_head(message: Message) -> bytes:
    """Flags, names, and the length of the properties, which follow."""
    size = len(message.properties)
    key = (message.exchange, message.routing_key, message.persistent, size, message.__class__)
    head = _MESSAGE_HEADS.get(key)
    if head is None:
        if message.__class__ is not Message:
            return _marked_head(message)
        if len(_MESSAGE_HEADS) >= _MESSAGE_HEADS_LIMIT:
            _MESSAGE_HEADS.clear()
        names = short(message.exchange) + short(message.routing_key)
        head = _MESSAGE_HEADS[key] = bytes((message.persistent,)) + names + _U32.pack(size)
    return head


def _marked_head(message: Message) -> bytes:
    names = short(message.exchange) + short(message.routing_key) + _U32.pack(len(message.properties))
    if isinstance(message, DelayedMessage):
        flags = message.persistent | DELAYED | (EVERYWHERE if message.everywhere else 0)
        return bytes((flags,)) + names + _U64.pack(message.due_ms)
    assert isinstance(message, MovedMessage), f"{message.__class__} has no form in the log"
    return bytes((message.persistent | MOVED,)) + names


def encode_enqueue(targets: Sequence[Target], message: Message, transient: bool) -> bytes:
    """The head of an ENQUEUE; the record is this, then ``message.properties``, then ``message.body``."""
    tail = message_head(message)
    n = len(targets)
    length = len(tail) + len(message.properties) + message.size
    kind = ENQUEUE | TRANSIENT if transient else ENQUEUE
    if n == 1:
        queue_id, entry_id, deadline_ms = targets[0]
        return _pack_enqueue(kind, length + _ENQUEUE_BYTES, 1, queue_id, entry_id, deadline_ms) + tail
    layout = _TARGETS[n] if n < 9 else Struct(">BIH" + "QQQ" * n)
    length += layout.size - 5
    return layout.pack(kind, length, n, *[number for target in targets for number in target]) + tail


def encode_tx_enqueue(tx_id: int, targets: Sequence[Target], message: Message, transient: bool) -> bytes:
    """The head of a TX_ENQUEUE or TX_ENQUEUE_TIMED; properties and body follow as in :func:`encode_enqueue`."""
    tail = message_head(message)
    n = len(targets)
    length = len(tail) + len(message.properties) + message.size
    kind = TX_ENQUEUE | TRANSIENT if transient else TX_ENQUEUE
    if n == 1:
        queue_id, place, deadline_ms = targets[0]
        if deadline_ms >= FROM_COMMIT:
            kind += TX_ENQUEUE_TIMED - TX_ENQUEUE
        return _pack_tx_enqueue(kind, length + _TX_ENQUEUE_BYTES, tx_id, 1, queue_id, place, deadline_ms) + tail
    layout = _TX_TARGETS[n] if n < 9 else Struct(">BIQH" + "QIQ" * n)
    length += layout.size - 5
    if any(target[2] >= FROM_COMMIT for target in targets):
        kind += TX_ENQUEUE_TIMED - TX_ENQUEUE
    return layout.pack(kind, length, tx_id, n, *[number for target in targets for number in target]) + tail


def encode_body_part(tx_id: int, body: int, start: int, size: int, transient: bool) -> bytes:
    """The head of a TX_BODY_PART; the record is this, then ``size`` octets of the body.

    Args:
        tx_id: of the transaction.
        body: its number in the transaction.
        start: how many octets of the body stand in earlier parts.
        size: how many stand in this one.
        transient: the message is.
    """
    kind = TX_BODY_PART | TRANSIENT if transient else TX_BODY_PART
    return _BODY_PART_HEAD.pack(kind, _BODY_PART.size + size, tx_id, body, start)


def decode_body_part_place(buf: bytes, at: int) -> tuple[int, int, int]:
    """(transaction id, number of the body, where the part begins in it): for readers that need no octets."""
    return _BODY_PART.unpack_from(buf, at)


def decode_body_part(buf: bytes, at: int, end: int) -> tuple[int, int, int, bytes, int]:
    """(transaction id, number of the body, where the part begins in it, its octets, where the record's head ends)."""
    tx_id, body, start = _BODY_PART.unpack_from(buf, at)
    at += _BODY_PART.size
    if at > end:
        raise RecordError(f"a part of a body at byte {at} ends at {end}")
    octets = buf[at:end] if not isinstance(buf, LargeRecord) else named_bytes(buf.whole[at:end])
    return tx_id, body, start, octets, at


def encode_tx_enqueue_parted(
    tx_id: int, targets: Sequence[Target], message: Message, transient: bool, body: int, own: bool
) -> tuple[bytes, bytes]:
    """Head and tail of a TX_ENQUEUE_PARTED; ``message.properties`` stand between them.

    Args:
        tx_id: of the transaction.
        targets: as of a TX_ENQUEUE.
        message: its body stands in parts.
        transient: as of a TX_ENQUEUE.
        body: the number of the body in the transaction.
        own: the transaction is this message alone: it was published outside of transactions.
    """
    tail = _PARTED_TAIL.pack(own, body, message.size)
    names = message_head(message)
    numbers = [number for target in targets for number in target]
    layout = Struct(">BIQH" + "QIQ" * len(targets))
    length = layout.size - 5 + len(names) + len(message.properties) + len(tail)
    kind = TX_ENQUEUE_PARTED | TRANSIENT if transient else TX_ENQUEUE_PARTED
    return layout.pack(kind, length, tx_id, len(targets), *numbers) + names, tail


def decode_parted_tail(buf: bytes, end: int) -> tuple[int, int, int]:
    """(1 if the transaction is this message alone, number of the body, its size) of the TX_ENQUEUE_PARTED that ends at ``end``."""
    return _PARTED_TAIL.unpack_from(buf, end - _PARTED_TAIL.size)


class Parted(NamedTuple):
    """A TX_ENQUEUE_PARTED, read. ``body`` of ``message`` is empty, and ``size_bytes`` is what it will be.

    ``number`` is of the body; ``own`` as in :func:`encode_tx_enqueue_parted`; ``head_end`` is where the record's head ends.
    """

    tx_id: int
    targets: list[Target]
    message: Message
    number: int
    size_bytes: int
    own: bool
    head_end: int


def decode_tx_enqueue_parted(buf: bytes, at: int, end: int) -> Parted:
    """``at`` and ``end`` bound the payload."""
    tail = end - _PARTED_TAIL.size
    own, number, size_bytes = decode_parted_tail(buf, end)
    tx_id, targets, message, head_end = decode_tx_enqueue(buf, at, tail)
    if message.size:
        raise RecordError(f"a message at byte {at} stands in parts, and {message.size} octets follow it")
    return Parted(tx_id, targets, message, number, size_bytes, bool(own), head_end)


def deadline_at(deadline_ms: int, commit_ms: int) -> int:
    """The deadline of a target of a transaction that commits at ``commit_ms``, given its ``deadline_ms``."""
    return deadline_ms if deadline_ms < FROM_COMMIT else max(1, commit_ms + deadline_ms - FROM_COMMIT)


def decode_message(buf: bytes, at: int, end: int, bodies: SpilledBody | None = None) -> tuple[Message, int]:
    """The message whose head starts at ``at`` and whose body ends at ``end``; and where the head ends.

    ``bodies``: gives the body back, which stays where it is; None: it is copied.
    """
    exchange_end = at + 2 + buf[at + 1]
    key_end = exchange_end + 1 + buf[exchange_end]
    raw = buf[at:key_end]
    exchange, routing_key, kind, persistent, size = _HEADS.get(raw) or _head(raw)
    head_end = key_end + size
    properties_end = head_end + _U32.unpack_from(buf, key_end)[0]
    if properties_end > end:
        raise RecordError(f"message at byte {at}: properties end at {properties_end}, the record at {end}")
    body: Any
    if buf.__class__ is bytes:
        properties = buf[head_end:properties_end]
        body = buf[properties_end:end] if bodies is None or properties_end == end else bodies
    else:
        assert isinstance(buf, LargeRecord)
        properties = bytes(buf.whole[head_end:properties_end])
        body = named_bytes(buf.whole[properties_end:end])
    message = made(kind, exchange, routing_key, properties, body, end - properties_end, persistent)
    if kind is DelayedMessage:
        assert isinstance(message, DelayedMessage)
        message.come_late(_U64.unpack_from(buf, key_end + 4)[0], buf[at] & EVERYWHERE > 0)
    return message, head_end


def decode_message_head(buf: bytes, at: int) -> tuple[bool, str, str, int]:
    """(persistent, exchange, routing key, where the body begins) of the message whose head starts at ``at``; nothing is copied."""
    exchange_end = at + 2 + buf[at + 1]
    key_end = exchange_end + 1 + buf[exchange_end]
    exchange, routing_key = names_of(buf[at + 1 : key_end])
    body = key_end + (4 if buf[at] < DELAYED else 12) + _U32.unpack_from(buf, key_end)[0]
    return buf[at] & 1 == 1, exchange, routing_key, body


class LargeRecord(bytes):
    """The beginning of a record, ids and names; ``whole`` is all of it. Its body is a part of ``whole`` that is not copied."""

    whole: memoryview

    @classmethod
    def of(cls, whole: memoryview) -> LargeRecord:
        beginning = cls(whole[:HEAD_OF_LARGE_BYTES])
        beginning.whole = whole
        return beginning


WITH_BODY: Final = frozenset({ENQUEUE, TX_ENQUEUE, TX_ENQUEUE_TIMED, TX_BODY_PART, MOVE})
"""The kinds of which a large record is a `LargeRecord`."""
HEAD_OF_LARGE_BYTES: Final = 2 << 20
"""More than the ids of `MAX_TARGETS` queues and the names take."""

_HEADS: dict[bytes, tuple[str, str, type[Message], bool, int]] = {}


def _head(raw: bytes) -> tuple[str, str, type[Message], bool, int]:
    """(exchange, routing key, class, persistent, octets up to the properties) of a message whose head begins with ``raw``."""
    flags = raw[0]
    kind = Message if flags < MOVED else MovedMessage if flags < DELAYED else DelayedMessage
    if len(_HEADS) >= _MESSAGE_HEADS_LIMIT:
        _HEADS.clear()
    found = _HEADS[raw] = (*names_of(raw[1:]), kind, flags & 1 == 1, 12 if flags >= DELAYED else 4)
    return found


_NAMES: dict[bytes, tuple[str, str]] = {}


def names_of(raw: bytes) -> tuple[str, str]:
    """Exchange and routing key, of which ``raw`` holds the short strings."""
    names = _NAMES.get(raw)
    if names is None:
        if len(_NAMES) >= _MESSAGE_HEADS_LIMIT:
            _NAMES.clear()
        exchange, at = read_short(raw, 0)
        names = _NAMES[raw] = (exchange, read_short(raw, at)[0])
    return names


def decode_enqueue(buf: bytes, at: int, end: int, bodies: SpilledBody | None = None) -> tuple[list[Target], Message]:
    """``at`` and ``end`` bound the payload. ``bodies``: see `decode_message`."""
    n = _U16.unpack_from(buf, at)[0]
    at += 2
    if n == 1:
        return [TARGET.unpack_from(buf, at)], decode_message(buf, at + 24, end, bodies)[0]
    targets = decode_targets(TARGET, n, buf, at, end)
    message = decode_message(buf, at + 24 * n, end, bodies)[0]
    if n > 1:
        message.share()
    return targets, message


def decode_enqueue_targets(buf: bytes, at: int, end: int) -> tuple[list[Target], int]:
    """Targets of an ENQUEUE, and where its message begins: for readers that need no message."""
    n = _U16.unpack_from(buf, at)[0]
    at += 2
    targets = [TARGET.unpack_from(buf, at)] if n == 1 else decode_targets(TARGET, n, buf, at, end)
    return targets, at + 24 * n


def decode_tx_enqueue_targets(buf: bytes, at: int, end: int) -> tuple[int, list[Target], int]:
    """Transaction id and targets of a TX_ENQUEUE, and where its message begins: likewise."""
    tx_id, n = _TX_ENQUEUE_HEAD.unpack_from(buf, at)
    at += 10
    targets = [_TX_TARGET.unpack_from(buf, at)] if n == 1 else decode_targets(_TX_TARGET, n, buf, at, end)
    return tx_id, targets, at + 20 * n


def decode_tx_enqueue(buf: bytes, at: int, end: int) -> tuple[int, list[Target], Message, int]:
    """Transaction id, targets, message, and where the record's head ends (for the digest)."""
    tx_id, n = _TX_ENQUEUE_HEAD.unpack_from(buf, at)
    at += 10
    if n == 1:
        targets = [_TX_TARGET.unpack_from(buf, at)]
        message, head_end = decode_message(buf, at + 20, end)
        return tx_id, targets, message, head_end
    targets = decode_targets(_TX_TARGET, n, buf, at, end)
    message, head_end = decode_message(buf, at + 20 * n, end)
    if n > 1:
        message.share()
    return tx_id, targets, message, head_end


def decode_targets(layout: Struct, count: int, buf: bytes, at: int, end: int) -> list[Target]:
    """So many targets from ``at``. They share one layout: one for each number of them is 96 bytes a queue, and would be kept."""
    size = layout.size * count
    raw = buf[at : min(at + size, end)]
    if len(raw) != size:  # a short one may hold whole targets, only fewer
        raise RecordError(f"{count} targets at byte {at} need {size} bytes, the record has {len(raw)}")
    return list(layout.iter_unpack(raw))


def _ids(count: int) -> Struct:
    # Any number of them: one code with a count. Spelled out it would be 32 bytes an id.
    return Struct(f">{count}Q")


def _encode_groups(groups: Iterable[Group]) -> bytes:
    return b"".join([_GROUP.pack(queue_id, len(ids)) + _ids(len(ids)).pack(*ids) for queue_id, ids in groups])


def encode_ids(ids: array[int]) -> bytes:
    """As a group of a DEQUEUE has them."""
    octets = array("Q", ids)
    if sys.byteorder == "little":
        octets.byteswap()
    return octets.tobytes()


def _decode_ids(buf: bytes, at: int, count: int) -> array[int]:
    """Many ids: a tuple of them is four times as large, and takes ten times as long."""
    octets = memoryview(buf)[at : at + 8 * count]
    if len(octets) != 8 * count:
        raise RecordError(f"{count} ids at byte {at} need {8 * count} bytes, the record has {len(octets)}")
    ids = array("Q")
    ids.frombytes(octets)
    if sys.byteorder == "little":
        ids.byteswap()
    return ids


def _decode_groups(buf: bytes, at: int, count: int) -> list[Group]:
    groups: list[Group] = []
    for _ in range(count):
        queue_id, n = _GROUP.unpack_from(buf, at)
        ids = _decode_ids(buf, at + 12, n) if n > MANY_IDS else _ids(n).unpack_from(buf, at + 12)
        groups.append((queue_id, ids))
        at += 12 + 8 * n
    return groups


def encode_dequeue(reason: int, groups: Sequence[Group]) -> bytes:
    """A whole DEQUEUE: these ids leave these queues."""
    body = _encode_groups(groups)
    return _DEQUEUE_HEAD.pack(DEQUEUE, 5 + len(body), reason, len(groups)) + body


def encode_dequeue_head(reason: int, queue_id: int, count: int) -> bytes:
    """The head of a DEQUEUE of so many ids of one queue, which follow it (`encode_ids`)."""
    size = 5 + _GROUP.size + 8 * count
    return _DEQUEUE_HEAD.pack(DEQUEUE, size, reason, 1) + _GROUP.pack(queue_id, count)


def decode_dequeue(buf: bytes, at: int) -> tuple[int, list[Group]]:
    """The reason, and what leaves."""
    return buf[at], _decode_groups(buf, at + 5, _U32.unpack_from(buf, at + 1)[0])


def encode_tx_dequeue(tx_id: int, groups: Sequence[Group]) -> bytes:
    body = _encode_groups(groups)
    return _TX_DEQUEUE_HEAD.pack(TX_DEQUEUE, 12 + len(body), tx_id, len(groups)) + body


def decode_tx_dequeue(buf: bytes, at: int) -> tuple[int, list[Group]]:
    return _U64.unpack_from(buf, at)[0], _decode_groups(buf, at + 12, _U32.unpack_from(buf, at + 8)[0])


class Prepare:
    """The content of a PREPARE record. ``kind`` is the :class:`~understudy.broker.transactions.dtx_branch.Owner`.

    ``completes`` names the branch if that is OPERATOR: it is remembered, also by a broker whose journal has dropped DTX_PREPARE.

    ``time_ms`` is when it commits: times to live that are `FROM_COMMIT` count from there. ``first_ids`` maps queue id to
    (first replication id, how many); the event with place ``i`` of that queue gets first + i. ``events`` and ``digest``
    speak of all events of the tx-queue, ``durable_events`` and ``durable_digest`` of those that a journal keeps: what a
    broker that restarted in the middle of the transaction can still hold.
    """

    __slots__ = (
        "completes",
        "csn",
        "digest",
        "durable_digest",
        "durable_events",
        "events",
        "first_ids",
        "kind",
        "name",
        "time_ms",
        "tx_id",
    )

    def __init__(
        self,
        tx_id: int,
        csn: int,
        name: str,
        time_ms: int,
        first_ids: dict[int, tuple[int, int]],
        events: int,
        digest: int,
        durable_events: int,
        durable_digest: int,
        kind: int = Owner.LOCAL,
        completes: BranchName | None = None,
    ) -> None:
        assert (completes is not None) is (kind == Owner.OPERATOR)
        self.completes = completes
        self.tx_id = tx_id
        self.csn = csn
        self.kind = kind
        self.name = name
        self.time_ms = time_ms
        self.first_ids = first_ids
        self.events = events
        self.digest = digest
        self.durable_events = durable_events
        self.durable_digest = durable_digest


def encode_prepare(prepare: Prepare) -> bytes:
    body = b"".join(
        [
            _PREPARE_HEAD.pack(
                prepare.tx_id,
                prepare.csn,
                prepare.kind,
                prepare.time_ms,
                prepare.events,
                prepare.digest,
                prepare.durable_events,
                prepare.durable_digest,
            ),
            short(prepare.name) if prepare.name else b"\0",
            _U32.pack(len(prepare.first_ids)),
            *[_PREPARE_QUEUE.pack(queue, first, count) for queue, (first, count) in prepare.first_ids.items()],
            b"" if prepare.completes is None else short(prepare.completes[0]) + prepare.completes[1].encode(),
        ]
    )
    return HEAD.pack(PREPARE, len(body)) + body


def decode_prepare(buf: bytes, at: int) -> Prepare:
    tx_id, csn, kind, time_ms, events, digest, durable_events, durable_digest = _PREPARE_HEAD.unpack_from(buf, at)
    at += _PREPARE_HEAD.size
    if buf[at]:
        name, at = read_short(buf, at)
    else:  # as good as always
        name, at = "", at + 1
    count = _U32.unpack_from(buf, at)[0]
    first_ids = {}
    for i in range(count):
        queue_id, first, n = _PREPARE_QUEUE.unpack_from(buf, at + 4 + 20 * i)
        first_ids[queue_id] = (first, n)
    completes = None
    if kind == Owner.OPERATOR:
        vhost, at = read_short(buf, at + 4 + 20 * count)
        completes = vhost, Xid.decode(buf, at)[0]
    return Prepare(
        tx_id, csn, name, time_ms, first_ids, events, digest, durable_events, durable_digest, kind, completes
    )


def encode_commit(tx_id: int, csn: int, time_ms: int) -> bytes:
    return _COMMIT.pack(COMMIT, 24, tx_id, csn, time_ms)


def decode_commit(buf: bytes, at: int) -> tuple[int, int, int]:
    """(transaction id, CSN, wall-clock ms)."""
    return _THREE.unpack_from(buf, at)


_THREE: Final = Struct(">QQQ")


REASON_BYTES: Final = 200
"""So much of a reason is kept: it may quote a client's names, in any alphabet."""


def encode_rollback(tx_id: int, time_ms: int, name: str, reason: str) -> bytes:
    cut = reason.encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")
    body = _ROLLBACK.pack(tx_id, time_ms) + short(name) + short(cut)
    return HEAD.pack(ROLLBACK, len(body)) + body


def decode_rollback(buf: bytes, at: int) -> tuple[int, int, str, str]:
    """(transaction id, wall-clock ms, client's name or "", reason)."""
    tx_id, time_ms = _ROLLBACK.unpack_from(buf, at)
    name, at = read_short(buf, at + _ROLLBACK.size)
    return tx_id, time_ms, name, read_short(buf, at)[0]


def encode_dtx_prepare(tx_id: int, branch: DtxBranch) -> bytes:
    """A whole DTX_PREPARE. The offset of ``branch`` is not in it."""
    counts = (branch.events, branch.digest, branch.durable_events, branch.durable_digest)
    body = _DTX_PREPARE.pack(tx_id, branch.time_ms, *counts) + short(branch.vhost) + branch.xid.encode()
    return HEAD.pack(DTX_PREPARE, len(body)) + body


def decode_dtx_prepare(buf: bytes, at: int, offset: int) -> tuple[int, DtxBranch]:
    """(transaction id, the branch as the record at ``offset`` of the log describes it)."""
    tx_id, time_ms, events, digest, durable_events, durable_digest = _DTX_PREPARE.unpack_from(buf, at)
    vhost, at = read_short(buf, at + _DTX_PREPARE.size)
    branch = DtxBranch(
        vhost=vhost,
        xid=Xid.decode(buf, at)[0],
        offset=offset,
        time_ms=time_ms,
        events=events,
        digest=digest,
        durable_events=durable_events,
        durable_digest=durable_digest,
    )
    return tx_id, branch


def encode_dtx_rollback(tx_id: int, time_ms: int, vhost: str, xid: Xid) -> bytes:
    """A whole DTX_ROLLBACK: an operator rolls a prepared branch back, which is remembered."""
    body = _ROLLBACK.pack(tx_id, time_ms) + short(vhost) + xid.encode()
    return HEAD.pack(DTX_ROLLBACK, len(body)) + body


def decode_dtx_rollback(buf: bytes, at: int) -> tuple[int, int, BranchName]:
    """(transaction id, wall-clock ms, the branch)."""
    tx_id, time_ms = _ROLLBACK.unpack_from(buf, at)
    vhost, at = read_short(buf, at + _ROLLBACK.size)
    return tx_id, time_ms, (vhost, Xid.decode(buf, at)[0])


def encode_dtx_forget(vhost: str, xid: Xid) -> bytes:
    """A whole DTX_FORGET: what an operator did with that branch need not be remembered."""
    body = short(vhost) + xid.encode()
    return HEAD.pack(DTX_FORGET, len(body)) + body


def decode_dtx_forget(buf: bytes, at: int) -> BranchName:
    vhost, at = read_short(buf, at)
    return vhost, Xid.decode(buf, at)[0]


def encode_epoch(epoch: int, leader: str, transients_lost: bool, time_ms: int) -> bytes:
    body = _EPOCH.pack(epoch, transients_lost, time_ms) + short(leader)
    return HEAD.pack(EPOCH, len(body)) + body


def decode_epoch(buf: bytes, at: int) -> tuple[int, str, bool, int]:
    """(epoch, id of the broker that leads it, whether transient messages ended here, wall-clock ms)."""
    epoch, lost, time_ms = _EPOCH.unpack_from(buf, at)
    return epoch, read_short(buf, at + _EPOCH.size)[0], bool(lost), time_ms


# -- topology -----------------------------------------------------------------------------------------------------

DURABLE: Final = 1
AUTO_DELETE: Final = 2
INTERNAL: Final = 4
DEFINITION_ONLY: Final = 8
"""Of a queue: its messages are not records of the log."""
USED: Final = 16
"""Of an auto-delete queue or exchange: the declaration is repeated, because it has a first consumer or binding.

What is there stays as it is, with its messages and bindings. A program that does not know this flag takes it likewise.
"""


def encode_queue_declare(queue_id: int, vhost: str, name: str, flags: int, arguments: bytes) -> bytes:
    """``arguments`` is an encoded field table. A non-durable queue's record is transient."""
    body = _U64.pack(queue_id) + bytes((flags,)) + short(vhost) + short(name) + arguments
    return HEAD.pack(QUEUE_DECLARE if flags & DURABLE else QUEUE_DECLARE | TRANSIENT, len(body)) + body


def decode_queue_declare(buf: bytes, at: int, end: int) -> tuple[int, str, str, int, bytes]:
    """(queue id, vhost, name, flags, encoded arguments)."""
    queue_id = _U64.unpack_from(buf, at)[0]
    flags = buf[at + 8]
    vhost, at = read_short(buf, at + 9)
    name, at = read_short(buf, at)
    return queue_id, vhost, name, flags, buf[at:end]


def encode_queue_delete(queue_id: int, durable: bool) -> bytes:
    return HEAD.pack(QUEUE_DELETE if durable else QUEUE_DELETE | TRANSIENT, 8) + _U64.pack(queue_id)


def decode_queue_delete(buf: bytes, at: int) -> int:
    return int(_U64.unpack_from(buf, at)[0])


def encode_exchange_declare(vhost: str, name: str, kind: str, flags: int, arguments: bytes) -> bytes:
    body = bytes((flags,)) + short(vhost) + short(name) + short(kind) + arguments
    return HEAD.pack(EXCHANGE_DECLARE if flags & DURABLE else EXCHANGE_DECLARE | TRANSIENT, len(body)) + body


def decode_exchange_declare(buf: bytes, at: int, end: int) -> tuple[str, str, str, int, bytes]:
    """(vhost, name, type, flags, encoded arguments)."""
    flags = buf[at]
    vhost, at = read_short(buf, at + 1)
    name, at = read_short(buf, at)
    kind, at = read_short(buf, at)
    return vhost, name, kind, flags, buf[at:end]


def encode_exchange_delete(vhost: str, name: str, durable: bool) -> bytes:
    body = short(vhost) + short(name)
    return HEAD.pack(EXCHANGE_DELETE if durable else EXCHANGE_DELETE | TRANSIENT, len(body)) + body


def decode_exchange_delete(buf: bytes, at: int) -> tuple[str, str]:
    vhost, at = read_short(buf, at)
    return vhost, read_short(buf, at)[0]


def encode_bind(
    remove: bool, vhost: str, exchange: str, queue_id: int, routing_key: str, arguments: bytes, durable: bool
) -> bytes:
    body = _U64.pack(queue_id) + short(vhost) + short(exchange) + short(routing_key) + arguments
    kind = UNBIND if remove else BIND
    return HEAD.pack(kind if durable else kind | TRANSIENT, len(body)) + body


def decode_bind(buf: bytes, at: int, end: int) -> tuple[str, str, int, str, bytes]:
    """(vhost, exchange, queue id, routing key, encoded arguments)."""
    queue_id = _U64.unpack_from(buf, at)[0]
    vhost, at = read_short(buf, at + 8)
    exchange, at = read_short(buf, at)
    routing_key, at = read_short(buf, at)
    return vhost, exchange, queue_id, routing_key, buf[at:end]


# -- outcomes -----------------------------------------------------------------------------------------------------


def encode_outcome(name: str, outcome: int, time_ms: int) -> bytes:
    """Bar ``name``: whatever transaction comes under it later is refused."""
    body = _OUTCOME.pack(outcome, time_ms) + short(name)
    return HEAD.pack(OUTCOME, len(body)) + body


def decode_outcome(buf: bytes, at: int) -> tuple[str, int, int]:
    outcome, time_ms = _OUTCOME.unpack_from(buf, at)
    return read_short(buf, at + _OUTCOME.size)[0], outcome, time_ms


def encode_outcomes_trimmed(upto_offset: int, low_water: int) -> bytes:
    """Outcomes decided at or before ``upto_offset`` are forgotten; ids up to ``low_water`` are "expired" from now on."""
    return HEAD.pack(OUTCOMES_TRIMMED, 16) + _U64.pack(upto_offset) + _U64.pack(low_water)


def decode_outcomes_trimmed(buf: bytes, at: int) -> tuple[int, int]:
    return _U64.unpack_from(buf, at)[0], _U64.unpack_from(buf, at + 8)[0]


def encode_id_time(time_ms: int) -> bytes:
    """A whole ID_TIME.

    Messages that are published from here on, in this epoch, came at ``time_ms`` (``core/queues/id_windows.py``).
    """
    return HEAD.pack(ID_TIME, 8) + _U64.pack(time_ms)


def decode_id_time(buf: bytes, at: int) -> int:
    return int(_U64.unpack_from(buf, at)[0])


BARRIER_RECORD: Final = HEAD.pack(BARRIER | TRANSIENT, 0)


def encode_holes(count: int) -> bytes:
    """``count`` consecutive places of the log whose records this journal does not keep."""
    return HEAD.pack(HOLE, 4) + _U32.pack(count)


def records_of(buf: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """(kind with the transient bit, where its payload begins, where it ends) of each record from ``at`` to the end of ``buf``."""
    size = len(buf)
    while at < size:
        kind, length = HEAD.unpack_from(buf, at)
        end = at + 5 + length
        yield kind, at + 5, end
        at = end


def without_transients(payload: bytes) -> bytes:
    """The same records with each run of transient ones replaced by a HOLE: what a journal keeps of a mixed batch."""
    chunks: list[bytes] = []
    holes = 0
    at = 0
    while at < len(payload):
        kind, length = HEAD.unpack_from(payload, at)
        end = at + 5 + length
        if kind & TRANSIENT:
            holes += 1
        else:
            if holes:
                chunks.append(encode_holes(holes))
                holes = 0
            chunks.append(payload[at:end])
        at = end
    if holes:
        chunks.append(encode_holes(holes))
    return b"".join(chunks)


def large_without_transients(payload: Sequence[bytes | memoryview]) -> list[bytes]:
    """As :func:`without_transients`, of a payload in several buffers; nothing large is copied.

    A record begins in one buffer, which holds at least its head, and ends in it or in a later one.
    """
    kept: list[Any] = []
    holes = 0
    missing = 0  # of a record that an earlier buffer has begun
    keeps = False
    for buffer in payload:
        at = min(missing, len(buffer))
        missing -= at
        if keeps and at:
            kept.append(buffer if at == len(buffer) else buffer[:at])
        while at < len(buffer):
            kind, length = HEAD.unpack_from(buffer, at)
            end = min(at + 5 + length, len(buffer))
            missing = at + 5 + length - end
            keeps = not kind & TRANSIENT
            if not keeps:
                holes += 1
            else:
                if holes:
                    kept.append(encode_holes(holes))
                    holes = 0
                kept.append(buffer[at:end])
            at = end
    if holes:
        kept.append(encode_holes(holes))
    return kept
