"""PackedPage: a page of messages that are not in memory, as columns of numbers.

A message whose body has left the memory is still an `Entry` and a `Message`: some 300 octets. When a sweep has taken the bodies of
a whole page (``core/queues/paging.py``), the page is *packed*: a row a message, 19 octets, and 8 more where one has a deadline,
17 more where one has a place of its own in the journal, 8 more where the log of one has ended. What messages of the page have in
common (exchange, routing key, properties) is held once. Properties that differ from message to message stand one behind the other
in one ``bytes``.

A packed page gives *copies*: an entry and a message that are made for the question, and change nothing when they are changed. A
broker that follows takes messages out of the columns and makes none. A queue that is to hand a page out unpacks it
(`Queue.next_page`), and so does all that changes a message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import compress
from typing import Final, NamedTuple

from understudy.broker.core.queues.entry import READY, Entry
from understudy.broker.log.body_place import AT_OFFSET, before_restart
from understudy.broker.log.row_batch import Rows
from understudy.broker.message import Message, MovedMessage, SpilledBody, made_again

_GONE: Final = 0
_THERE: Final = 1
_REDELIVERED: Final = 2
"""Of a row in ``_rows``; a row that is there may be redelivered, too."""
_PLACE_BYTES: Final = 17
"""A place of a body has 129 bits at most (`body_place.in_note`)."""
_UNKNOWN: Final = (1 << 64) - 1
_NONE: Final = bytes((_GONE,))
PACKED_KINDS: Final = (Message, MovedMessage)
"""Classes of messages that have no fields but those of `Message`."""


class Stand(NamedTuple):
    """Where a message counts, and how much.

    Attributes:
        offset: see `Message.offset`.
        size: octets of the body.
    """

    offset: int
    size: int


class SeenIds:
    """The ids of a packed page as they were: a million are noted in no time, and made one by one."""

    __slots__ = ("_base", "_count", "_ids", "_rows")

    def __init__(self, base: int, ids: array[int], rows: bytearray, count: int) -> None:
        self._base = base
        self._ids = ids
        self._rows = rows
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        base = self._base
        return (base + low for low, row in zip(self._ids, self._rows, strict=True) if row)


class PackedPage:
    """Messages of one queue in the order of their ids, as `EntryIndex.pages` has them.

    All of them are in the queue's line if this broker leads, and all are in the same ``state``: READY, or of a purge that has come
    to the page.

    Attributes:
        base: ids are this number and a column's.
        state: of each message, see `Entry`.
    """

    __slots__ = (
        "_bodies",
        "_count",
        "_cut",
        "_deadlines",
        "_ended",
        "_head_of",
        "_heads",
        "_highest",
        "_ids",
        "_lowest",
        "_numbers",
        "_offsets",
        "_places",
        "_properties",
        "_properties_ends",
        "_properties_of",
        "_rows",
        "_sizes",
        "base",
        "state",
    )

    def __init__(self, base: int, entries: list[Entry], bodies: SpilledBody) -> None:
        """Pack ``entries``, which are in the order of their ids, at most 65,536 above ``base``.

        Each is READY, of one of `PACKED_KINDS` and persistent. Its body is ``bodies``, or may leave the memory for it.
        """
        messages = [entry.message for entry in entries]
        self.base = base
        self.state = READY
        self._bodies = bodies
        self._count = len(entries)
        self._ids = array("H", [entry.id - base for entry in entries])
        self._rows = bytearray([_THERE | _REDELIVERED * entry.redelivered for entry in entries])
        self._offsets = array("Q", [message.offset for message in messages])
        self._lowest = min(self._offsets, default=_UNKNOWN)  # bounds: messages leave, and move
        self._highest = max(self._offsets, default=0)
        self._sizes = array("I", [message.size for message in messages])
        heads: dict[tuple[type[Message], str, str, bool], int] = {}
        self._head_of = array(
            "H",
            [heads.setdefault((m.__class__, m.exchange, m.routing_key, m.shared), len(heads)) for m in messages],
        )
        self._heads: tuple[tuple[type[Message], str, str, bool], ...] = tuple(heads)
        properties: dict[bytes, int] = {}
        self._properties_of = array("H", [properties.setdefault(m.properties, len(properties)) for m in messages])
        self._properties: bytes | bytearray = b"".join(properties)
        end = 0
        self._properties_ends = array("I", [end := end + len(each) for each in properties])
        self._cut = 0
        self._ended: array[int] | None = None  # offsets in the log that the CUT at `_cut` has ended
        self._deadlines: array[int] | None = None
        if any(entry.deadline_ms for entry in entries):
            self._deadlines = array("Q", [entry.deadline_ms for entry in entries])
        self._numbers: dict[tuple[str, str] | bytes, int] | None = None
        self._places: bytearray | None = None
        if any(message.place for message in messages):
            self._places = bytearray().join([m.place.to_bytes(_PLACE_BYTES, "little") for m in messages])

    @classmethod
    def begun(cls, base: int, bodies: SpilledBody) -> PackedPage:
        """A page without a message, which :meth:`extend` fills; until it is :meth:`full`, it knows what messages have in common."""
        page = cls(base, [], bodies)
        page._properties = bytearray()
        page._numbers = {}
        return page

    @property
    def grows(self) -> bool:
        """True if it may be extended."""
        return self._numbers is not None

    def full(self) -> None:
        """End the growth of the page."""
        self._numbers = None
        self._properties = bytes(self._properties)

    def extend(self, rows: Rows, begin: int, end: int) -> None:
        """Have the messages ``begin`` to ``end`` of ``rows``, too. Their ids ascend, above all here, and fit in the page."""
        if self._ended is not None:  # the log has ended for those that are here alone
            self._fix_places(self._ended)
        count = end - begin
        base = self.base
        first, last = rows.ids[begin], rows.ids[end - 1]
        if last - first == count - 1:
            self._ids.extend(range(first - base, last - base + 1))
        else:
            self._ids.extend([each - base for each in rows.ids[begin:end]])
        self._rows += bytes((_THERE,)) * count
        offsets = rows.offsets[begin:end]
        self._offsets.extend(offsets)
        self._lowest, self._highest = min(self._lowest, offsets[0]), max(self._highest, offsets[-1])
        self._sizes.extend(rows.sizes[begin:end])
        self._extend_common(rows, begin, end)
        if self._deadlines is None and any(rows.deadlines[begin:end]):
            self._deadlines = array("Q", bytes(8 * (len(self._rows) - count)))
        if self._deadlines is not None:
            self._deadlines.extend(rows.deadlines[begin:end])
        if self._places is not None:
            self._places += bytes(_PLACE_BYTES * count)
        self._count += count

    def _extend_common(self, rows: Rows, begin: int, end: int) -> None:
        """As :meth:`extend`, for the columns of what messages have in common."""
        if len(rows.names) == 1:
            self._head_of.extend((self._head(rows.names[0]),) * (end - begin))
            self._properties_of.extend((self._number(rows.properties[0]),) * (end - begin))
        else:
            self._head_of.extend(map(self._head, rows.names[begin:end]))
            self._properties_of.extend(map(self._number, rows.properties[begin:end]))

    def _head(self, names: tuple[str, str]) -> int:
        """The number of the head of a plain message in one queue, with these names."""
        numbers = self._numbers
        assert numbers is not None, f"page {self.base} is extended, and full"
        number = numbers.get(names)
        if number is None:
            number = numbers[names] = len(self._heads)
            self._heads += ((Message, *names, False),)
        return number

    def _number(self, properties: bytes) -> int:
        """The number of these properties."""
        numbers = self._numbers
        assert numbers is not None, f"page {self.base} is extended, and full"
        number = numbers.get(properties)
        if number is None:
            number = numbers[properties] = len(self._properties_ends)
            self._properties += properties
            self._properties_ends.append(len(self._properties))
        return number

    def copy(self) -> PackedPage:
        """The same messages, each READY; what leaves one of both does not leave the other."""
        page = object.__new__(PackedPage)
        for name in PackedPage.__slots__:
            setattr(page, name, getattr(self, name))
        page.full()
        page.state = READY
        page._rows = self._rows[:]
        page._offsets = self._offsets[:]
        page._places = self._places and self._places[:]
        return page

    # -- one message --------------------------------------------------------------------------------------------------

    def _row(self, entry_id: int) -> int:
        """The row of that id, -1 if it is not here."""
        low = entry_id - self.base
        ids = self._ids
        if 0 <= low <= ids[-1]:
            row = low - ids[0]
            if not (0 <= row < len(ids) and ids[row] == low):  # ids have gaps
                row = bisect_left(ids, low)
            if ids[row] == low and self._rows[row]:
                return row
        return -1

    def __contains__(self, entry_id: int) -> bool:
        return self._row(entry_id) >= 0

    def get(self, entry_id: int) -> Entry | None:
        """A copy of the message of that id, if it is here."""
        row = self._row(entry_id)
        return self._copy(row) if row >= 0 else None

    def __getitem__(self, entry_id: int) -> Entry:
        entry = self.get(entry_id)
        if entry is None:
            raise KeyError(entry_id)
        return entry

    def drop(self, entry_id: int) -> Stand | None:
        """Take out the message of that id; None if it is not here."""
        row = self._row(entry_id)
        if row < 0:
            return None
        self._rows[row] = _GONE
        self._count -= 1
        return Stand(self._offsets[row], self._sizes[row])

    def popitem(self) -> tuple[int, Entry]:
        """Take out the last message; there must be one. Returns its id and a copy."""
        rows = self._rows
        row = max(rows.rfind(_THERE), rows.rfind(_THERE | _REDELIVERED))
        entry = self._copy(row)
        rows[row] = _GONE
        self._count -= 1
        return entry.id, entry

    def note_redelivered(self, entry_id: int) -> None:
        """A client may have had that message, which is here."""
        self._rows[self._row(entry_id)] |= _REDELIVERED

    def stand(self, entry_id: int) -> Stand:
        """Of the message of that id, which is here."""
        row = self._row(entry_id)
        return Stand(self._offsets[row], self._sizes[row])

    def shared_body(self, entry_id: int) -> int:
        """Where the body of the message of that id stands, which is here; 0 if no other queue may have it."""
        row = self._row(entry_id)
        return (self._place(row) or self._offsets[row]) if self._heads[self._head_of[row]][3] else 0

    def stand_again(self, entry_id: int, offset: int, place: int) -> None:
        """The message of that id, which is here, counts at ``offset``, and its body is at ``place``."""
        row = self._row(entry_id)
        self._offsets[row] = offset
        self._lowest, self._highest = min(self._lowest, offset), max(self._highest, offset)
        self._put_at(row, place)

    def _put_at(self, row: int, place: int) -> None:
        if self._places is None:
            self._places = bytearray(_PLACE_BYTES * len(self._ids))
        at = _PLACE_BYTES * row
        self._places[at : at + _PLACE_BYTES] = place.to_bytes(_PLACE_BYTES, "little")

    def _place(self, row: int) -> int:
        place = AT_OFFSET
        if self._places is not None:
            at = _PLACE_BYTES * row
            place = int.from_bytes(self._places[at : at + _PLACE_BYTES], "little")
        if place == AT_OFFSET and self._ended is not None:
            place = before_restart(self._cut, self._ended[row])
        return place

    # -- all of them --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        base = self.base
        return iter([base + low for low, row in zip(self._ids, self._rows, strict=True) if row])

    def ends(self) -> tuple[int, int]:
        """The lowest id and the highest; there must be one."""
        rows, ids = self._rows, self._ids
        last = max(rows.rfind(_THERE), rows.rfind(_THERE | _REDELIVERED))
        first = len(rows) - len(rows.lstrip(_NONE))
        return self.base + ids[first], self.base + ids[last]

    def seen(self) -> SeenIds:
        """The ids of the messages that are here now, whatever leaves later."""
        return SeenIds(self.base, self._ids, self._rows[:], self._count)

    def values(self) -> Iterator[Entry]:
        """Copies of all, in order."""
        return (self._copy(row) for row, there in enumerate(self._rows) if there)

    def items(self) -> Iterator[tuple[int, Entry]]:
        """Their ids and copies of all, in order."""
        return ((entry.id, entry) for entry in self.values())

    def size_bytes(self) -> int:
        """Octets of all their bodies."""
        if self._count == len(self._ids):
            return sum(self._sizes)
        return sum(size for size, row in zip(self._sizes, self._rows, strict=True) if row)

    def stands(self) -> Iterator[tuple[int, int]]:
        """Of each what a `Stand` says."""
        return compress(zip(self._offsets, self._sizes, strict=True), self._rows)

    def ids_up_to(self, offset: int) -> list[int]:
        """Ids of the messages that count at ``offset`` or before it."""
        if offset < self._lowest:
            return []
        base = self.base
        return [
            base + low
            for low, at, row in zip(self._ids, self._offsets, self._rows, strict=True)
            if row and at <= offset
        ]

    def mark(self, state: int) -> None:
        """All are in this state."""
        self.state = state

    def leave_log(self, cut: int, start: int) -> None:
        """See `BrokerState.leave_log`. All pages are asked in one step: places are made when a message is looked at."""
        if self._ended is None:  # else each message has a place of its own already
            assert self._place(0) != AT_OFFSET or self._offsets[0] > start, (
                f"messages from {self.base} on are packed, and stand before the log"
            )
            self._cut = cut
            self._ended = self._offsets[:]

    def _fix_places(self, ended: array[int]) -> None:
        """Make the places of all whose log has ended, while they had the offsets ``ended``."""
        places = [self._place(row) for row in range(len(ended))]
        self._ended = None
        for row, place in enumerate(places):
            self._put_at(row, place)

    def stand_at(self, start: int) -> None:
        """All that count behind ``start`` count there from now on. Each has a place of its own."""
        if self._highest <= start:
            return
        if self._lowest >= start:
            self._offsets = array("Q", [start]) * len(self._offsets)
        else:
            self._offsets = array("Q", [min(offset, start) for offset in self._offsets])
        self._lowest, self._highest = min(self._lowest, start), start

    def unpacked(self) -> dict[int, Entry]:
        """All as objects, which this page does not know of."""
        return {entry.id: entry for entry in self.values()}

    def _copy(self, row: int) -> Entry:
        kind, exchange, routing_key, shared = self._heads[self._head_of[row]]
        number = self._properties_of[row]
        ends = self._properties_ends
        properties = bytes(self._properties[ends[number - 1] if number else 0 : ends[number]])
        where = self._offsets[row], self._place(row), shared
        message = made_again(kind, exchange, routing_key, properties, self._bodies, self._sizes[row], *where)
        deadline_ms = self._deadlines[row] if self._deadlines is not None else 0
        return Entry(self.base + self._ids[row], message, deadline_ms, self._rows[row] > _THERE, self.state)
