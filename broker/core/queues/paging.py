"""Paging: bodies leave the memory when queues hold much, and come back ahead of the consumers.

**Out.** When more lies in queues than `PagingLimits.watermark_bytes`, a sweep goes through the queues, a page of entries at a time
between turns, and faster than messages come. Bodies that are in the journal leave the memory (`PagedBodies`), and equal properties
are held once. The messages that consumers of a queue get next stay, and the newest: a consumer that keeps up never waits for a
disk. A page of which all bodies have left is packed (`PackedPage`): its messages are no objects any more. A sweep does not come
back to pages that it has passed, so a message that was brought back stays until it leaves its queue. But it comes back to a page
to which a message comes late, and to one where a message waits for its place.

**In.** When the message that a consumer is to get is paged out, the queue *fetches*: it hands out nothing until the bodies of
that message and of those behind it are there. They are read in another thread. While consumers take one window the next is
already read.

What is not in this broker's journal stays in memory: transient messages, those of queues that are not in the log, bodies that
stand in parts, and transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from understudy.broker.core.queues.entry import READY
from understudy.broker.core.queues.packed_page import PACKED_KINDS, PackedPage
from understudy.broker.log.body_place import AWAITED
from understudy.broker.log.paged_bodies import PagedBodies

if TYPE_CHECKING:
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.log.live_offsets import LiveOffsets
    from understudy.broker.log.log import Log
    from understudy.broker.message import Message

SLICE: Final = 4_096
"""A sweep looks at about so many entries at once."""
QUEUE_STEPS: Final = 8
"""To come to a queue takes as much as so many entries."""
TICKS: Final = 5
"""Every so many ticks `Paging` finds out whether queues hold so much that sweeps are worth it."""
OWED: Final = 2
"""For each record that is applied, a sweep looks at so many entries after its turn, or soon after that."""
MOST_OWED: Final = 8 * SLICE
"""The same, for all records."""
MOST_PROPERTIES: Final = 4_096
"""So many different properties are known to a sweep, that messages share."""
_DONE: Final = object()


@attrs.frozen(kw_only=True)
class PagingLimits:
    """Bounds of what stays in memory.

    Attributes:
        watermark_bytes: of all messages that lie in queues of the log; bodies leave above it.
        least_bytes: smaller bodies stay; but a recovery leaves those, too.
        head_messages: of each queue with consumers, so many stay that are to be handed out next.
        tail_bytes: of each queue, the newest messages stay up to that. A page that holds less in all is not looked at as long as
            messages come to it.
        window_messages, window_bytes: brought back at once, one message at least.
    """

    watermark_bytes: int = 256 << 20
    least_bytes: int = 64
    head_messages: int = 512
    tail_bytes: int = 8 << 20
    window_messages: int = 512
    window_bytes: int = 1 << 20


PAGING: Final = PagingLimits()
"""The ordinary ones."""


class HoldsMessages(Protocol):
    """A state with queues (``BrokerState``)."""

    log: Log
    queues: dict[int, Queue]
    live: LiveOffsets

    def schedule(self, queue: Queue) -> None:
        """``queue`` may have something for its consumers."""


class Paging:
    """Of one core.

    Attributes:
        bodies: gives bodies back; None: all stay in memory.
        paged_out: how many bodies have left.
    """

    def __init__(self, state: HoldsMessages, bodies: PagedBodies | None, limits: PagingLimits) -> None:
        self.bodies = bodies
        self.paged_out = 0
        self._on_fetched: Callable[[], None] = _nothing
        self._state = state
        self._limits = limits
        self._sweep: Iterator[None] | None = None
        self._rest = 0
        self._owed = self._applied_before = 0
        self._due = False
        self._properties: dict[bytes, bytes] = {}
        self._recovered_bytes = 0
        self._recovers = self._recovers_deep = False

    def tell_fetched(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever bodies have come, so that a turn is ended."""
        self._on_fetched = told

    # -- out ----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time passes: do a slice of a sweep, or begin one if it is worth it."""
        self._rest -= 1
        if self._rest <= 0:
            self._rest = TICKS
            self._due = self._is_due()
            if self._due and self._sweep is None:
                self._sweep = self._all_queues()
        if self._sweep is not None:
            self._go_on(self._sweep)

    def turn(self) -> None:
        """A turn is over: do a slice of a sweep, if so much has been applied that one is owed."""
        applied = self._state.log.applied
        if applied > self._applied_before:
            self._owed = min(self._owed + OWED * (applied - self._applied_before), MOST_OWED)
        self._applied_before = applied
        if self._owed >= SLICE and self._due:
            self._owed -= SLICE
            if self._sweep is None:
                self._sweep = self._all_queues()
            self._go_on(self._sweep)

    def _go_on(self, sweep: Iterator[None]) -> None:
        if next(sweep, _DONE) is _DONE:
            self._sweep = None

    def recovered(self, octets: int) -> bool:
        """So many octets of a journal were read: recovery has no ticks. Returns True if queues hold so much that bodies leave."""
        self._recovered_bytes += octets
        if self._recovered_bytes > self._limits.watermark_bytes // 2:
            self._recovered_bytes = 0
            self._recovers_deep = self._is_due()
            if self._recovers_deep:
                self._recovers = True  # all that a recovery is shown is durable
                for _ in self._all_queues():
                    pass
                self._recovers = False
        return self._recovers_deep

    def expects(self, octets: int) -> bool:
        """True if a journal of so many octets may hold so much that bodies leave: a recovery need not read them."""
        return self.bodies is not None and octets > self._limits.watermark_bytes

    def note_left(self, count: int) -> None:
        """A recovery has left so many bodies in the journal."""
        self.paged_out += count

    def _is_due(self) -> bool:
        return self.bodies is not None and self._state.live.total_octets() > self._limits.watermark_bytes

    def _all_queues(self) -> Iterator[None]:
        """A sweep; the items are its slices."""
        steps = 0
        head, octets = self._limits.head_messages, self._limits.window_bytes
        for queue in list(self._state.queues.values()):
            steps += QUEUE_STEPS
            if queue.durable and queue.live is self._state.live and queue.entries:
                entries = queue.entries
                numbers = [each for each in entries.pages if each >= queue.swept_page]
                queue.swept(entries.newest_number)  # first: what comes meanwhile is for the next sweep
                for number in numbers:
                    page = entries.pages.get(number)
                    newest = number == entries.newest_number
                    if not page or isinstance(page, PackedPage) or queue.entries is not entries:
                        continue
                    if not (newest and self._is_tail(page)):
                        first = queue.first_behind(head, octets) if queue.consumers else 0
                        if self._page_out(page, first, newest):
                            queue.sweep_again(number)
                        elif not newest:
                            self._pack(queue, number, page, first)
                        steps += len(page)
                    if steps >= SLICE:
                        steps = 0
                        yield
            if steps >= SLICE:
                steps = 0
                yield

    def _is_tail(self, page: dict[int, Entry]) -> bool:
        """True if all messages of the newest page stay, to judge by the last one: every sweep would look at them in vain."""
        return len(page) * next(reversed(page.values())).message.size <= self._limits.tail_bytes

    def _page_out(self, page: dict[int, Entry], first: int, newest: bool) -> bool:
        """Messages stay whose ids are below ``first``.

        Returns:
            True if a message of the page stays until its place is known, or its record durable.
        """
        waits = False
        bodies, log = self.bodies, self._state.log
        assert bodies is not None
        start, durable = log.start, log.end if self._recovers else log.durable
        least = self._limits.least_bytes
        end = self._tail_begins(page) if newest else None
        known = self._properties
        if len(known) > MOST_PROPERTIES:
            known.clear()
        paged_out = 0
        for entry in page.values():
            message = entry.message
            if message.offset > durable:
                waits = True  # a broker that does not lead may apply what its own disk does not have yet
            elif message.place == AWAITED:
                waits = True
            elif message.size < least or entry.id < first or (end is not None and entry.id >= end):
                continue
            elif message.leave(bodies, start, known):
                paged_out += 1
        self.paged_out += paged_out
        return waits

    def _pack(self, queue: Queue, number: int, page: dict[int, Entry], first: int) -> None:
        """Pack the page of that number, if all of its bodies have left; small ones leave with it, and stay if it stays."""
        bodies, start = self.bodies, self._state.log.start
        assert bodies is not None
        if queue.fetching or not queue.packs:
            return
        if any(
            entry.state != READY
            or entry.id < first
            or entry.message.__class__ not in PACKED_KINDS
            or (entry.message.body is not bodies and not entry.message.may_leave(start))
            for entry in page.values()
        ):
            return
        entries = [page[entry_id] for entry_id in sorted(page)]
        queue.pack(number, entries, bodies)

    def _tail_begins(self, page: dict[int, Entry]) -> int | None:
        """The id from which on messages of the newest page stay; None for none of them."""
        left = self._limits.tail_bytes
        begins = None
        for entry_id, entry in reversed(page.items()):
            left -= entry.message.size
            if left < 0:
                break
            begins = entry_id
        return begins

    # -- in -----------------------------------------------------------------------------------------------------------

    def wait_for(self, queue: Queue, entry: Entry) -> None:
        """A consumer was to get ``entry``, whose body is paged out: put it back, and fetch."""
        queue.put_back(entry, redelivered=False)
        self.fetch(queue)

    def fetch(self, queue: Queue) -> None:
        """Bring back the messages that are handed out next, if they are paged out and not on their way."""
        if queue.fetching or self.bodies is None:
            return
        messages = self._next_paged(queue)
        if messages:
            queue.fetch_begins()
            self.bodies.fetch(messages, partial(self._fetched, queue))

    def _next_paged(self, queue: Queue) -> list[Message]:
        """Those of the next two windows that are paged out, one window of them at most."""
        limits = self._limits
        messages: dict[int, Message] = {}
        octets = 0
        for entry in islice(queue.upcoming(2 * limits.window_messages), 2 * limits.window_messages):
            message = entry.message
            if message.body is self.bodies and entry.state == READY:  # others have left, and so may their records
                octets += message.size
                if messages and octets > limits.window_bytes:
                    break
                messages[id(message)] = message
                if len(messages) >= limits.window_messages:
                    break
        return list(messages.values())

    def _fetched(self, queue: Queue) -> None:
        queue.fetch_ends()
        if queue.deleted:
            return
        if queue.consumers:
            self.fetch(queue)
        self._state.schedule(queue)
        self._on_fetched()


def _nothing() -> None:
    pass
