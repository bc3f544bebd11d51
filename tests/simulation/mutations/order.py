"""Bugs of order and of redelivery."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Bug, mutation
from understudy.broker.core.entry import ACQUIRED, READY, Entry
from understudy.broker.core.queue import Queue


@mutation("G9")
def redelivery_not_marked(bug: Bug) -> None:
    """A promoted broker hands out with redelivered=0 what its predecessor may have delivered."""
    real = Queue.activate

    def activate(self: Queue, redelivered_below: int, first_new_id: int) -> None:
        bug.strikes += len(self.entries)
        real(self, 0, first_new_id)

    bug.replace(Queue, "activate", activate)


@mutation("G9")
def requeued_at_the_end(bug: Bug) -> None:
    """A message that comes back goes to the end of its queue, not to its place."""

    def put_back(self: Queue, entry: Entry, redelivered: bool = True) -> None:
        if entry.state != ACQUIRED:
            return
        bug.strike()
        entry.state = READY
        entry.redelivered = entry.redelivered or redelivered
        self.acquired -= 1
        self.ready.append(entry)

    bug.replace(Queue, "put_back", put_back)


@mutation("G9", "G1", "G3")
def ids_used_again(bug: Bug) -> None:
    """A promoted broker goes on from the newest id that it holds, not above everything that an epoch before gave out."""
    real = Queue.activate

    def activate(self: Queue, redelivered_below: int, first_new_id: int) -> None:
        if first_new_id > self.last_id:
            bug.strike()
        real(self, redelivered_below, 0)

    bug.replace(Queue, "activate", activate)
