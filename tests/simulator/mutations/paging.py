"""Bugs of bodies that leave the memory (``core/queues/paging.py``), and of where they are found again."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappush

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.queues.entry import READY, Entry
from understudy.broker.core.queues.paging import Paging
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log.body_place import AT_OFFSET
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.message import Message, SpilledBody


@mutation("G1")
def bodies_are_read_at_their_old_place(bug: Bug) -> None:
    """A message that a compaction has moved is still looked for in a record: at the offset that counts for its segment now."""
    real = Message.again_at

    def again_at(self: Message, offset: int, place: int) -> Message:
        if place > AT_OFFSET:
            bug.strike()
        return real(self, offset, AT_OFFSET)

    bug.replace(Message, "again_at", again_at)


@mutation("G1", "OffsetNotKeptError")
def bodies_of_an_ended_log_are_read_in_the_new_one(bug: Bug) -> None:
    """A catch-up begins the log anew, and messages held from before are looked for at their old offsets in the new log."""

    def leave_log(self: BrokerState, cut: int) -> None:
        bug.strike()

    bug.replace(BrokerState, "leave_log", leave_log)
    bug.replace(Message, "leave", _leave_at_any_offset)


def _leave_at_any_offset(self: Message, bodies: SpilledBody, _: int, known: dict[bytes, bytes]) -> bool:
    if not (self.persistent and self.place >= AT_OFFSET and isinstance(self.body, bytes)):
        return False
    self.body = bodies
    return True


@mutation("G1", "G3", "G5")
def what_was_fetched_is_handed_out_in_any_case(bug: Bug) -> None:
    """A message whose body comes late is put into the queue again, though a purge, or its expiry, has taken it meanwhile."""
    waiting: dict[int, list[Entry]] = {}
    wait_for, fetched = Paging.wait_for, Paging._fetched

    def waits(self: Paging, queue: Queue, entry: Entry) -> None:
        wait_for(self, queue, entry)
        waiting.setdefault(id(queue), []).append(entry)

    def comes(self: Paging, queue: Queue) -> None:
        for entry in waiting.pop(id(queue), []):
            if entry.state != READY and entry.id not in queue.entries:
                bug.strike()
                entry.state = READY
                heappush(queue.returned, (entry.id, entry))
        fetched(self, queue)

    bug.replace(Paging, "wait_for", waits)
    bug.replace(Paging, "_fetched", comes)


@mutation("G1")
def what_is_not_in_memory_is_sent_empty(bug: Bug) -> None:
    """A message whose body is paged out is handed out without it."""

    def read(self: PagedBodies, message: Message) -> bytes:
        bug.strike()
        return b""

    def wait_for(self: Paging, queue: Queue, entry: Entry) -> None:
        queue.put_back(entry, redelivered=False)
        entry.message.page_in(self.bodies.read(entry.message) if self.bodies is not None else b"")
        self._state.schedule(queue)

    bug.replace(PagedBodies, "read", read)
    bug.replace(Paging, "wait_for", wait_for)


@mutation("G1")
def a_fetch_gives_bodies_to_their_neighbours(bug: Bug) -> None:
    """Bodies that are fetched together come to each other's messages."""
    real = PagedBodies._read

    def read(self: PagedBodies, wanted: list[object]) -> Mapping[int, bytes]:
        found = real(self, wanted)  # type: ignore[arg-type]
        if len(found) > 1:
            bug.strike()
        return dict(zip(found, reversed(list(found.values())), strict=True))

    bug.replace(PagedBodies, "_read", read)


@mutation("G1", "OffsetNotKeptError", "AssertionError")
def queues_outside_the_log_share_what_leaves(bug: Bug) -> None:
    """A message that lies in an exclusive queue, too, leaves the memory: nothing keeps its record when the other queue is done."""

    def stay(self: Message) -> None:
        bug.strike()

    bug.replace(Message, "stay", stay)
