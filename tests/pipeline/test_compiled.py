"""Java's compiler passes over methods of more than 8,000 bytes: a plan with such a method runs ten times as long.

So the plans that read all rows of a feed stay below that. Spark says how large the methods are that it makes of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from tests.pipeline.made_feed import write_parquet
from tests.pipeline.made_rows import Size, made
from understudy.pipeline.feed.digest import of_all, of_rare
from understudy.pipeline.feed.source import read_files
from understudy.pipeline.spark.session import UNCOMPILED
from understudy.pipeline.tables.transactions import part_rows, placed
from understudy.pipeline.tallies.look import look_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_MOST = 8_000
"""Bytes. An option of Java lifts the limit (`-XX:-DontCompileHugeMethods`); on a cluster no option of Java is sure."""


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, as it is for a large feed, but for plans that are made anew while they run: those say nothing before."""
    settings = {key: spark.conf.get(key) for key in UNCOMPILED}
    for key in UNCOMPILED:
        spark.conf.unset(key)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield spark
    for key, value in settings.items():
        assert value is not None
        spark.conf.set(key, value)


def transactions(feed: DataFrame) -> DataFrame:
    return part_rows(placed(feed.withColumn("life", F.lit(0)), {("f0f0", 1): 90, ("f0f0", 2): 120}), {})


@pytest.mark.parametrize("plan", [look_rows, of_all, of_rare, transactions])
def test_java_compiles_the_plans_that_read_all_rows(
    plan: Callable[[DataFrame], DataFrame], compiling: SparkSession, tmp_path: Path
) -> None:
    write_parquet(made(Size(segment=2, segments=2)), tmp_path / "feed.parquet")
    rows = plan(read_files(compiling, [tmp_path]))
    jvm = compiling._jvm  # Python's explain prints, and returns nothing
    assert jvm is not None
    said = jvm.PythonSQLUtils.explainString(rows._jdf.queryExecution(), "codegen")
    sizes = [int(each) for each in re.findall(r"maxMethodCodeSize:(\d+)", said)]
    assert sizes
    assert max(sizes) <= AT_MOST
