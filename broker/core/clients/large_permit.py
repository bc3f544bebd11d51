"""LargePermit: which connection may hold more than its bound.

What a connection has received and what is not stable yet, octets of unfinished messages included, is bounded
(``limits.unstable_bytes_per_connection``, and ``limits.unstable_bytes`` for all connections together). A connection at
a bound is not read. A message that is larger than the bound could then never be received whole, and neither could any,
if the unfinished messages of many connections filled the bound of the broker. So one connection at a time has the
*permit*: it is read on whatever the bounds say, and what it holds does not count against the others, which go on.

    what is held <= unstable_bytes + MESSAGES_AT_ONCE * message_bytes + a read and 4 KiB of each connection

* A connection asks for the permit when a bound stops it in the middle of a message. Connections get the permit in the
  order in which they asked.
* A connection gives the permit back when it holds no more than its own bound again, so when its large message is
  stable. A connection that has large messages without end goes to the end of the line after each.
* While others wait, the connection with the permit has to get on: a connection that brings fewer than
  ``LEAST_BYTES`` in ``PATIENCE_MS`` is closed (506). So a client that falls silent in the middle of a message holds up
  the others for that time, and no longer. Neither does a client that is not read since it takes nothing of what it was
  sent. While nobody waits they harm nobody, and heartbeats find out whether they live.

Refused: reserving what a content header announces. A client would reserve 512 MiB with 40 octets. Refused, too: a
permit for each of several connections. The sum is what has to be bounded, and large messages share one disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from understudy.broker.core.turn.clock import Clock

PATIENCE_MS: Final = 10_000
LEAST_BYTES: Final = 1 << 20


class Holder(Protocol):
    """A connection (``Connection``), as far as the permit goes."""

    unstable_bytes: int
    unfinished_bytes: int
    paused: bool

    @property
    def waits_for_client(self) -> bool: ...
    def check_bounds(self) -> None: ...
    def stalled(self, size_bytes: int, waited_ms: int) -> None: ...


class LargePermit:
    """The permit of one broker.

    Attributes:
        holder: the connection that has the permit; None while no connection needs it.
        waiting: connections that have asked for it, in that order.
    """

    def __init__(self, clock: Clock, is_full: Callable[[], bool], has_room: Callable[[], None]) -> None:
        """``is_full``: the bound of all connections is reached. ``has_room``: called when it is not any more."""
        self.holder: Holder | None = None
        self.waiting: dict[Holder, None] = {}
        self._clock = clock
        self._is_full = is_full
        self._has_room = has_room
        self._since_ms = 0
        self._bytes = 0
        self._handing_on = False

    @property
    def held_bytes(self) -> int:
        """The octets that the connection with the permit holds: no part of what the others share."""
        holder = self.holder
        return holder.unstable_bytes + holder.unfinished_bytes if holder is not None else 0

    def ask(self, connection: Holder) -> bool:
        """True if ``connection``, which a bound stops in the middle of a message, has the permit; else it waits."""
        if self.holder is None and (not self.waiting or self._handing_on):
            self._give(connection)
        elif self.holder is not connection:
            self.waiting[connection] = None
        return self.holder is connection

    def _give(self, connection: Holder) -> None:
        was_full = self._is_full()
        self.waiting.pop(connection, None)
        self.holder = connection
        self._bytes = 0
        self._since_ms = self._clock.running_ms
        if was_full and not self._is_full():
            self._has_room()

    def release(self, connection: Holder) -> None:
        """``connection`` neither needs the permit nor waits for it: the next one has it, if there is one."""
        self.waiting.pop(connection, None)
        if self.holder is not connection:
            return
        self.holder = None
        if self._handing_on:
            return
        self._handing_on = True
        try:
            while self.holder is None and self.waiting:
                following = next(iter(self.waiting))
                del self.waiting[following]
                following.check_bounds()  # it asks again, if it still needs the permit
        finally:
            self._handing_on = False

    def received(self, size_bytes: int) -> None:
        """The connection with the permit has brought so much."""
        self._bytes += size_bytes

    def tick(self, now_ms: int) -> None:
        """Time in which this process ran has passed: close a connection that does not get on while others wait."""
        holder = self.holder
        if holder is None:
            return
        waits_for_broker = holder.paused and not holder.waits_for_client
        if not self.waiting or waits_for_broker or self._bytes >= LEAST_BYTES:
            self._since_ms = now_ms
            self._bytes = 0
        elif now_ms - self._since_ms >= PATIENCE_MS:
            holder.stalled(self._bytes, now_ms - self._since_ms)
