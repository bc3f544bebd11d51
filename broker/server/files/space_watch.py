"""SpaceWatch: says that the disk is nearly full before it is. What is under way may use the reserve.

What a core does about it is the core's business: one that leads refuses new work, one that follows tells the one that leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from understudy.broker.log.journal import Journal

MIB: Final = 1 << 20
TOLD_AGAIN_FRACTION: Final = 16
"""The free space is stated anew when it has changed by one part in so many of what is needed: clients are told of each change."""

_log: Final = structlog.get_logger()


class SpaceWatch:
    """Looks at the free space of one journal for one core.

    Args:
        directory: named in the reason.
        journal: its reserve knows how much must be free.
        tell: the core (``BrokerNode.disk_low``): told why, and for how much there would be room without this journal, at each
            look while it is low, and "" once when it is over.
    """

    def __init__(self, directory: str, journal: Journal, tell: Callable[[str, int], None]) -> None:
        self._directory = directory
        self._journal = journal
        self._reserve = journal.reserve
        self._tell = tell
        self._low = False
        self._reason = ""
        self._stated: tuple[int, int] = (0, 0)

    @property
    def is_due(self) -> bool:
        """True if the journal ran out of room since the last look: a second of new work may exceed what it gave up for it."""
        return self._reserve.low_space and not self._low

    def look(self) -> None:
        """A few system calls; once a second is plenty, unless it is due."""
        before, self._low = self._low, self._reserve.check_space()
        if self._low:
            self._state(self._reserve.free_bytes, self._reserve.enough_bytes)
        if self._low and not before:
            _log.warning("little disk space", reason=self._reason)
        elif before and not self._low:
            free, enough = self._reserve.free_bytes, self._reserve.enough_bytes
            _log.warning("enough disk space again", reason=f"disk space in {self._directory}: {_numbers(free, enough)}")
        if self._low:
            self._tell(self._reason, self._journal.room_if_begun_anew())
        elif before:
            self._tell("", -1)

    def _state(self, free: int, enough: int) -> None:
        stated_free, stated_enough = self._stated
        if enough != stated_enough or abs(free - stated_free) * TOLD_AGAIN_FRACTION >= enough:
            self._stated = (free, enough)
            self._reason = f"disk space in {self._directory} is below the reserve: {_numbers(free, enough)}"


def _numbers(free: int, enough: int) -> str:
    return f"{_mib(free)} MiB free, {_mib(enough)} MiB needed (journal.reserve_bytes)"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.{0 if size_bytes >= 10 * MIB else 1}f}"
