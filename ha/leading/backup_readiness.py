"""BackupReadiness: what is between one backup and being ready, as its primary sees it.

`is_ready` is the rule. The blockers, in words, numbers and facts of the feed, explain it, and decide nothing.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from understudy.ha.status import since_text

NAMED_AT_MOST: Final = 3
"""So many queues, and so many transactions, are named."""
SHOWN_AT_MOST: Final = 100
"""So many queues of a catch-up are on the status page."""
KINDS: Final = ("unlinked", "leaving", "barred", "queue", "tx_queue", "tracker", "catch_up", "lag", "set")
"""Of blockers."""


@attrs.frozen(kw_only=True)
class BackupReadiness:
    """For status, the store and the feed.

    Attributes:
        ever_linked: to this primary.
        running: False if the store says that it is not.
        lag_records: log records that it has not acknowledged; of one that is neither listed nor linked, those beyond the
            position that it has shown last.
        lag_bytes: octets of log that it has not acknowledged; None while the log does not flow to it.
        queues: (queue name, messages left) of its catch-up.
        transactions: (transaction id, queue name, ids left) that it lacks of closed transactions: its trackers.
        tx_queues: (transaction id, name of its tx-queue, events left) of transactions, open or closed, that are being sent; an
            event may hold many ids.
        since_ms: monotonic time of its present link, or of losing it; without either, of this primary's beginning to know it.
        leaving: why it is to be expelled, "" if it is not.
        expelled: why this primary has expelled it, "" if it has not.
        barred: that an operator keeps it out of the in-sync set, and since when; "" if none does.
    """

    broker: str
    listed: bool
    linked: bool
    ever_linked: bool = True
    running: bool = True
    catching_up: bool = False
    guarded: bool = False
    lag_records: int
    lag_bytes: int | None = None
    queues: tuple[tuple[str, int], ...] = ()
    transactions: tuple[tuple[str, str, int], ...] = ()
    tx_queues: tuple[tuple[str, str, int], ...] = ()
    since_ms: int
    leaving: str = ""
    expelled: str = ""
    barred: str = ""

    def shown(self, now_ms: int, wall_ms: int) -> dict[str, Any]:
        """Its row on the primary's status page."""
        return {
            "records": self.lag_records,
            "listed": self.listed,
            "linked": self.linked,
            "running": self.running,
            "catching_up": self.catching_up,
            "queues": [{"queue": name, "left": left} for name, left in self.queues[:SHOWN_AT_MOST]],
            "queues_left_out": max(0, len(self.queues) - SHOWN_AT_MOST),
            "transactions": [
                {"tx": tx, "queue": name, "left": left} for tx, name, left in (*self.transactions, *self.tx_queues)
            ],
            "since": self.since(now_ms, wall_ms),
            "since_s": round((now_ms - self.since_ms) / 1000, 3),
            "blockers": self.blockers(),
        }

    def since(self, now_ms: int, wall_ms: int) -> str:
        """``since_ms`` by the wall clock."""
        return since_text(wall_ms - now_ms + self.since_ms)

    def blockers(self) -> list[str]:
        """In words: what has to come before the backup is ready; empty if and only if it is."""
        if self.is_ready:
            return []
        if self.barred:
            return [self.barred]
        found = []
        if self.leaving:
            found = [f"is to leave the in-sync set: {self.leaving}" if self.listed else self.leaving]
        if not self.linked:
            return found + self._unlinked()
        if self.leaving:
            return found
        return self._lacking() or ["waits to be added to the in-sync set"]

    @property
    def is_ready(self) -> bool:
        """The rule of readiness: listed and linked, with no reason to leave the set, and not barred."""
        return self.listed and self.linked and not self.leaving and not self.barred

    def counts(self) -> dict[str, int]:
        """Number of things that keep the backup from being ready, by kind; 0 for kinds that do not apply.

        A backup that is ready may still be sent transient messages after its restart: they promise nothing, and block nothing.
        """
        if self.is_ready:
            return dict.fromkeys(KINDS, 0)
        lacks = self.linked and not self.leaving and not self.listed
        counted = (
            *(int(not self.linked), int(bool(self.leaving)), int(bool(self.barred))),
            *(len(self.queues), len(self.tx_queues), len(self.transactions)),
            *(int(lacks and self.catching_up), int(lacks and self.lag_records > 0), int(lacks and not self._lacking())),
        )
        return dict(zip(KINDS, counted, strict=True))

    def _unlinked(self) -> list[str]:
        found = "its link is lost" if self.listed and self.ever_linked else "it is not linked"
        if not self.running:
            found += ", and the store says that it is not running"
        if self.listed or self.guarded:
            found += ": completions wait for it"
        return [found, f"it was expelled from the in-sync set: {self.expelled}"] if self.expelled else [found]

    def _lacking(self) -> list[str]:
        found = [f"queue {name!r}: {left} messages to come" for name, left in self.queues[:NAMED_AT_MOST]]
        if len(self.queues) > NAMED_AT_MOST:
            rest = sum(left for _, left in self.queues[NAMED_AT_MOST:])
            found.append(f"{len(self.queues) - NAMED_AT_MOST} more queues: {rest} messages to come")
        for what, rows in (("events", self.tx_queues), ("ids", self.transactions)):
            found += [
                f"transaction {tx}: {left} {what} of queue {name!r} to come" for tx, name, left in rows[:NAMED_AT_MOST]
            ]
            if len(rows) > NAMED_AT_MOST:
                found.append(f"{len(rows) - NAMED_AT_MOST} more queues of transactions")
        if not found and self.catching_up:
            found = ["catching up"]
        if self.lag_records:
            found.append(f"{self.lag_records} log records behind")
        return found
