"""AbsentBackups: brokers that the primary neither waits for nor sends anything: not in the set and not linked.

They are shown all the same, since somebody wants them back: since when they are away, whether they run, why they were expelled.
"""

from __future__ import annotations

from collections.abc import Container

from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.store.coordination import BrokerId, BrokerInfo


class AbsentBackups:
    """One epoch's; ``primary`` is who leads. It may know brokers that are there: whoever asks says who is."""

    def __init__(self, primary: BrokerId) -> None:
        self._primary = primary
        self._known: dict[BrokerId, BrokerInfo] = {}
        self._since_ms: dict[BrokerId, int] = {}
        self._expelled: dict[BrokerId, str] = {}

    def known(self, brokers: dict[BrokerId, BrokerInfo], now_ms: int) -> None:
        """The store knows these; whoever it knows no more, and who was not expelled, is forgotten."""
        self._known = brokers
        names = {*brokers, *self._expelled} - {self._primary}
        self._since_ms = {name: self._since_ms.get(name, now_ms) for name in names}

    def runs(self, broker: BrokerId) -> bool:
        """True if the store shows that ``broker`` runs."""
        info = self._known.get(broker)
        return info is not None and info.alive

    def gone(self, broker: BrokerId, since_ms: int) -> None:
        """A joiner is forgotten, which has had no link since then."""
        self._since_ms[broker] = since_ms

    def expelled(self, broker: BrokerId, reason: str) -> None:
        """This primary has expelled it."""
        self._expelled[broker] = reason

    def listed(self, broker: BrokerId) -> None:
        """Note that the broker is in the set (again)."""
        self._expelled.pop(broker, None)

    def readiness(self, present: Container[BrokerId], log_end: int) -> list[BackupReadiness]:
        """Of those that are not ``present``; ``log_end`` is the primary's."""
        found = []
        for broker, since_ms in self._since_ms.items():
            if broker not in present:
                info = self._known.get(broker)
                found.append(
                    BackupReadiness(
                        broker=broker,
                        listed=False,
                        linked=False,
                        running=info is None or info.alive,
                        lag_records=max(0, log_end - (info.position if info is not None else 0)),
                        since_ms=since_ms,
                        expelled=self._expelled.get(broker, ""),
                    )
                )
        return found
