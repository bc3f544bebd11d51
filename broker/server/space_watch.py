"""SpaceWatch: says that the disk is nearly full before it is (DESIGN 9). What is under way may use the reserve.

What a core does about it is the core's business: alone or as a primary it refuses new work, as a backup it tells its primary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from understudy.broker.log.storage import Reserve

_log: Final = structlog.get_logger()


class SpaceWatch:
    """Looks at the free space of one journal for one core.

    Args:
        directory: named in the reason.
        reserve: knows how much must be free.
        tell: the core (``BrokerNode.disk_low``): told why at each look while it is low, and "" once when it is over.
    """

    def __init__(self, directory: str, reserve: Reserve, tell: Callable[[str], None]) -> None:
        self._reason = f"disk space in {directory} is below the reserve"
        self._reserve = reserve
        self._tell = tell
        self._low = False

    @property
    def is_due(self) -> bool:
        """Whether the journal ran out of room since the last look: a second of new work may be more than what it gave up for it."""
        return self._reserve.low_space and not self._low

    def look(self) -> None:
        """One system call; once a second is plenty, unless it is due."""
        before, self._low = self._low, self._reserve.check_space()
        if self._low != before:
            _log.warning("little disk space" if self._low else "enough disk space again", reason=self._reason)
        if self._low or before:
            self._tell(self._reason if self._low else "")
