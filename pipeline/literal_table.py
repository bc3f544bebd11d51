"""A small table out of values of the driver, as a literal of the plan.

``createDataFrame`` was refused: it starts Python on the executors, which then need the driver's version of Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it


def literal_table(spark: SparkSession, rows: Iterable[Iterable[Any]], types: Mapping[str, str]) -> DataFrame:
    """A table of one partition.

    Args:
        spark: the session.
        rows: some thousands at most; each has its values in the order of ``types``.
        types: Spark's type of each column, as ``long`` or ``string``.
    """
    text = json.dumps([dict(zip(types, row, strict=True)) for row in rows])
    struct = ",".join(f"`{name}`:{kind}" for name, kind in types.items())
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), f"array<struct<{struct}>>")))
