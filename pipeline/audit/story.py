"""The story of a violation: all events of its transaction, or of its message, on all brokers, in the order of the log, a line each.

epoch/offset  clock         broker  event     what it says
2/1042        12:03:04.567  b2      commit    tx 3.17, csn 95
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed.schema import EVENT, HEAD, columns, defaults

LINES: Final = 120
"""So many events of one story are shown; the first and the last of a larger one."""
_RECORDS: Final = ("enqueue", "dequeue", "prepare", "commit", "rollback", "epoch", "cut", "confirm", "told")
_HIDDEN: Final = frozenset((EVENT, *HEAD, "vhost", "queue_id", "durable_digest", "durable_events", "primary_ms", "tx"))
_SHOWN: Final = tuple(name for name in columns() if name not in _HIDDEN)


def events_of(feed: DataFrame, violation: Mapping[str, Any]) -> DataFrame:
    """All events that a violation is about: of its transaction; of its message; else at its offset."""
    conditions: list[Column] = []
    if violation["tx"]:
        conditions.append(F.col("tx") == violation["tx"])
    if violation["id"]:
        of_message = (F.col("id") <= violation["id"]) & (violation["id"] < F.col("id") + F.greatest("count", F.lit(1)))
        conditions.append(of_message & (F.col("queue") == violation["queue"]))
    if not conditions:
        near = F.col("offset").between(violation["offset"] - 1, violation["offset"] + 1)
        conditions.append(near & F.col("event").isin(*_RECORDS))
    wanted = conditions[0]
    for each in conditions[1:]:
        wanted |= each
    if violation["founding"]:
        wanted = reduce(and_, (wanted, F.col("founding") == violation["founding"]))
    return feed.filter(wanted)


def story(feed: DataFrame, violation: Mapping[str, Any], limit: int = LINES) -> list[str]:
    """The lines; at most ``limit``, with a line that says how many are left out."""
    found = events_of(feed, violation).select(EVENT, *HEAD, *_SHOWN, "primary_ms")
    order = ("offset", "epoch", "at_ms", "broker", "incarnation", "seq")
    rows = found.orderBy(*order).limit(limit + 1).collect()
    lines = [_line(row.asDict()) for row in rows[:limit]]
    if len(rows) > limit:
        lines.append(f"... and more; all are in the feed ({found.count()} events)")
    return lines


def _line(event: Mapping[str, Any]) -> str:
    without = defaults()
    words = [
        f"{name.replace('_', ' ')} {_value(event[name])}"
        for name in _SHOWN
        if event[name] != without[name] or (name == "redelivered" and event[EVENT] == "deliver")
    ]
    place = f"{event['epoch']}/{event['offset']}"
    clock = _clock(event["at_ms"] or event["primary_ms"] or 0)
    return f"{place:<14} {clock:<12}  {event['broker']:<6} {event[EVENT]:<13} {', '.join(words)}".rstrip()


def _value(value: Any) -> str:
    """A client chose some of these texts: what a terminal would obey is not printed."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.isprintable() else repr(text)


def _clock(at_ms: int) -> str:
    if not at_ms:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
