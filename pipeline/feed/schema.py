"""The feed as a table: one row an event, a column for each field, types from the annotations of `events_schema`.

A column is null where its event does not have the field. JSON lines leave out fields that have their default as well,
so a null says nothing by itself: `filled` puts defaults into every column. Parquet and JSON lines then give the same
rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from understudy.observers.events_schema import BY_NAME, EVENT_TYPES, SCHEMA_VERSION, Event

EVENT: Final = "event"
"""The column with the event's name."""
HEAD: Final[tuple[str, ...]] = tuple(Event.__struct_fields__)
"""Columns that every event has: they are null in no row, and never filled, so that filters on them reach the files."""
EVENT_NAMES: Final[frozenset[str]] = frozenset(BY_NAME)
SCHEMA: Final = SCHEMA_VERSION
"""The newest version of events that this program reads."""

_TYPES: Final[dict[type, type[DataType]]] = {int: LongType, str: StringType, bool: BooleanType}
_EMPTY: Final[dict[type, Any]] = {int: 0, str: "", bool: False}


@cache
def columns() -> dict[str, type]:
    """Name and Python type of each column, in the order of the events' fields; ``event`` first."""
    found: dict[str, type] = {EVENT: str}
    for each in EVENT_TYPES:
        for field in msgspec.structs.fields(each):
            known = found.setdefault(field.name, field.type)
            assert known is field.type, f"{each.__name__}.{field.name} has another type than elsewhere"
    return found


def fields_of(event: str) -> tuple[str, ...]:
    """Names of the fields of an event that not every event has."""
    return tuple(name for name in BY_NAME[event].__struct_fields__ if name not in HEAD)


@cache
def defaults() -> dict[str, Any]:
    """Default of each column outside an event's head: its value where the event leaves the field out."""
    found: dict[str, Any] = {}
    for each in EVENT_TYPES:
        for field in msgspec.structs.fields(each):
            if field.default is not msgspec.NODEFAULT:
                known = found.setdefault(field.name, field.default)
                assert known == field.default, f"{each.__name__}.{field.name} has another default than elsewhere"
    return {name: found.get(name, _EMPTY[kind]) for name, kind in columns().items() if name not in (EVENT, *HEAD)}


def feed_schema() -> StructType:
    """The explicit schema with which feeds are read; nothing is inferred from their content. The caller may add to it."""
    return StructType([StructField(name, _TYPES[kind]()) for name, kind in columns().items()])


def filled(events: DataFrame) -> DataFrame:
    """``events`` with a default in place of each null; other columns than those of the schema stay as they are.

    A field that an event does not have reads as its default: 0, "" or False in most cases. Spark plans away what is not used.
    """
    without = defaults()
    return events.select(
        *(
            F.coalesce(F.col(name), F.lit(without[name])).alias(name) if name in without else F.col(name)
            for name in events.columns
        )
    )


def is_fact() -> Column:
    """True if an event is a fact that is no record: its incarnation is a process (``p<start>-<pid>``)."""
    return F.col("incarnation").startswith("p")
