"""Sizes: log records that one fsync makes durable, and operations of a transaction."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.report.fields import percentiles

MOST_CLASSES: Final = 64
"""Classes of sizes: class ``n`` holds sizes ``2**n`` to ``2**(n+1) - 1``."""


def _size_class(size: Column) -> Column:
    """0 for 1, 1 for 2 and 3, 2 for 4 to 7, ..."""
    return F.floor(F.log2(F.greatest(size, F.lit(1)))).cast("int")


def sync_groups(batches: DataFrame) -> DataFrame:
    """A row per group of batches that a broker fsynced as one: ``broker``, ``batches``, ``records``.

    Args:
        batches: as `activity.appends` makes them.
    """
    return batches.groupBy("broker", "incarnation", "sync").agg(
        F.count("*").alias("batches"), F.sum("count").alias("records")
    )


def sync_histogram(groups: DataFrame) -> DataFrame:
    """A row per ``broker`` and ``size_class`` of records: ``count``. At most `MOST_CLASSES` rows a broker."""
    return groups.groupBy("broker", _size_class(F.col("records")).alias("size_class")).count()


def sync_figures(groups: DataFrame) -> DataFrame:
    """A row per ``broker``: ``groups``, ``records``, ``size`` (p50, p95, p99 of records), ``max_size``."""
    return groups.groupBy("broker").agg(
        F.count("*").alias("groups"),
        F.sum("records").alias("records"),
        percentiles(F.col("records")).alias("size"),
        F.max("records").alias("max_size"),
    )


def operation_histogram(transactions: DataFrame) -> DataFrame:
    """A row per ``size_class`` of operations: ``count`` of closed transactions."""
    closed = transactions.where(F.col("operations") > 0)
    return closed.groupBy(_size_class(F.col("operations")).alias("size_class")).count()
