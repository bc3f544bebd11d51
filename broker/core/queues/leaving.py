"""Ways to take many messages out of a queue, a slice at a time. A slice is ``put_off.SLICE`` messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from understudy.broker.core.queues import put_off
from understudy.broker.core.queues.entry import ACQUIRED, DEQUEUING, RETURNING, Entry

if TYPE_CHECKING:
    from understudy.broker.core.queues.entry_index import EntryIndex
    from understudy.broker.log.live_offsets import LiveOffsets

Places = deque[Entry] | list[tuple[Any, ...]]
"""A container of messages in some order: entries, or tuples that end with one."""

IN_HAND = (ACQUIRED, DEQUEUING, RETURNING)
"""States of messages that something else than the queue may hold."""


class Leaving:
    """Messages that one record takes out of a queue. The record is applied; they are still in the index, and count as gone.

    Attributes:
        ids: of all of them.
        at: so many of them have been taken out.
    """

    __slots__ = ("at", "ids")

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        self.at = 0

    @property
    def left(self) -> int:
        """How many are still to be taken out."""
        return len(self.ids) - self.at


def taken_places(places: Places) -> Iterator[Entry]:
    """The messages of the next slice of ``places``, which loses them; the last ones first."""
    for _ in range(min(put_off.SLICE, len(places))):
        place = places.pop()
        yield place if isinstance(place, Entry) else place[-1]


def mark_in_hand(entries: EntryIndex, count: int) -> None:
    """Mark as GONE what others hold of ``entries``: so many messages. Consumers have the first ones of a queue most often."""
    for entry in entries.objects():
        if count <= 0:
            return
        if entry.state in IN_HAND:
            entry.leave()
            count -= 1


def forget(entries: EntryIndex, live: LiveOffsets, lines: list[Places], known: dict[int, Any]) -> Iterator[None]:
    """Free what a queue held that is gone, or that has lost everything."""
    while entries:
        for _ in range(min(put_off.SLICE, len(entries))):
            entry = entries.pop_last()
            entry.leave()
            live.release(entry.message.offset, entry.message.size)
        if entries:
            yield
    for line in lines:
        while line:
            for _ in taken_places(line):
                pass
            if line:
                yield
    while known:
        for _ in range(min(put_off.SLICE, len(known))):
            known.popitem()
        if known:
            yield
