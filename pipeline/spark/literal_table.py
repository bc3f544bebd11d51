"""A small table out of values of the driver, as a literal of the plan.

``createDataFrame`` was refused: it starts Python on the executors, which then need the driver's version of Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it
from pyspark.sql.types import ArrayType, DataType, StructType


def literal_table(spark: SparkSession, rows: Iterable[Iterable[Any]], types: Mapping[str, str]) -> DataFrame:
    """A table of one partition.

    Args:
        spark: the session.
        rows: some thousands at most; each has its values in the order of ``types``.
        types: Spark's type of each column, as ``long`` or ``string``.
    """
    kind = _type_of(",".join(f"`{name}`:{kind}" for name, kind in types.items()))
    text = json.dumps([_named(row, kind) for row in rows])
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), ArrayType(kind))))


@cache
def _type_of(fields: str) -> StructType:
    found = StructType.fromDDL(fields)
    assert isinstance(found, StructType), fields
    return found


def _named(value: Any, kind: DataType) -> Any:
    """A value as JSON has it: a struct with the names of its fields."""
    if value is None:
        return value
    if isinstance(kind, ArrayType):
        return [_named(each, kind.elementType) for each in value]
    if isinstance(kind, StructType):
        return {of.name: _named(each, of.dataType) for of, each in zip(kind.fields, value, strict=True)}
    return value


_IN_PLAN: Final = 64
"""Spark looks at each value of a plan many times: behind so many rows a job is cheaper."""


def values_table(spark: SparkSession, rows: Iterable[Sequence[Any]], types: Mapping[str, str]) -> DataFrame:
    """The same for a side of a join: few rows are in the plan itself, so that it is broadcast without a job.

    Args:
        spark: the session.
        rows: each has its values in the order of ``types``: None, truth values, numbers, texts, lists (arrays) and
            tuples (structs, with fields in the order of the type).
        types: Spark's type of each column.
    """
    rows = list(rows)
    if len(rows) > _IN_PLAN:
        return literal_table(spark, rows, types)
    names = ",".join(f"`{name}`" for name in types)
    lines = [
        ",".join(f"CAST({_literal(value)} AS {kind})" for value, kind in zip(row, types.values(), strict=True))
        for row in rows
    ]
    if not lines:
        nothing = ",".join(f"CAST(NULL AS {kind})" for kind in types.values())
        return spark.sql(f"SELECT * FROM VALUES ({nothing}) AS t({names}) WHERE false")  # noqa: S608  # types are ours
    return spark.sql(f"SELECT * FROM VALUES ({'),('.join(lines)}) AS t({names})")  # noqa: S608  # texts are in hexadecimal


def _literal(value: Any) -> str:
    """An expression of SQL. Names that a client or an operator chose are in hexadecimal, so they cannot end a literal."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, tuple):
        return f"struct({','.join(_literal(each) for each in value)})"
    if isinstance(value, list):
        return f"array({','.join(_literal(each) for each in value)})"
    return str(int(value)) if not isinstance(value, bool) else str(value)
