"""Bugs of priorities: which message is handed out first, which consumer is served, and how long it may hold what it has."""

from __future__ import annotations

from collections import deque
from heapq import heappush

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.consumer_order import ConsumerOrder
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.priority_queue import PriorityQueue, _Level, asked_priority
from understudy.broker.message import Message


@mutation("G9")
def the_lowest_priority_comes_first(bug: Bug) -> None:
    """A queue hands out the message with the lowest priority."""

    def peek(self: PriorityQueue) -> Entry | None:
        heads = list(self._heads())
        if len(heads) > 1:
            bug.strike()
        return heads[-1] if heads else None

    bug.replace(PriorityQueue, "peek", peek)


@mutation("G9")
def a_message_that_comes_back_loses_its_priority(bug: Bug) -> None:
    """A message that was returned waits among those of priority 0."""
    real = PriorityQueue._sort_in

    def sort_in(self: PriorityQueue) -> None:
        for pair in self.returned:
            if self.priority_of(pair[1].message):
                bug.strike()
            heappush(self._levels.setdefault(0, _Level()).returned, pair)
            self._filled |= 1
        self.returned.clear()
        real(self)

    bug.replace(PriorityQueue, "_sort_in", sort_in)


@mutation("G9")
def a_priority_above_the_maximum_is_none(bug: Bug) -> None:
    """A priority above the maximum of the queue counts as 0."""

    def priority_of(self: PriorityQueue, message: Message) -> int:
        asked = asked_priority(message.properties)
        if asked > self.most:
            bug.strike()
            return 0
        return asked

    bug.replace(PriorityQueue, "priority_of", priority_of)


@mutation("consumers")
def the_lowest_consumers_are_served_first(bug: Bug) -> None:
    """The consumers with the lowest priority are served before all others."""

    def put_in_order(self: ConsumerOrder) -> None:
        if len(self._levels) > 1:
            bug.strike()
        self._lines = tuple(self._levels[priority] for priority in sorted(self._levels))

    bug.replace(ConsumerOrder, "_put_in_order", put_in_order)


@mutation("consumers")
def a_second_consumer_is_active(bug: Bug) -> None:
    """While the single active consumer can take nothing, the others of its priority are served."""
    real = ConsumerOrder.lines

    def lines(self: ConsumerOrder) -> tuple[deque[Consumer], ...]:
        found = real(self)
        if self.single and found and len(self._lines[0]) > 1:
            bug.strike()
            return (*found, self._lines[0])
        return found

    bug.replace(ConsumerOrder, "lines", lines)


@mutation("consumers")
def a_higher_consumer_does_not_wait(bug: Bug) -> None:
    """A consumer of a higher priority takes over at once, though the active one has messages to settle."""

    def active(self: ConsumerOrder) -> Consumer | None:
        if not self.single or not self._lines:
            return None
        first, before = self._lines[0][0], self._active
        if before is None or first.priority > before.priority:
            bug.strikes += before is not None and before.unacked > 0
            self._active = first
        return self._active

    bug.replace(ConsumerOrder, "active", property(active))


@mutation("consumers")
def nothing_times_out(bug: Bug) -> None:
    """A consumer may hold a message for as long as it likes."""

    def tick(self: ConsumerTimeouts, now_ms: int) -> None:
        if any(
            channel.consuming.ledger.outstanding
            for connection in self._broker.reception.connections
            for channel in connection.channels.values()
        ):
            bug.strike()

    bug.replace(ConsumerTimeouts, "tick", tick)
