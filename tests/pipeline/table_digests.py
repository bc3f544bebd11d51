"""Digests of rows in columns, as `observers.feed.event_digest` has them: with Arrow, for feeds that are large."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from understudy.observers.events_schema import DEFAULTS, FREQUENT, GROUPS, HEADS, OF_ALL, P, text_value, weight

Numbers = Any
"""An array of Arrow, of 64-bit integers without nulls."""


def table_digests(table: pa.Table) -> dict[tuple[str, str], int]:
    """By (broker, incarnation), of rows of which each event is there once."""
    table = table.combine_chunks()
    s = _mod(pc.multiply(_mod(_column(table, "seq")), weight("seq")))
    total = _product(_sum(table, HEADS), s)
    rare = pc.invert(pc.is_in(table.column("event"), pa.array(sorted(FREQUENT)))).cast(pa.int64())
    for number, names in enumerate(GROUPS):
        a = _sum(table, names)
        part = _product(a, _mod(pc.add(a, s)))
        total = pc.add(total, part if number < OF_ALL else pc.multiply(part, rare))
    streams = pa.table({"broker": table.column("broker"), "incarnation": table.column("incarnation"), "digest": total})
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in streams.group_by(["broker", "incarnation"]).aggregate([("digest", "sum")]).to_pylist():
        found[row["broker"], row["incarnation"]] += row["digest_sum"] % P
    return found


def _sum(table: pa.Table, names: tuple[str, ...]) -> Numbers:
    found = pa.array([0] * len(table), pa.int64())
    for name in names:
        if table.column(name).null_count < len(table):
            found = _mod(pc.add(found, pc.multiply(_short(_column(table, name)), weight(name))))
    return found


def _product(one: Numbers, two: Numbers) -> Numbers:
    return _mod(pc.multiply(one, two))


def _mod(values: Numbers) -> Numbers:
    """Modulo P, of numbers that are not negative."""
    return pc.subtract(values, pc.multiply(pc.divide(values, P), P))


def _short(values: Numbers) -> Numbers:
    return pc.add(pc.bit_wise_and(values, P), pc.shift_right(values, 31))


def _column(table: pa.Table, name: str) -> Numbers:
    """A column as numbers; 0 where the row has the default, or not this field."""
    column = table.column(name)
    default = DEFAULTS.get(name, 0)
    if pa.types.is_string(column.type):
        coded = pc.dictionary_encode(column.combine_chunks())
        values = pa.array([text_value(each) for each in coded.dictionary.to_pylist()], pa.int64())
        return values.take(coded.indices).fill_null(0)
    return pc.subtract(column.cast(pa.int64()).fill_null(default), default)
