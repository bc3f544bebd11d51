"""Conditions on rows, written as Spark's are: ``col("place") == 2``, joined by ``&`` and ``|``, turned around by ``~``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tests.pipeline.made_rows import Row, Rows


@attrs.frozen
class Where:
    """A condition on a row. As in SQL, a field that the row does not have fulfils no comparison."""

    holds: Callable[[Row], bool]

    def __and__(self, other: Where) -> Where:
        return Where(lambda row: self.holds(row) and other.holds(row))

    def __or__(self, other: Where) -> Where:
        return Where(lambda row: self.holds(row) or other.holds(row))

    def __invert__(self) -> Where:
        return Where(lambda row: not self.holds(row))


@attrs.frozen(eq=False)
class Field:
    """A field of a row, to compare it, or to say a new value of it."""

    name: str

    def __eq__(self, other: object) -> Where:  # type: ignore[override]  # as of Spark's columns
        return Where(lambda row: row.get(self.name) == other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __ge__(self, other: int) -> Where:
        return self._is(lambda value: value >= other)

    def __lt__(self, other: int) -> Where:
        return self._is(lambda value: value < other)

    def isin(self, *others: object) -> Where:
        return Where(lambda row: row.get(self.name) in others)

    def startswith(self, text: str) -> Where:
        return self._is(lambda value: value.startswith(text))

    def endswith(self, text: str) -> Where:
        return self._is(lambda value: value.endswith(text))

    def __add__(self, other: Any) -> Callable[[Row], Any]:
        return lambda row: row[self.name] + other

    def _is(self, test: Callable[[Any], bool]) -> Where:
        return Where(lambda row: row.get(self.name) is not None and test(row[self.name]))


def col(name: str) -> Field:
    return Field(name)


def some(rows: Rows, where: Where) -> Rows:
    """The rows ``where`` it holds."""
    return [row for row in rows if where.holds(row)]


def changed(rows: Rows, where: Where, **values: Any) -> Rows:
    """``rows`` with other values ``where`` it holds; a value is one, or is computed of the row. None takes a field away."""

    def change(row: Row) -> Row:
        return row | {name: value(row) if callable(value) else value for name, value in values.items()}

    return [change(row) if where.holds(row) else row for row in rows]
