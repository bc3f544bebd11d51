"""RowBatch: a batch of ENQUEUEs and DEQUEUEs, read at once and without bodies, as columns of numbers.

A recovery meets a million records of the same form. To make a message and an entry of each, only to pack them later
(``core/queues/packed_page.py``), takes ten times as long as to read the numbers. So a batch that holds nothing but plain persistent
messages, each for one queue, and acks, is read in one go: its rows go into the columns of packed pages, and bodies stay in the
journal.

A batch of anything else has no rows: :func:`decode_rows` returns None, also where something is wrong with it. What takes records
one by one then says what that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter, lt
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from understudy.broker.log import record
from understudy.broker.log.frame import BATCH_HEADER_BYTES
from understudy.broker.log.pending import DEQUEUE, ENQUEUE, Pending
from understudy.broker.log.record import Group, names_of
from understudy.broker.message import Message, SpilledBody, made

_RECORD: Final = Struct(">BIHQQQ")
"""Kind, length, number of targets (one), and the target: what a record begins with."""
_RECORD_BYTES: Final = _RECORD.size
_HEAD_BYTES: Final = 5
_LENGTH: Final = Struct(">I")
_PERSISTENT: Final = 1
"""The flags of a plain persistent message."""
_EVEN: Final = 8
"""From so many records on it is worth it to see whether all have one form."""

Names = tuple[str, str]
"""Exchange and routing key."""
Dequeue = tuple[int, list[Group]]
"""The offset of a DEQUEUE, and what leaves."""


class Row(NamedTuple):
    """One message, see :class:`Rows`."""

    entry_id: int
    offset: int
    size: int
    deadline_ms: int
    names: Names
    properties: bytes


class Rows(NamedTuple):
    """Messages of one queue, in the order of the log: the columns are equally long.

    Attributes:
        ids: replication ids.
        offsets: of the records.
        sizes: octets of the bodies.
        deadlines: ms since 1970, 0 for none.
        names: of each; one for all if they and the properties are alike.
        properties: likewise.
    """

    ids: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    deadlines: Sequence[int]
    names: Sequence[Names]
    properties: Sequence[bytes]

    @property
    def ascend(self) -> bool:
        """True if the ids do."""
        ids = self.ids
        return all(map(lt, ids, ids[1:]))

    @property
    def _alike(self) -> bool:
        return len(self.names) < len(self.ids)

    def part(self, begin: int, end: int) -> Rows:
        """The messages ``begin`` to ``end``."""
        names, properties = self.names, self.properties
        if not self._alike:
            names, properties = names[begin:end], properties[begin:end]
        ids, offsets, sizes, deadlines = (each[begin:end] for each in self[:4])
        return Rows(ids, offsets, sizes, deadlines, names, properties)

    def rows(self) -> Iterator[Row]:
        """One by one."""
        many = len(self.ids)
        names = list(self.names) * many if self._alike else self.names
        properties = list(self.properties) * many if self._alike else self.properties
        columns = (self.ids, self.offsets, self.sizes, self.deadlines, names, properties)
        return map(Row._make, zip(*columns, strict=True))


class RowBatch:
    """All records of one batch.

    No message leaves before it comes, so all may come first.

    Attributes:
        first, last: offsets of the first and the last record.
        queues: rows by queue id.
        dequeues: offset and groups of each DEQUEUE.
    """

    __slots__ = ("dequeues", "first", "last", "queues")

    def __init__(self, first: int, last: int, queues: dict[int, Rows], dequeues: list[Dequeue]) -> None:
        self.first = first
        self.last = last
        self.queues = queues
        self.dequeues = dequeues

    def split(self, offset: int) -> tuple[RowBatch, RowBatch]:
        """The records up to ``offset``, and those behind it. There are some of either."""
        before: dict[int, Rows] = {}
        behind: dict[int, Rows] = {}
        for queue_id, rows in self.queues.items():
            end = bisect_right(rows.offsets, offset)
            if end:
                before[queue_id] = rows.part(0, end)
            if end < len(rows.ids):
                behind[queue_id] = rows.part(end, len(rows.ids))
        dequeues = [each for each in self.dequeues if each[0] <= offset]
        return (
            RowBatch(self.first, offset, before, dequeues),
            RowBatch(offset + 1, self.last, behind, self.dequeues[len(dequeues) :]),
        )

    def changes(self, bodies: SpilledBody) -> list[Pending]:
        """The records as they would be taken one by one, in order."""
        changes: list[Pending] = [(offset, DEQUEUE, groups) for offset, groups in self.dequeues]
        changes += (
            (row.offset, ENQUEUE, (message_of(row, bodies), [(queue_id, row.entry_id, row.deadline_ms)]))
            for queue_id, rows in self.queues.items()
            for row in rows.rows()
        )
        return sorted(changes, key=itemgetter(0))


def message_of(row: Row, bodies: SpilledBody) -> Message:
    """The message of ``row``, whose body ``bodies`` gives back."""
    return made(Message, *row.names, row.properties, bodies, row.size, True, row.offset)


def decode_rows(batch: bytes, first: int, count: int) -> RowBatch | None:
    """The records of a verified batch of ``count`` records from offset ``first`` on; None if it holds anything else."""
    try:
        queues = _even(batch, first, count) if count >= _EVEN else None
        if queues is not None:
            return RowBatch(first, first + count - 1, queues, [])
        return _uneven(batch, first, count)
    except (StructError, IndexError):
        return None


@lru_cache(maxsize=256)
def _layout(prefix_bytes: int, size: int) -> Struct:
    """Of a record with so many octets between target and body, and a body of ``size``."""
    return Struct(f"{_RECORD.format}{prefix_bytes}s{size}x")


def _even(batch: bytes, first: int, count: int) -> dict[int, Rows] | None:
    """The rows, if all records have the length, the names and the properties of the first one; else None."""
    at = BATCH_HEADER_BYTES
    prefix, names, properties = _prefix(batch, at + _RECORD.size)
    _, length, *_ = _RECORD.unpack_from(batch, at)
    size = length + _HEAD_BYTES - _RECORD.size - len(prefix)
    if size <= 0 or count * (length + _HEAD_BYTES) != len(batch) - at or not names:
        return None
    columns = list(zip(*_layout(len(prefix), size).iter_unpack(memoryview(batch)[at:]), strict=True))
    kinds, lengths, targets, queue_ids, ids, deadlines, prefixes = columns
    if not (
        kinds.count(record.ENQUEUE) == lengths.count(length) == targets.count(1) == prefixes.count(prefix) == count
    ):
        return None
    sizes, alike = (size,) * count, ((names,), (properties,))
    if queue_ids.count(queue_ids[0]) == count:
        return {queue_ids[0]: Rows(ids, range(first, first + count), sizes, deadlines, *alike)}
    places: dict[int, list[int]] = {}
    for place, queue_id in enumerate(queue_ids):
        places.setdefault(queue_id, []).append(place)
    return {
        queue_id: Rows(
            [ids[each] for each in here],
            [first + each for each in here],
            sizes[: len(here)],
            [deadlines[each] for each in here],
            *alike,
        )
        for queue_id, here in places.items()
    }


class _Found:
    """Rows of one queue that are being read.

    Attributes:
        rows: id, offset, size and deadline of each.
        prefix: all that stands between target and body of the last one (`_prefix`).
        alike: (how many rows there were, names, properties) whenever the prefix changed.
    """

    __slots__ = ("alike", "prefix", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.prefix = b""
        self.alike: list[tuple[int, Names, bytes]] = []

    def change(self, batch: bytes, begin: int) -> bool:
        """The next record has another prefix, at ``begin``. False if its message is no plain one."""
        self.prefix, names, properties = _prefix(batch, begin)
        if names is None:
            return False
        self.alike.append((len(self.rows), names, properties))
        return True

    def columns(self) -> Rows:
        """All of them."""
        ids, offsets, sizes, deadlines = zip(*self.rows, strict=True)
        if len(self.alike) == 1:
            _, of_all, properties_of_all = self.alike[0]
            return Rows(ids, offsets, sizes, deadlines, (of_all,), (properties_of_all,))
        names: list[Names] = []
        properties: list[bytes] = []
        ends = [begin for begin, _, _ in self.alike[1:]]
        for (begin, same_names, same_properties), end in zip(self.alike, [*ends, len(ids)], strict=True):
            names += [same_names] * (end - begin)
            properties += [same_properties] * (end - begin)
        return Rows(ids, offsets, sizes, deadlines, names, properties)


def _uneven(batch: bytes, first: int, count: int) -> RowBatch | None:
    """Records of any length; None if one is something else, or a message comes whose id has left before it."""
    queues: dict[int, _Found] = {}
    dequeues: list[Dequeue] = []
    left: dict[int, int] = {}
    at, end, offset = BATCH_HEADER_BYTES, len(batch), first
    unpack, starts_with = _RECORD.unpack_from, batch.startswith
    while at < end:
        if batch[at] == record.DEQUEUE:
            groups = record.decode_dequeue(batch, at + _HEAD_BYTES)[1]
            dequeues.append((offset, groups))
            for queue_id, ids in groups:
                left[queue_id] = max([left.get(queue_id, 0), *ids])
            at += int(_LENGTH.unpack_from(batch, at + 1)[0]) + _HEAD_BYTES
            offset += 1
            continue
        kind, length, targets, queue_id, entry_id, deadline_ms = unpack(batch, at)
        begin = at + _RECORD_BYTES
        found = queues.get(queue_id)
        if found is None:
            found = queues[queue_id] = _Found()
        if not (found.prefix and starts_with(found.prefix, begin)) and not found.change(batch, begin):
            return None
        at += length + _HEAD_BYTES
        size = at - begin - len(found.prefix)
        if kind != record.ENQUEUE or targets != 1 or size <= 0 or (left and entry_id <= left.get(queue_id, 0)):
            return None
        found.rows.append((entry_id, offset, size, deadline_ms))
        offset += 1
    if at != end or offset != first + count:
        return None
    columns = {queue_id: found.columns() for queue_id, found in queues.items()}
    return RowBatch(first, offset - 1, columns, dequeues)


def _prefix(batch: bytes, begin: int) -> tuple[bytes, Names | None, bytes]:
    """All that stands between a target and a body, names and properties in it; no names if the message is no plain one."""
    if batch[begin] != _PERSISTENT:
        return b"", None, b""
    exchange_end = begin + 2 + batch[begin + 1]
    key_end = exchange_end + 1 + batch[exchange_end]
    properties_end = key_end + _LENGTH.size + int(_LENGTH.unpack_from(batch, key_end)[0])
    names = names_of(batch[begin + 1 : key_end])
    return batch[begin:properties_end], names, batch[key_end + _LENGTH.size : properties_end]
