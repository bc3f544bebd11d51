"""Transactions that a catch-up took back: a broker had applied them, and began anew from a base that stands before them.

Such a broker applies them again. What it told before that base counts no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.tallies.look import BASE, NEVER, Lives, Tally, is_piece, life_of, told_at


@attrs.frozen
class TakenBack:
    """Of one incarnation: what it told as applied behind ``base``, by events with numbers below ``until``."""

    broker: str
    incarnation: str
    base: int
    until: int


def taken_back(tallies: Sequence[Tally], lives: Lives) -> list[TakenBack]:
    """Of each broker and life: what its last base took back. Pure; almost always nothing."""
    last: dict[tuple[str, str, int], Tally] = {}
    for each in tallies:
        if is_piece(each, BASE):
            place = each.founding or "", each.broker or "", life_of(each, lives)
            last[place] = max(last.get(place, each), each, key=told_at)
    found: set[tuple[str, str, int, int]] = set()
    for each in tallies:
        base = last.get((each.founding or "", each.broker or "", life_of(each, lives)))
        if (each.event, each.said) != ("apply", "tx") or base is None:
            continue
        if (each.high or 0) > (base.high or 0) and told_at(each) < told_at(base):
            until = told_at(base)[1] if each.incarnation == base.incarnation else NEVER
            found.add((each.broker or "", each.incarnation or "", base.high or 0, until))
    return [TakenBack(*each) for each in sorted(found)]


def standing(known: DataFrame, taken: Sequence[TakenBack]) -> DataFrame:
    """``known`` without the events `apply` of transactions that were taken back."""
    if not taken:
        return known
    stream = [
        (F.col("broker") == each.broker)
        & (F.col("incarnation") == each.incarnation)
        & (F.col("offset") > each.base)
        & (F.col("seq") < each.until)
        for each in taken
    ]
    return known.filter(~((F.col("event") == "apply") & (F.col("tx") != "") & reduce(or_, stream)))
