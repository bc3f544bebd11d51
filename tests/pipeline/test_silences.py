"""Transactions of which no client was told, behind the last fact of a primary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from understudy.pipeline.audit.silences import unanswered
from understudy.pipeline.tables.transactions import OWNER_BITS
from understudy.pipeline.tallies.reigns import TOLD_OF
from understudy.pipeline.tallies.untold import Tail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAIL = Tail(founding="f", epoch=1, primary="b1", facts_end=9, known=40, commits=TOLD_OF + 9)
PARTED = 1 << 31
TABLE = "founding string, prepare long, commit long, told_committed long, owner long, effects long"
KNOWN = "founding string, epoch long, broker string, event string, stable long, offset long, primary string"


def test_answers_are_missing_of_what_was_stable_before_the_last_batch(spark: SparkSession) -> None:
    """A killed broker has not written the facts of its last turn, in which it answers what its last batch states as stable."""
    last = 9 + TOLD_OF
    batches = [("b2", last, 30), ("b2", 40, 50), ("b3", 40, 50), ("b1", 35, 45)]
    known = spark.createDataFrame([("f", 1, name, "append", *at, "") for name, *at in batches], KNOWN)

    def said(number: int, *, told: int | None = None, effects: int = 2) -> list[str]:
        rows = [("f", 10 + n, 60, told if n == 3 else None, 1 << OWNER_BITS, effects) for n in range(number)]
        return unanswered(spark.createDataFrame(rows, TABLE), known, [TAIL])

    ten = f"b1: its facts of epoch 1 end at offset 9, and {TOLD_OF} transactions were committed behind that"
    assert said(TOLD_OF + 5) == [ten], "the last five may be of the last turn"
    assert said(TOLD_OF + 5, told=13) == []
    assert said(TOLD_OF + 5, effects=PARTED) == [], "of large messages that are transactions of their own"
    assert not unanswered(known, known, [attrs.evolve(TAIL, commits=TOLD_OF - 1)])
