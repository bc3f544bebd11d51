"""PriorityQueue: a queue with ``x-max-priority``. Of its ready messages the one with the highest priority is handed out first.

The order is strict: a ready message is never overtaken by one of a lower priority. Messages of one priority keep the order of their
ids. A message that comes back takes its old place: its priority, and its id there.

The priority is a property of the message, so brokers that follow keep nothing of it. A message without one has priority 0, and one
above the maximum of the queue counts as the maximum. Messages are put into levels only when the next one is asked for: until then
they lie where a queue without priorities keeps them (``ready``, ``returned``). So all that adds a message is the same for both
kinds.

The next message is found in O(1) in the number of levels: ``filled`` has one bit a level.

Source: RabbitMQ 4.3, priority queue support. Its classic queues hold back what comes while lower levels are drained; its quorum
queues are strict, as this one is, but hand out returned messages before all others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final

from understudy.broker.amqp.properties import priority
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.leaving import Places
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.queue_line import first_ready
from understudy.broker.message import Message

MAX_PRIORITY: Final = "x-max-priority"
MOST: Final = 255
"""A priority is an octet."""

_REMEMBERED: Final = 4096
_REMEMBERED_BYTES: Final = 256
_priorities: Final[dict[bytes, int]] = {}
"""Of properties that publishers repeat."""


def asked_priority(properties: bytes) -> int:
    """The priority that is asked for by these properties of a message, 0 to 255; 0 if there is none."""
    found = _priorities.get(properties)
    if found is None:
        found = priority(properties) or 0
        if len(properties) <= _REMEMBERED_BYTES:
            if len(_priorities) >= _REMEMBERED:
                _priorities.clear()
            _priorities[properties] = found
    return found


class _Level:
    """Messages of one priority: ``ready`` in the order of ids, ``returned`` a heap of those that came back."""

    __slots__ = ("ready", "returned")

    def __init__(self) -> None:
        self.ready: deque[Entry] = deque()
        self.returned: list[tuple[int, Entry]] = []

    def peek(self) -> Entry | None:
        """See `first_ready`."""
        return first_ready(self.ready, self.returned)

    def drop_head(self, entry: Entry) -> None:
        """Drop the places of ``entry``, which :meth:`peek` has shown: it gets another one if it comes back."""
        if self.ready and self.ready[0] is entry:
            self.ready.popleft()
        while self.returned and self.returned[0][1] is entry:
            heappop(self.returned)


class PriorityQueue(Queue):
    """One queue with priorities 0 to ``most``."""

    __slots__ = ("_filled", "_levels", "most")

    def __init__(self, *args: Any, arguments: dict[str, Any], **options: Any) -> None:
        """Make an empty queue; see `Queue`."""
        super().__init__(*args, arguments=arguments, **options)
        self.most: int = arguments[MAX_PRIORITY]
        self._levels: defaultdict[int, _Level] = defaultdict(_Level)
        self._filled = 0

    def priority_of(self, message: Message) -> int:
        return min(asked_priority(message.properties), self.most)

    @property
    def packs(self) -> bool:
        """Any message may be handed out next, and all are looked at to find that one."""
        return False

    def begin_page(self, entry_id: int) -> dict[int, Entry]:
        return self.entries.page_for(entry_id)

    def _sort_in(self) -> None:
        """Put what has come, or come back, into its level."""
        ready, returned, levels = self.ready, self.returned, self._levels
        filled = self._filled
        for entry in ready:
            number = self.priority_of(entry.message)
            levels[number].ready.append(entry)
            filled |= 1 << number
        for pair in returned:
            number = self.priority_of(pair[1].message)
            heappush(levels[number].returned, pair)
            filled |= 1 << number
        ready.clear()
        returned.clear()
        self._filled = filled

    def _heads(self) -> Iterator[Entry]:
        """The first ready message of each level, the highest priority first."""
        if self.ready or self.returned:
            self._sort_in()
        left = self._filled
        while left:
            number = left.bit_length() - 1
            left ^= 1 << number
            entry = self._levels[number].peek()
            if entry is None:
                self._filled ^= 1 << number
            else:
                yield entry

    def take(self) -> Entry | None:
        entry = self.peek()
        if entry is not None:
            self._acquire(entry)
        return entry

    def _acquire(self, entry: Entry) -> None:
        self._levels[self.priority_of(entry.message)].drop_head(entry)
        self.hold(entry)
        if entry.id < self.redelivered_below:
            entry.note_redelivered()

    def peek(self) -> Entry | None:
        return next(self._heads(), None)

    def take_expired(self, now_ms: Callable[[], int]) -> Iterator[Entry]:
        """Of each level the head counts: a message of a higher priority that waits keeps no other from expiring."""
        for head in self._heads():
            level, entry = self._levels[self.priority_of(head.message)], head
            while 0 < entry.deadline_ms <= now_ms():
                self._acquire(entry)
                yield entry
                following = level.peek()
                if following is None:
                    break
                entry = following

    def handed_out_below(self) -> int:
        """Messages are not handed out in the order of ids: any may have been."""
        return self.newest_id + 1

    def first_behind(self, messages: int, octets: int) -> int:
        """Any may be handed out next: all are swept."""
        return 0

    def upcoming(self, most: int) -> Iterator[Entry]:
        if self.ready or self.returned:
            self._sort_in()
        for number in sorted(self._levels, reverse=True):
            level = self._levels[number]
            yield from (entry for _, entry in islice(level.returned, most))
            yield from islice(level.ready, most)

    def activate(self, redelivered_below: int, first_new_id: int) -> None:
        self._forget_levels()
        super().activate(redelivered_below, first_new_id)
        while self.next_page():
            pass

    def _forget_levels(self) -> None:
        self._levels.clear()
        self._filled = 0

    def lines(self) -> list[Places]:
        lines = super().lines()
        for level in self._levels.values():
            lines += (level.ready, level.returned)
        self._forget_levels()
        return lines


def queue_class(arguments: dict[str, Any]) -> type[Queue]:
    """The class of a queue with these arguments, which have been checked."""
    return PriorityQueue if MAX_PRIORITY in arguments else Queue
