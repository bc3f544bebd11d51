"""Health of one broker in its group: may it be promoted, and how far is it behind. Read off the core; decides nothing."""

from __future__ import annotations

from typing import Final

import attrs

from understudy.ha.following.backup import Backup
from understudy.ha.ha_broker import HaBroker
from understudy.ha.status import BrokerStatus


@attrs.frozen
class Blocker:
    """One reason why a broker may not be promoted: a kind of :data:`KINDS`, and the words for an operator."""

    kind: str
    text: str


KINDS_OF_A_CORE: Final = ("leads", "group", "store", "set", "empty", "journal", "lacks", "catch_up")
KINDS: Final = (*KINDS_OF_A_CORE, "core")
"""Kinds of blockers.

leads: the broker is the primary. group: no group is known. store: the coordination store is not reached, or has lost the
group. set: the broker is not in the in-sync set. empty: its data directory is. journal: it has not been compared with the
store. lacks: its log lacks records that another listed broker may hold. catch_up: a catch-up is unfinished. core: no core runs.
"""
RECOVERING: Final = "the core is being recovered"
"""Words for `core`: between two cores, and while the first one is recovered."""


def promotion_blockers(ha: HaBroker | None) -> list[Blocker]:
    """Why this broker may not be promoted now; empty if it may. None: no core runs."""
    if ha is None:
        return [Blocker("core", RECOVERING)]
    if ha.primary is not None:
        return [Blocker("leads", f"{ha.config.broker} is the primary")]
    backup = ha.backup
    if backup.group is None:
        return [Blocker("group", ha.without_group)]
    found = []
    if ha.stored.missing:
        found.append(Blocker("store", ha.stored.missing))
    elif backup.suspended:
        found.append(Blocker("store", "the coordination store is not reached"))
    if not backup.listed:
        members = ", ".join(backup.group.members)
        why = "; ".join(ha.blockers())
        found.append(Blocker("set", f"not in the in-sync set {{{members}}}" + (f": {why}" if why else "")))
    return found + _of_journal(backup, ha.replicator.part)


def _of_journal(backup: Backup, part: bool) -> list[Blocker]:
    """Blockers in the backup's own journal."""
    found = []
    if backup.wiped:
        found.append(Blocker("empty", "its data directory is empty, and it is in the in-sync set"))
    if not backup.judged:
        found.append(Blocker("journal", "its journal has not been compared with what the store says of it"))
    if backup.waits_for_more:
        found.append(Blocker("lacks", f"{backup.unfit}: another listed broker may hold that"))
    if part:
        found.append(Blocker("catch_up", "a catch-up is unfinished"))
    return found


def behind_records(ha: HaBroker) -> int | None:
    """By how many records a backup is behind its primary, as far as it was told; None if it is none, or has no link to it."""
    if ha.primary is not None or not ha.replicator.linked or ha.replicator.part:
        return None
    return ha.replicator.behind_records


def is_active(ha: HaBroker) -> bool:
    """True if this broker is the primary and serves."""
    return ha.primary is not None and ha.status is BrokerStatus.ACTIVE and not ha.stopped
