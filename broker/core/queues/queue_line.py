"""QueueLine: the messages of one queue that may be handed out, in the order of their ids, a page at a time.

The line is ``ready``, the pages in ``between``, and ``tail``, to which new messages come; ``tail`` is ``ready`` when nothing lies
between them. Messages that came back stand in ``returned``, a heap by id. A short queue has all of its line in ``ready``. Pages
between may be packed (``packed_page.py``): they are unpacked when consumers come near.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop
from itertools import chain, islice

from understudy.broker.core.queues import entry_index
from understudy.broker.core.queues.entry import READY, Entry
from understudy.broker.core.queues.entry_index import EntryIndex
from understudy.broker.core.queues.leaving import Places
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.message import SpilledBody


def first_ready(ready: deque[Entry], returned: list[tuple[int, Entry]]) -> Entry | None:
    """The READY message with the lowest id, None if there is none. Places of others before it are dropped.

    Args:
        ready: in the order of ids.
        returned: a heap, by id, of messages that came back.
    """
    while returned and returned[0][1].state != READY:
        heappop(returned)
    while ready and ready[0].state != READY:
        ready.popleft()
    if returned and (not ready or returned[0][0] < ready[0].id):
        return returned[0][1]
    return ready[0] if ready else None


class QueueLine:
    """Of one queue.

    Attributes:
        entries: all messages of the queue; the line has those that are READY, and passes over others.
        name: of the queue.
        active: this broker leads; otherwise there is no line.
    """

    __slots__ = ("active", "between", "entries", "name", "ready", "returned", "tail")

    def __init__(self, name: str, active: bool) -> None:
        """Make an empty one."""
        self.name = name
        self.active = active
        self.entries = EntryIndex()
        self.ready: deque[Entry] = deque()
        self.between: dict[int, deque[Entry] | PackedPage] = {}
        self.tail = self.ready
        self.returned: list[tuple[int, Entry]] = []

    def begin_page(self, entry_id: int) -> dict[int, Entry]:
        """The page that begins with this new id. What is in line of the one before is closed."""
        if self.tail is not self.ready:
            self.between[self.entries.newest_number] = self.tail
            self.tail = deque()
        elif self.ready:
            self.tail = deque()
        return self.entries.page_for(entry_id)

    def line_up(self) -> None:
        """Have everything that is in ``entries`` READY and in line; nothing has come back."""
        entries = self.entries
        self.ready = deque()
        self.between = {}
        self.returned.clear()
        for number, page in entries.pages.items():
            if isinstance(page, PackedPage):
                page.mark(READY)
                self.between[number] = page
            else:
                for entry in page.values():
                    entry.begin()
                self.between[number] = deque(page.values())
        newest = self.between.pop(entries.newest_number, deque())
        assert not isinstance(newest, PackedPage), (
            f"page {entries.newest_number} of {self.name} is the newest, and packed"
        )
        self.tail = newest
        if not self.between:
            self.ready = newest

    def drop_held(self) -> None:
        """Keep only what is READY in line, but for ``returned``."""
        lines = [self.ready, *self.between.values(), self.tail]
        for line in lines[: -1 if self.tail is self.ready else None]:
            if not isinstance(line, PackedPage):
                ready = [entry for entry in line if entry.state == READY]
                line.clear()
                line.extend(ready)

    def next_page(self) -> bool:
        """Put the next page of the line behind what is in ``ready``. False if all of the line is there."""
        if self.ready is self.tail:
            return False
        if self.between:
            number = next(iter(self.between))
            self._unpack(number)
            page = self.between.pop(number)
            assert not isinstance(page, PackedPage)
            self.ready.extend(page)
        else:
            self.ready.extend(self.tail)
            self.tail = self.ready
        return True

    def peek(self) -> Entry | None:
        """The message that :meth:`take` would give."""
        first = first_ready(self.ready, self.returned)
        while not self.ready and self.next_page():
            first = first_ready(self.ready, self.returned)
        return first

    def upcoming(self, most: int) -> Iterator[Entry]:
        """The messages that are handed out next, about in that order, and so many at most of each sort."""
        while len(self.ready) < most and self.next_page():
            pass
        return chain((entry for _, entry in islice(self.returned, most)), islice(self.ready, most))

    def pack(self, number: int, entries: list[Entry], bodies: SpilledBody) -> None:
        """Pack the page of that number, which holds ``entries``, in order, if all are in line; see `PackedPage`."""
        if not self.active:
            self.entries.pack(number, entries, bodies)
            return
        line = self.between.get(number)
        if isinstance(line, deque) and [entry for entry in line if entry.state == READY] == entries:
            self.between[number] = self.entries.pack(number, entries, bodies)

    def unpack(self, entry_id: int) -> Entry | None:
        """The message of that id, which may be changed; None if it is not here."""
        self._unpack(entry_id >> entry_index.PAGE_BITS)
        return self.entries.get(entry_id)

    def _unpack(self, number: int) -> None:
        """Have objects of the messages of that page."""
        page = self.entries.pages.get(number)
        if isinstance(page, PackedPage):
            objects = self.entries.unpack(number)
            assert objects is not None
            if number in self.between:
                self.between[number] = deque(objects.values())
        elif isinstance(self.between.get(number), PackedPage):
            self.between[number] = deque()  # all of it has left

    def shown(self) -> Iterator[Entry]:
        """The messages in line, in order; copies of those that are packed."""
        lines = [self.ready, *self.between.values()]
        if self.tail is not self.ready:
            lines.append(self.tail)
        return chain.from_iterable(line.values() if isinstance(line, PackedPage) else line for line in lines)

    def give_away(self) -> list[Places]:
        """Containers of the messages in line, given away, but for packed pages: none of these is in line any more."""
        lines: list[Places] = [self.ready, self.returned]
        lines += [line for line in self.between.values() if not isinstance(line, PackedPage)]
        if self.tail is not self.ready:
            lines.append(self.tail)
        self.ready, self.returned, self.between = deque(), [], {}
        self.tail = self.ready
        return lines

    def packed_between(self) -> list[PackedPage]:
        """The packed pages of the line."""
        return [page for page in self.between.values() if isinstance(page, PackedPage)]

    def drop_returned(self) -> None:
        """Keep only what is READY in line."""
        self.drop_held()
        self.returned = [place for place in self.returned if place[1].state == READY]
        heapify(self.returned)
