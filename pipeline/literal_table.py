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


def literal_table(spark: SparkSession, rows: Iterable[Iterable[Any]], types: Mapping[str, str]) -> DataFrame:
    """A table of one partition.

    Args:
        spark: the session.
        rows: some thousands at most; each has its values in the order of ``types``.
        types: Spark's type of each column, as ``long`` or ``string``.
    """
    struct = f"struct<{','.join(f'`{name}`:{kind}' for name, kind in types.items())}>"
    text = json.dumps([_named(tuple(row), _parsed(f"struct<{_fields(types)}>")) for row in rows])
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), f"array<{struct}>")))


def _fields(types: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{kind}" for name, kind in types.items())


_Kind = str | list[Any] | dict[str, Any]
"""A type: its name; of an array a list with the type of its elements; of a struct its fields."""


@cache
def _parsed(kind: str) -> _Kind:
    found, rest = _kind_of(kind)
    assert not rest, kind
    return found


def _kind_of(text: str) -> tuple[_Kind, str]:
    """The type with which ``text`` begins, and what is behind it."""
    if text.startswith("array<"):
        of, rest = _kind_of(text[len("array<") :])
        return [of], rest[1:]
    if not text.startswith("struct<"):
        end = next((at for at, each in enumerate(text) if each in ",>"), len(text))
        return text[:end], text[end:]
    fields: dict[str, Any] = {}
    rest = "," + text[len("struct<") :]
    while rest[0] == ",":
        name, _, rest = rest[1:].partition(":")
        fields[name], rest = _kind_of(rest)
    return fields, rest[1:]


def _named(value: Any, kind: _Kind) -> Any:
    """A value as JSON has it: a struct with the names of its fields."""
    if isinstance(kind, str) or value is None:
        return value
    if isinstance(kind, list):
        return [_named(each, kind[0]) for each in value]
    return {name: _named(each, of) for (name, of), each in zip(kind.items(), value, strict=True)}


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
