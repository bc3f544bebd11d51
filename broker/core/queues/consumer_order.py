"""ConsumerOrder: which consumers of a queue are served, if they are not all alike.

*Priorities* (``x-priority``, 0 if a consumer has none): of the consumers that can take a message, those with the highest priority
are served, in turn. A lower one is served only while no higher one can take. A consumer cannot if its prefetch count is reached, or
if its client reads too slowly.

*A single active consumer* (``x-single-active-consumer`` of the queue): one consumer at a time is served, even if it can take
nothing now. That is the first that subscribed, of those with the highest priority. It stays so until it is cancelled or its channel
ends. If a consumer of a higher priority subscribes, the active one gets nothing more. The other takes over when the active one has
settled all that it holds. So no two consumers work at the same time, but for what a cancelled one has not settled.

A queue without either has no such object, and serves its consumers in turn (`Broker._serve`).

Source: RabbitMQ 4.3, consumer priorities; consumers, single active consumer (of quorum queues: a classic queue heeds no priorities
there).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.broker.core.queues.consumer import Consumer

_NOBODY: tuple[deque[Consumer], ...] = ()


class ConsumerOrder:
    """Of one queue.

    Attributes:
        single: one consumer at a time is served.
    """

    __slots__ = ("_active", "_levels", "_lines", "single")

    def __init__(self, consumers: Iterable[Consumer], *, single: bool) -> None:
        """``consumers``: those that are there, in the order in which they are to be served."""
        self.single = single
        self._active: Consumer | None = None
        self._levels: dict[int, deque[Consumer]] = {}
        self._lines = _NOBODY
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> None:
        """``consumer`` has subscribed."""
        level = self._levels.get(consumer.priority)
        if level is None:
            level = self._levels[consumer.priority] = deque()
            self._put_in_order()
        level.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """``consumer`` is cancelled."""
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
            self._put_in_order()
        if consumer is self._active:
            self._active = None

    def _put_in_order(self) -> None:
        self._lines = tuple(self._levels[priority] for priority in sorted(self._levels, reverse=True))

    def lines(self) -> tuple[deque[Consumer], ...]:
        """The consumers that may be served now, in lines. A line is served only when no consumer of those before it can take."""
        if not self.single:
            return self._lines
        active = self.active
        return _NOBODY if active is None else (deque((active,)),)

    @property
    def active(self) -> Consumer | None:
        """The single active consumer; None if there is none, or it has still to settle what it holds before another takes over."""
        if not self.single or not self._lines:
            return None
        first = self._lines[0][0]
        active = self._active
        if active is None or (first.priority > active.priority and not active.unacked):
            active = self._active = first
        return active if active.priority >= first.priority else None

    def may_take(self, consumer: Consumer) -> bool:
        """True if ``consumer`` may be served now at all."""
        return not self.single or consumer is self.active
