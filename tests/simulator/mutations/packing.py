"""Bugs of pages whose messages are no objects (``core/queues/packed_page.py``)."""

from __future__ import annotations

from heapq import heappop

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.queues.entry import ACQUIRED, READY, Entry
from understudy.broker.core.queues.packed_page import PackedPage, Stand
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.body_place import AT_OFFSET


@mutation("G9")
def what_came_back_overtakes_the_next_page(bug: Bug) -> None:
    """A message that came back is handed out first when the page before is empty, though the next page has older ones."""
    real = Queue.take

    def take(self: Queue) -> Entry | None:
        if self.ready or self.ready is self.tail or not self.returned or self.returned[0][1].state != READY:
            return real(self)
        bug.strike()
        entry = heappop(self.returned)[1]
        entry.state = ACQUIRED
        self.acquired += 1
        if self.limits is not None:
            self.limits.left(entry)
        entry.redelivered = True
        return entry

    bug.replace(Queue, "take", take)


@mutation("G1")
def a_packed_message_leaves_and_stays(bug: Bug) -> None:
    """A message is taken out of a packed page in the counts alone."""

    def drop(self: PackedPage, entry_id: int) -> Stand | None:
        if entry_id not in self:
            return None
        bug.strike()
        return self.stand(entry_id)

    bug.replace(PackedPage, "drop", drop)


@mutation("G1")
def packed_messages_lose_their_deadlines(bug: Bug) -> None:
    """A message that was packed never expires."""
    real = PackedPage._copy

    def copy(self: PackedPage, row: int) -> Entry:
        entry = real(self, row)
        if entry.deadline_ms:
            bug.strike()
        entry.deadline_ms = 0
        return entry

    bug.replace(PackedPage, "_copy", copy)


@mutation("G1", "BodyNotKeptError")
def packed_messages_are_read_at_their_old_place(bug: Bug) -> None:
    """A compaction moves a message of a packed page, and its body is looked for where that was before."""
    real = PackedPage.stand_again

    def stand_again(self: PackedPage, entry_id: int, offset: int, place: int) -> None:
        if place != AT_OFFSET:
            bug.strike()
        real(self, entry_id, offset, self.get(entry_id).message.place)  # type: ignore[union-attr]

    bug.replace(PackedPage, "stand_again", stand_again)


@mutation("G1", "BodyNotKeptError", "OffsetNotKeptError")
def packed_messages_stay_in_the_log_that_has_ended(bug: Bug) -> None:
    """The log begins anew, and bodies of packed pages are looked for at the same offsets of the new one."""

    def leave_log(self: PackedPage, cut: int, start: int) -> None:
        bug.strike()

    bug.replace(PackedPage, "leave_log", leave_log)
