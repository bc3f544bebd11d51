"""UnstableBytes: the octets that all connections together have brought and that are not stable, and their bound."""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.clients.large_permit import LargePermit
from understudy.broker.core.limits import Limits
from understudy.broker.core.turn.clock import Clock


class UnstableBytes:
    """One per core.

    Attributes:
        held: those octets.
        permit: of the one connection that may hold more than its bound; what it holds is no part of what the others share.
    """

    def __init__(self, limits: Limits, clock: Clock, has_room: Callable[[], None]) -> None:
        """``has_room``: called when the bound is not reached any more."""
        self.held = 0
        self.permit = LargePermit(clock, lambda: self.full, has_room)
        self._limits = limits
        self._has_room = has_room

    def keeps(self, size_bytes: int) -> None:
        """So many more octets are kept until they become stable; negative: so many fewer that bounded nothing."""
        self.held += size_bytes

    def settled(self, size_bytes: int) -> None:
        """So many octets need no longer be kept for becoming stable; connections that wait for that go on."""
        if self.held <= self._limits.unstable_bytes:  # so it was not full
            self.held -= size_bytes
            return
        before = self.full
        self.held -= size_bytes
        if before and not self.full:
            self._has_room()

    @property
    def full(self) -> bool:
        """True if `held` is more than the limit, without what the connection with the permit holds."""
        return self.held - self.permit.held_bytes > self._limits.unstable_bytes
