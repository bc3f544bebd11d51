"""G1 of what catch-ups bring: queues without records. Of the table of messages, beside brokers that have caught up.

A base says which part of the log it contains. So what the log says of a message up to there is what the catch-up must
have brought about, whatever the broker held before.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.spark.packed import place_of


def is_left_out() -> Column:
    """See `left_out`."""
    return (F.col("lasts") == 1) & F.exists("joiners", _lacks)


def _lacks(joiner: Column) -> Column:
    stays = F.col("left").isNull() | (place_of(F.col("left")) > joiner["caught_up"])
    return (F.col("came_last") <= joiner["base"]) & stays & ~_holds("has", joiner)


def _holds(name: str, joiner: Column) -> Column:
    """True if the joiner has got the message, and has not let it go."""
    return _has(name, joiner) & ~_has("gone", joiner)


def _has(name: str, joiner: Column) -> Column:
    return F.col(name).bitwiseAND(joiner["bit"]) != 0


def left_out(messages: DataFrame) -> DataFrame:
    """A broker that has caught up holds each persistent message that its base contains, and that has not left since.

    It has got the message by its log, or in a piece of a catch-up. Queues that are deleted, or are not durable, end without
    records of their messages. So only queues are judged that the feed declares as durable.
    """
    found = messages.filter(is_left_out()).withColumn("of", _first(_lacks))
    text = F.format_string(
        "message %d of queue %s comes at offset %d, and %s, which caught up from a base at %d, does not hold it",
        *_words("came"),
    )
    return violations(found, "G1", "left_out", text, **_of(F.col("came")))


def is_brought_back() -> Column:
    """See `brought_back`."""
    return (F.col("lasts") == 1) & F.exists("joiners", _keeps)


def _keeps(joiner: Column) -> Column:
    return (place_of(F.col("left_last")) <= joiner["base"]) & _holds("holds", joiner)


def brought_back(messages: DataFrame) -> DataFrame:
    """A broker that has caught up holds no message that has left before its base: it got it not, or has dropped it."""
    found = messages.filter(is_brought_back()).withColumn("of", _first(_keeps))
    text = F.format_string(
        "message %d of queue %s leaves at offset %d, and %s, which caught up from a base at %d, still holds it",
        *_words("left_last"),
    )
    return violations(found, "G1", "brought_back", text, **_of(place_of(F.col("left_last"))))


def _first(wrong: Any) -> Column:
    return F.get(F.filter("joiners", wrong), F.lit(0))


def _words(at: str) -> list[Column]:
    place = F.col(at) if at == "came" else place_of(F.col(at))
    return [F.col("id"), F.col("queue"), place, F.col("of.broker"), F.col("of.base")]


def _of(place: Column) -> dict[str, Column]:
    return {"queue": F.col("queue"), "id": F.col("id"), "broker": F.col("of.broker"), "offset": place}
