"""Bugs of order, of redelivery and of expiry."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.broker import Broker
from understudy.broker.core.moving.message_expiry import MessageExpiry
from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.entry import ACQUIRED, READY, Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.message import Message


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


EARLY_MS = 200


@mutation("expiry")
def messages_expire_before_their_time(bug: Bug) -> None:
    """Who looks for messages whose time has passed has a clock of its own, that is fast."""
    real, expired = MessageExpiry.drop, Broker.expired

    def drop(self: MessageExpiry, queue: Queue) -> None:
        broker = self._broker
        expiry_ms = broker.clock.expiry_now()

        def early(self: Broker, queue: Queue, entry: Entry) -> None:
            if entry.deadline_ms > expiry_ms:
                bug.strike()
            expired(self, queue, entry)

        Broker.expired = early  # type: ignore[method-assign]
        broker.clock.expiry_now = lambda: expiry_ms + EARLY_MS  # type: ignore[method-assign]
        try:
            real(self, queue)
        finally:
            del broker.clock.expiry_now
            Broker.expired = expired  # type: ignore[method-assign]

    bug.replace(MessageExpiry, "drop", drop)


@mutation("G3")
def expired_messages_are_delivered(bug: Bug) -> None:
    """A consumer, or basic.get, is given the first message of a queue without a look at its deadline."""

    def take(self: Broker, queue: Queue, consumer: Consumer | None = None) -> Entry | None:
        entry = queue.take()
        if entry is not None and entry.deadline_ms and not self.expiry.messages.spares(queue, entry, consumer):
            bug.strike()
        return entry

    bug.replace(MessageExpiry, "drop", lambda self, queue: self.fresh.pop(queue, None))
    bug.replace(Broker, "take", take)


@mutation("expiry")
def expiry_goes_by_the_wall_clock(bug: Bug) -> None:
    """A wall clock that jumps ahead takes expiry with it."""
    real = ExpiryClock.follow

    def follow(self: ExpiryClock, monotonic_ms: int, wall_ms: int) -> int:
        real(self, monotonic_ms, wall_ms)
        bug.strikes += wall_ms > self.now_ms
        self.now_ms = wall_ms
        return wall_ms

    bug.replace(ExpiryClock, "follow", follow)


@mutation("expiry")
def the_longer_time_to_live_counts(bug: Bug) -> None:
    """Of a message's own expiration and its queue's TTL the longer one counts."""
    real = OpenBatch.deadline

    def deadline(self: OpenBatch, queue: Queue, expiration_ms: int | None, message: Message | None = None) -> int:
        ttl = queue.ttl_ms
        if expiration_ms is None or ttl is None:
            return real(self, queue, expiration_ms, message)
        bug.strikes += expiration_ms != ttl
        return max(1, self._clock.expiry_ms + max(expiration_ms, ttl))

    bug.replace(OpenBatch, "deadline", deadline)


@mutation("G1", "G2")
def deadlines_begin_anew_at_a_failover(bug: Bug) -> None:
    """A promoted broker gives every message of a queue with a TTL its whole time again."""
    real = Queue.activate

    def activate(self: Queue, redelivered_below: int, first_new_id: int) -> None:
        real(self, redelivered_below, first_new_id)
        if redelivered_below and self.ttl_ms is not None:
            for entry in self.entries.values():
                bug.strike()
                entry.deadline_ms += self.ttl_ms

    bug.replace(Queue, "activate", activate)
