"""Tables of values that a program sends: headers, and arguments of declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from understudy.client.connection.errors import NOT_SENT, RefusedError

MOST_NESTED: Final = 64
"""Levels of tables and arrays within a table that the broker reads. A deeper one closes the connection."""


def table_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, if the broker can read them.

    Raises:
        RefusedError: tables and arrays are nested deeper than `MOST_NESTED`; names the value. Nothing was sent.
    """
    for name, value in values.items():
        if is_deep(value, MOST_NESTED):
            raise RefusedError(
                NOT_SENT, f"cannot be sent: tables and arrays of {name!r} are nested deeper than {MOST_NESTED}"
            )
    return dict(values)


def is_deep(value: Any, most: int) -> bool:
    """True if tables and arrays are nested deeper than ``most``."""
    if isinstance(value, Mapping):
        return most == 0 or any(is_deep(each, most - 1) for each in value.values())
    if isinstance(value, (list, tuple)):
        return most == 0 or any(is_deep(each, most - 1) for each in value)
    return False
