"""A violation is a row, with the same columns for every rule, so that all of them are one table.

    promise kind founding tx broker queue id epoch offset text

Columns that say nothing of a violation are "" or 0. ``text`` says all of it in a sentence.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.spark.packed import epoch_of, place_of

COLUMNS: Final[dict[str, str]] = {
    "promise": "string",
    "kind": "string",
    "founding": "string",
    "tx": "string",
    "broker": "string",
    "queue": "string",
    "id": "long",
    "epoch": "long",
    "offset": "long",
    "text": "string",
}


def violations(found: DataFrame, promise: str, kind: str, text: Column, *same: str, **columns: Column) -> DataFrame:
    """``found`` as violations.

    Args:
        found: a row for each.
        promise: G1 to G9.
        kind: a word.
        text: the sentence.
        same: columns that are taken from ``found``; so are ``founding`` and ``tx`` if it has them.
        columns: what else is known.
    """
    from_found = (*(name for name in ("founding", "tx") if name in found.columns), *same)
    given: dict[str, Any] = {name: F.col(name) for name in from_found} | columns
    given |= {"promise": F.lit(promise), "kind": F.lit(kind), "text": text}
    return found.select(
        *(
            F.coalesce(given[name].cast(kind_of), F.lit(_nothing(kind_of)).cast(kind_of)).alias(name)
            if name in given
            else F.lit(_nothing(kind_of)).cast(kind_of).alias(name)
            for name, kind_of in COLUMNS.items()
        )
    )


def found(promise: str, kind: str, text: str, **columns: Any) -> dict[str, Any]:
    """A violation that a rule over tallies has found, as a row: columns that are left out say nothing."""
    return {"promise": promise, "kind": kind, "text": text, **columns}


def of_message(at: str) -> dict[str, Column]:
    """The columns that tell of a message; ``at``: the column with the packed position at which it is seen."""
    return {"queue": F.col("queue"), "id": F.col("id"), "epoch": epoch_of(F.col(at)), "offset": place_of(F.col(at))}


def _nothing(kind: str) -> str | int:
    return "" if kind == "string" else 0
