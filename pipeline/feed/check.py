"""Is it a feed at all, and one feed? What is wrong is named, and is never taken for a feed in which nothing is violated.

A feed without events, of two groups, of a newer program, or with lines that are no events, is none that anything is said about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import attrs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed.schema import EVENT, EVENT_NAMES, HEAD, SCHEMA
from understudy.pipeline.feed.source import CORRUPT, JSON_LINES, ORIGIN
from understudy.pipeline.spark.errors import FeedError

_LOCAL: Final = re.compile(r"^file:/+")
"""How Spark begins the address of a local file: with one slash, or three."""
_MOST: Final = 1 << 14
"""Characters of a line that is no event."""
_FILE: Final = re.compile(r"(?:file:)?(/[^\s,'\"]+\.(?:jsonl|parquet))")


@attrs.frozen(kw_only=True)
class FeedSummary:
    """Summary of a feed, from one look at all rows.

    Attributes:
        group: id of the HA group.
        events: how many.
        brokers: whose feeds they are, sorted.
    """

    group: str
    events: int
    brokers: tuple[str, ...]


def check_feed(feed: DataFrame, where: str) -> FeedSummary:
    """Look at all rows once.

    Args:
        feed: of `read_files` or `read_kafka`.
        where: what to call it in messages.

    Raises:
        FeedError: it is empty, holds events of two groups, of a newer program, or what is no event.
    """
    with feed_errors(where):
        (row,) = feed.agg(*summary_columns(), F.collect_set("broker").alias("brokers")).collect()
    raise_if_unreadable(row, where)
    return FeedSummary(group=row["groups"][0], events=row["events"], brokers=tuple(sorted(row["brokers"])))


def summary_columns() -> list[Column]:
    """Aggregates that `raise_if_unreadable` reads; their size does not grow with the feed."""
    known = F.col("event").isin(*EVENT_NAMES)
    return [
        F.count(F.lit(1)).alias("events"),
        F.collect_set("group").alias("groups"),
        F.max("schema").alias("newest"),
        F.min(F.when(~known, F.col("event"))).alias("unknown"),
        F.count_if(is_broken()).alias("broken"),
        *broken_columns(),
    ]


def is_broken() -> Column:
    """True if a row is no event: its text cannot be read, or it lacks a field that every event has."""
    return reduce(or_, (F.col(name).isNull() for name in (EVENT, *HEAD)), F.col(CORRUPT).isNotNull())


def broken_columns() -> list[Column]:
    """Aggregates that say where the first row is that is no event, and what it holds."""
    return [
        F.min(F.when(is_broken(), F.struct(ORIGIN, F.substring(CORRUPT, 1, _MOST)))).alias("broken_at"),
    ]


def raise_if_unreadable(row: Row, where: str) -> None:
    """Raises: FeedError: as `check_feed`; ``row`` has the `summary_columns`."""
    if not row["events"]:
        raise FeedError(f"{where}: the feed is empty")
    if row["broken"]:
        raise FeedError(
            f"{where}: {row['broken']} lines are no events, the first of them in {_place_of(*row['broken_at'])}: "
            f"{(row['broken_at'][1] or 'the line lacks what every event has')[:120]!r}. A file may be truncated."
        )
    if row["newest"] > SCHEMA:
        raise FeedError(f"{where} holds events of schema {row['newest']}; this program reads up to schema {SCHEMA}")
    if row["unknown"] is not None:
        raise FeedError(
            f"{where} holds the event {row['unknown']!r}, which this program does not know: run the newer one"
        )
    groups = sorted(row["groups"])
    if len(groups) > 1:
        raise FeedError(f"{where} holds feeds of {len(groups)} groups: {', '.join(groups[:5])}; give one of them")


@contextmanager
def feed_errors(where: str) -> Iterator[None]:
    """Turn errors that Spark raises while it reads a feed into a `FeedError` that names the file or the topic.

    Also errors that are known by no name here, such as a full disk, or Java that has ended: no verdict follows from it.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error)
        if "UnknownTopicOrPartition" in said:
            raise FeedError(f"{where}: Kafka has no such topic") from error
        file = _FILE.search(said)
        if file is not None and (
            "FAILED_READ_FILE" in said or "PATH_NOT_FOUND" in said or "not a Parquet file" in said
        ):
            raise FeedError(f"{where}: {file[1]} cannot be read: damaged, truncated, or gone") from error
        if "org.apache.kafka" in said or "kafka010" in said:
            raise FeedError(f"{where}: Kafka refused or did not answer: {spark_said(error)}") from error
        raise FeedError(f"{where}: Spark did not come to the end: {spark_said(error)}") from error


def spark_said(error: Exception) -> str:
    """The words of an error of Spark, without its Java stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return " ".join(lines[:3])[:400] or type(error).__name__


def _place_of(origin: str | None, text: str | None) -> str:
    """The file, and the line in it that is ``text``, or that lacks what every event has; of Kafka the partition."""
    path = unquote(_LOCAL.sub("/", origin or "?"))
    if not path.endswith(JSON_LINES):
        return path
    with suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.rstrip("\n")[:_MOST] == text if text is not None else _lacks_head(line):
                return f"{path}, line {number}"
    return path


def _lacks_head(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and any(found.get(name) is None for name in (EVENT, *HEAD))
