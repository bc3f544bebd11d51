"""States anew, in rows of a feed that were changed, how many events each incarnation has, and their digest.

For feeds that tests make, or join: what a test changes would else be a row that was not written so, and not what the row says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from understudy.observers.events_schema import BY_NAME, DEFAULTS, Event, P
from understudy.observers.feed.event_digest import digest_of

_OF_TESTS: Final = ("event", "k", "step")
"""Keys of test rows beside an event's fields: see `made_rows`."""


def event_of(row: Mapping[str, Any]) -> Event:
    """A row as the event that it is. Other columns than the event's are left out. What it lacks counts as nothing."""
    kind = BY_NAME[row["event"]]
    fields = {name: row[name] for name in kind.__struct_fields__ if row.get(name) is not None}
    return kind(**{**_nothing(row["event"]), **fields})


@cache
def _nothing(event: str) -> Mapping[str, Any]:
    """Of the fields that an event must have, values that count as nothing. Asking a struct for its fields takes long."""
    return {
        field.name: "" if field.type is str else field.type(DEFAULTS.get(field.name, 0))
        for field in msgspec.structs.fields(BY_NAME[event])
        if field.default is msgspec.NODEFAULT
    }


def digests(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """By (broker, incarnation): the digest of its rows. Those that stand there twice count once."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    seen: set[tuple[str, str, int]] = set()
    for row in rows:
        place = row["broker"], row["incarnation"]
        if row["event"] in ("gap", "end") or (*place, row["seq"]) in seen:
            continue
        seen.add((*place, row["seq"]))
        found[place] = (found[place] + digest_of([event_of(row)])) % P
    return found


def restated(
    rows: Iterable[Mapping[str, Any]], beside: Mapping[tuple[str, str], int] | None = None
) -> list[dict[str, Any]]:
    """``rows``, of which `segment` and `end` state the digests of what stands there. Batches state none.

    Args:
        rows: of a feed.
        beside: digests of rows that are in the feed as well, by (broker, incarnation).
    """
    rows = [_without_digest(row) for row in rows]
    found = digests(rows)
    for stream, digest in (beside or {}).items():
        found[stream] = (found.get(stream, 0) + digest) % P
    return stated(rows, found)


def _without_digest(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A batch that states no digest of the events before it."""
    return {name: value for name, value in row.items() if name != "event_digest"} if row["event"] == "append" else row


def stated(rows: Iterable[Mapping[str, Any]], found: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """``rows``, of which `segment` and `end` state the digests ``found``, with the fields that their events have."""
    changed = []
    for row in rows:
        fields = (*_OF_TESTS, *BY_NAME[row["event"]].__struct_fields__)
        row = {name: value for name, value in row.items() if name in fields}  # noqa: PLW2901
        if row["event"] == "segment" and row.get("previous"):
            row["previous_event_digest"] = found.get((row["broker"], row["previous"]), 0)
        elif row["event"] == "end":
            row["event_digest"] = found.get((row["broker"], row["incarnation"]), 0)
        changed.append(row)
    return changed


def closed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``rows``, with an `end` of each incarnation that no segment follows, and digests stated anew: as if they were read so."""
    kept = [row for row in rows if row["event"] != "end"]
    followed = {(row["broker"], row["previous"]) for row in kept if row["event"] == "segment" and row.get("previous")}
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in kept:
        place = row["broker"], row["incarnation"]
        if row["seq"] and place not in followed and row["seq"] > last.get(place, {"seq": 0})["seq"]:
            last[place] = row
    heads = ("schema", "group", "founding", "broker", "incarnation", "epoch", "offset", "at_ms")
    ends = [
        {**{name: row[name] for name in heads}, "event": "end", "step": "end", "k": -1, "seq": 0, "events": row["seq"]}
        for row in last.values()
    ]
    return restated([*kept, *ends])
