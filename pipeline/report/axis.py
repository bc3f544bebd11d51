"""Axis: the time that a feed covers, in at most `MOST_BUCKETS` buckets; and what the feed has at all."""

from __future__ import annotations

from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import known_ms
from understudy.pipeline.spark.errors import FeedError

MOST_BUCKETS: Final = 600
MOST_COUNTS: Final = 100_000
"""Rows of `counts`: groups, foundings, brokers and kinds of events, each with each."""
DAY_MS: Final = 86_400_000
_WIDTHS_MS: Final = (
    *(100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000),
)


@attrs.frozen(kw_only=True)
class Axis:
    """Buckets of equal width.

    Attributes:
        from_ms, to_ms: wall clock of the first and of the last event that has a time; ``from_ms <= to_ms``.
        width_ms: of a bucket, at least 100.
    """

    from_ms: int
    to_ms: int
    width_ms: int

    @property
    def buckets(self) -> int:
        """How many there are, at most `MOST_BUCKETS`."""
        return (self.to_ms - self.from_ms) // self.width_ms + 1

    def bucket(self, at_ms: Column) -> Column:
        """Number of the bucket, from 0."""
        return F.floor((at_ms - self.from_ms) / self.width_ms)

    def begin_ms(self, bucket: int) -> int:
        """Wall clock at which the bucket begins."""
        return self.from_ms + bucket * self.width_ms


def axis_between(from_ms: int, to_ms: int) -> Axis:
    """The narrowest round width that needs at most `MOST_BUCKETS` buckets."""
    least = max(1, to_ms - from_ms + 1) / MOST_BUCKETS
    width = next((each for each in _WIDTHS_MS if each >= least), None)
    if width is None:
        width = DAY_MS * max(1, -int(-least // DAY_MS))
    return Axis(from_ms=from_ms, to_ms=to_ms, width_ms=width)


@attrs.frozen(kw_only=True)
class Content:
    """Content of a feed.

    Attributes:
        group: id of the HA group.
        foundings: of the group, in hexadecimal, sorted.
        brokers: ids, sorted.
        counts: events by kind, the most frequent first.
        events: how many, of all kinds.
    """

    group: str
    foundings: list[str]
    brokers: list[str]
    counts: dict[str, int]
    events: int


def counts(events: DataFrame) -> DataFrame:
    """A row per group, founding, broker and kind of event: ``count``, ``from_ms``, ``to_ms`` (null: no time is known)."""
    at_ms = known_ms("at_ms")
    return events.groupBy("group", "founding", "broker", "event").agg(
        F.count("*").alias("count"), F.min(at_ms).alias("from_ms"), F.max(at_ms).alias("to_ms")
    )


def look(events: DataFrame) -> tuple[Content, Axis]:
    """Content of one group's feed, and the time that it covers. One pass.

    Raises:
        FeedError: the feed is empty, has no times, or has more than `MOST_COUNTS` rows of counts.
    """
    rows = counts(events).limit(MOST_COUNTS + 1).collect()
    if not rows:
        raise FeedError("the feed has no event")
    if len(rows) > MOST_COUNTS:
        raise FeedError(f"the feed has more than {MOST_COUNTS:,} pairs of broker and kind of event")
    timed = [row for row in rows if row["from_ms"] is not None]
    if not timed:
        raise FeedError("no event of the feed has a time")
    by_kind: dict[str, int] = {}
    for row in rows:
        by_kind[row["event"]] = by_kind.get(row["event"], 0) + row["count"]
    content = Content(
        group=rows[0]["group"],
        foundings=sorted({row["founding"] for row in rows} - {""}),
        brokers=sorted({row["broker"] for row in rows}),
        counts=dict(sorted(by_kind.items(), key=lambda each: (-each[1], each[0]))),
        events=sum(by_kind.values()),
    )
    return content, axis_between(min(row["from_ms"] for row in timed), max(row["to_ms"] for row in timed))
