"""ReadinessLog: what a primary writes to its log about backups that are not ready, so that a long catch-up is not a silent one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.showing.events import BackupNotReady
from understudy.ha.store.coordination import BrokerId

LOG_EVERY_MS: Final = 5_000
"""So often a backup that is not ready is written of, if what blocks it has changed; and not before it has lasted so long."""


class ReadinessLog:
    """One primary's.

    Args:
        readiness: its backups' rows; asked for once in ``LOG_EVERY_MS``.
        tell: told the events.
    """

    def __init__(
        self, readiness: Callable[[], Iterable[BackupReadiness]], tell: Callable[[BackupNotReady], None]
    ) -> None:
        self._readiness = readiness
        self._tell = tell
        self._due_ms = 0
        self._told: dict[BrokerId, str] = {}

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Tell what has changed since the last time, if it is time."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + LOG_EVERY_MS
        before, self._told = self._told, {}
        for row in self._readiness():
            if row.is_ready or now_ms - row.since_ms < LOG_EVERY_MS:
                continue
            self._told[row.broker] = blockers = "; ".join(row.blockers())
            if before.get(row.broker) != blockers:
                self._tell(
                    BackupNotReady(
                        backup=row.broker,
                        listed=row.listed,
                        linked=row.linked,
                        since=row.since(now_ms, wall_ms),
                        blockers=blockers,
                    )
                )
