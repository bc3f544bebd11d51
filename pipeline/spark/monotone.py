"""Does a value only grow along an order? Found without sorting all rows in one place.

The order is cut into blocks of consecutive places. Inside of a block rows are compared with the row before; then
blocks, of which there are few, are compared with all blocks before. So the work is spread over tasks although a queue,
or a group, has one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

BLOCK: Final = 1 << 16


def breaks(rows: DataFrame, keys: Sequence[str], order: str, first: str, last: str, block: int = BLOCK) -> DataFrame:
    """Rows at which the value does not grow.

    Args:
        rows: with the columns named here.
        keys: each combination has its own order.
        order: column by which rows are ordered: a number, 0 or more. Rows that are the same in all of this are one row.
        first: column with the lowest value of a row; it must be above ``last`` of the row before.
        last: column with the highest value of a row.
        block: so many places of the order are compared in one piece.

    Returns:
        The columns of ``rows``, and ``before``: the value that is too high.
    """
    # One exchange for both: Spark sees that it is the same.
    blocks = rows.withColumn("block", F.floor(F.col(order) / F.lit(block))).repartition(*keys, "block")
    inside = Window.partitionBy(*keys, "block").orderBy(order, first, last)
    place = F.struct(F.col(order).alias("at"), F.col(first).alias("low"), F.col(last).alias("high"))
    compared = blocks.withColumn("previous", F.lag(place).over(inside)).filter(
        (F.col("previous.high") >= F.col(first)) & (F.col("previous") != place)
    )
    compared = compared.withColumn("before", F.col("previous.high")).drop("previous")
    whole = blocks.groupBy(*keys, "block").agg(
        F.min_by(F.struct(*rows.columns), F.col(first)).alias("lowest"), F.max(last).alias("highest")
    )
    earlier = Window.partitionBy(*keys).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    across = whole.withColumn("before", F.max("highest").over(earlier)).filter(
        F.col("before") >= F.col(f"lowest.{first}")
    )
    return compared.drop("block").unionByName(across.select("lowest.*", "before"))
