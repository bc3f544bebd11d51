"""Values of the driver as a table: the same rows, be they few, in the plan, or many, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from understudy.pipeline.spark.literal_table import literal_table, values_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {
    "name": "string",
    "number": "long",
    "few": "boolean",
    "lowest": "struct<end:long,broker:string>",
    "held": "array<struct<broker:string,ends:array<long>>>",
}
ROW: tuple[object, ...] = ('it\'s "one" \u00e4', 1 << 61, True, (7, "b1"), [("b2", [1, 2]), ("b3", [])])
EMPTY: tuple[object, ...] = ("", 0, False, None, [])


@pytest.mark.parametrize("times", [0, 1, 40])
def test_a_table_has_the_values_that_it_was_made_of(times: int, spark: SparkSession) -> None:
    rows = [ROW, EMPTY] * times
    expected = sorted(map(repr, rows))
    for made in (values_table, literal_table):
        found = made(spark, rows, TYPES)
        assert found.columns == list(TYPES)
        assert sorted(repr(_plain(row)) for row in found.collect()) == expected


def _plain(value: object) -> object:
    """Rows as tuples."""
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return [_plain(each) for each in value] if isinstance(value, list) else value
