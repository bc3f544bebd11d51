"""HaFacts: what the HA plugin tells the event feed: roles, links, the in-sync set, who is ready and what blocks that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.broker.core.watching.facts import Facts
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.showing.events import (
    BrokerBarred,
    HaEvent,
    SetChanged,
    StatusChanged,
    TrackerAdded,
    TrackerCleared,
    TransactionRefused,
)
from understudy.ha.status import BrokerStatus
from understudy.replicator.fabric import Link

LOOK_MS: Final = 500
"""So often a primary's backups are looked at. What lasted less long is told by links, set and trackers alone."""
BLOCKERS_AT_MOST: Final = 20
_LEADING: Final = (BrokerStatus.RECOVERING.value, BrokerStatus.ACTIVE.value)


class HaFacts:
    """Of one broker process, whose cores come and go.

    Args:
        facts: where they are told.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._links: dict[Link, None] = {}
        self._role = ""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._due_ms = 0

    def founding(self, founding: int) -> None:
        """The group's."""
        self._facts.founded_as(f"{founding:x}" if founding else "")

    def happened(self, event: HaEvent, min_insync: int) -> None:
        """A core has told this. Events that are of no interest to the feed are passed over."""
        tell = self._facts.tell
        if isinstance(event, StatusChanged):
            self._status(event)
        elif isinstance(event, SetChanged):
            tell("in_sync", members=",".join(event.in_sync), min_insync=min_insync)
            for broker in event.left:
                tell("expel", backup=broker, reason=event.reason, data="lost" if broker in event.lost else "whole")
            for broker, acked in zip(event.joined, event.acked, strict=True):
                tell(
                    "admit",
                    backup=broker,
                    acked=acked,
                    catches_up=broker in event.catching_up,
                    stable=event.stable,
                )
        elif isinstance(event, BrokerBarred):
            tell("bar", backup=event.barred, by=event.by, lifted=event.lifted)
        elif isinstance(event, TransactionRefused):
            tell(
                "vote",
                tx=self._facts.tx_text(event.tx),
                vote="failed",
                prepare_offset=event.prepare_offset,
                reason=event.reason,
                backup=event.backup,
            )
        elif isinstance(event, TrackerAdded):
            tell(
                "tracker_add", tx=self._facts.tx_text(event.tx), backup=event.backup, queue=event.queue, left=event.left
            )
        elif isinstance(event, TrackerCleared):
            tell("tracker_clear", tx=self._facts.tx_text(event.tx), backup=event.backup)

    def _status(self, event: StatusChanged) -> None:
        tell = self._facts.tell
        role, was = "primary" if event.status in _LEADING else "backup", self._role
        if role != was:
            self._role = role
            if role == "primary":
                tell("promote", was=was)
            tell("role", role=role, was=was, primary=event.primary)
        tell(
            "status",
            status=event.status,
            was=event.was,
            primary=event.primary,
            listed=event.listed,
            stable=event.stable,
        )

    def step_down(self, reason: str, successor: str = "") -> None:
        """A primary's core is to be dropped; it has handed over to ``successor``, if an operator wanted that."""
        self._facts.tell("step_down", reason=reason, successor=successor)

    def link_up(self, link: Link) -> None:
        self._links[link] = None
        self._facts.tell("link_up", peer=link.peer)

    def link_down(self, link: Link, reason: str) -> None:
        """Said once, whoever has ended it."""
        if link in self._links:
            del self._links[link]
            self._facts.tell("link_down", peer=link.peer, reason=reason)

    def look_at_links(self, is_closed: Callable[[Link], bool]) -> None:
        """Of a link that this end closes nothing more is heard: look for those, now and then."""
        for link in [each for each in self._links if is_closed(each)]:
            self.link_down(link, "closed by this broker")

    def is_due(self, now_ms: int) -> bool:
        """True if a primary's backups are to be looked at; the next time is then set."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + LOOK_MS
        return True

    def look(self, rows: list[BackupReadiness]) -> None:
        """Tell of each backup whose readiness is another than before; numbers that get smaller alone are no change."""
        before, self._seen = self._seen, {}
        for row in rows:
            blockers = _blockers(row)
            seen = (row.is_ready, row.listed, row.linked, *((what, queue, tx) for what, queue, tx, _ in blockers))
            self._seen[row.broker] = seen
            if before.get(row.broker) == seen:
                continue
            self._facts.tell(
                "readiness",
                backup=row.broker,
                ready=row.is_ready,
                listed=row.listed,
                linked=row.linked,
                blockers=len(blockers),
            )
            for what, queue, tx, left in blockers:
                text = self._facts.tx_text(tx) if tx else ""
                self._facts.tell("blocker", backup=row.broker, what=what, queue=queue, tx=text, left=left)


def _blockers(row: BackupReadiness) -> list[tuple[str, str, str, int]]:
    """(what, queue, transaction, left)."""
    if row.is_ready:
        return []
    found = [(what, "", "", 0) for what, on in row.counts().items() if on and what in ("unlinked", "leaving", "set")]
    found += [("queue", queue, "", left) for queue, left in row.queues]
    found += [("transaction", queue, tx, left) for tx, queue, left in row.transactions]
    found += [("tx_queue", queue, tx, left) for tx, queue, left in row.tx_queues]
    if row.counts()["lag"]:
        found.append(("lag", "", "", row.lag_records))
    return found[:BLOCKERS_AT_MOST]
