"""A position (epoch, offset) in one number: ``epoch << 40 | offset``, ordered as the pair is.

Spark aggregates numbers in place, by hashing rows. A minimum of a struct makes it sort them all, which costs several times as
much. Ids of messages and transactions are built the same way (``epoch << 40 | sequence``), so 40 bits are what a group has anyway.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

BITS: Final = 40
LIMIT: Final = 1 << BITS
"""Offsets and numbers of events are below this."""


def packed(epoch: Column, place: Column) -> Column:
    """The pair as one number; null if one of them is."""
    return F.shiftleft(epoch.cast("long"), BITS).bitwiseOR(place)


def epoch_of(position: Column) -> Column:
    """The epoch of a packed position."""
    return F.shiftright(position, BITS)


def place_of(position: Column) -> Column:
    """The offset of a packed position."""
    return position.bitwiseAND(F.lit(LIMIT - 1))
