"""Records of a transaction's life in the status file, and the entries that they make."""

from __future__ import annotations

import copy

from understudy.xa.core.register.entry import (
    Attempted,
    Begun,
    Decided,
    Ended,
    Entry,
    Joined,
    Met,
    Record,
    StartedBy,
    apply,
)


def entry(number: int) -> Entry:
    return Entry(
        gid=f"{number:064x}",
        job="job",
        profile="shop",
        fingerprint="f" * 32,
        resources=["bank", "queues"],
        began_ms=1_700_000_000_000,
    )


def life(number: int) -> list[Record]:
    gid = f"{number:064x}"
    return [
        Begun(entry(number)),
        StartedBy(gid, {"bank": 0, "queues": 0}),
        Joined(gid, "third"),
        Decided(gid),
        Attempted(gid, 1, "bank: RMFAIL", parked=True),
        Met(gid, {"bank": 8}),
        Ended(gid),
    ]


def states(records: list[Record]) -> list[dict[str, Entry]]:
    """The entries after each number of records."""
    found: list[dict[str, Entry]] = [{}]
    for record in records:
        found.append(copy.deepcopy(found[-1]))
        apply(found[-1], copy.deepcopy(record))
    return found
