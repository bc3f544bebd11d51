"""Columns of the event table, as `feed.schema.filled` gives it: a field that an event does not have is 0, "" or False."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

PERCENTILES: Final = (0.5, 0.95, 0.99)
ACCURACY: Final = 10_000
"""Of ``percentile_approx``: the rank is wrong by at most one part in so many."""


def is_event(*names: str) -> Column:
    """True for rows of these events."""
    return F.col("event").isin(*names)


def of(name: str, value: Column) -> Column:
    """``value`` in rows of event ``name``, else null: aggregates pass over it."""
    return F.when(F.col("event") == name, value)


def known_ms(name: str) -> Column:
    """A wall clock in ms; null instead of 0, which means that it is not known."""
    return F.nullif(F.col(name), F.lit(0))


def percentiles(value: Column) -> Column:
    """Array of p50, p95 and p99; memory is bounded by `ACCURACY`, whatever the number of rows."""
    return F.percentile_approx(value, list(PERCENTILES), ACCURACY)


def numbers(values: Sequence[Any] | None) -> list[float]:
    """The array of `percentiles` in the driver; zeros if there was no row."""
    return [float(each) for each in values] if values else [0.0] * len(PERCENTILES)
