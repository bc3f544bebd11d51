"""G1, atomic: on every broker a transaction's enqueues and dequeues are all there, or none are.

All rules here read the table of transactions (`tables.transactions`). A broker is judged on what its log brought it: ``began <
PREPARE <= end``. What came to it by a catch-up, as queues, has no records, and is judged by messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.tables.transactions import assigns, operations, operations_stated


def judged(at: str = "prepare", until: Column | None = None) -> Column:
    """The brokers whose log must hold the record at the offset in column ``at``: an array of structs.

    Each has the fields of ``brokers``, and ``part``: what that broker's feed has of the transaction; null if nothing. A broker
    whose base stands before ``until`` has got the record by a catch-up, if not by its log.
    """

    def holds(b: Column) -> Column:
        brought = F.lit(False) if until is None else b["began"] < until
        return ((b["began"] < F.col(at)) | brought) & (F.col(at) <= b["end"])

    must = F.filter("brokers", holds)
    return F.transform(
        must,
        lambda b: F.struct(
            b["number"].alias("number"),
            b["broker"].alias("broker"),
            b["began"].alias("began"),
            b["applied"].alias("applied"),
            F.get(F.filter("parts", lambda p: p["number"] == b["number"]), F.lit(0)).alias("part"),
        ),
    )


def each_judged(transactions: DataFrame, at: str = "prepare", until: Column | None = None) -> DataFrame:
    """A row for each transaction and broker that is `judged`, as ``of``; the transaction's columns beside it."""
    return transactions.filter(F.col(at).isNotNull()).select("*", F.explode(judged(at, until)).alias("of"))


def some_judged(wrong: Callable[[Column], Column], at: str = "prepare", until: Column | None = None) -> Column:
    """True if some broker that is `judged` is ``wrong``, of the struct that `each_judged` calls ``of``."""
    return F.exists(judged(at, until), wrong)


def partial_enqueues(transactions: DataFrame) -> DataFrame:
    """A committed transaction brings the same persistent messages to the queues of every broker that holds it.

    The broker that holds the most of it says what it is. Transient messages are in no journal, and are not compared. A broker
    that got the beginning of the transaction by a catch-up got transient records as well: it may hold more than the others.
    """
    return _partial(transactions, *_ENQUEUES)


def partial_dequeues(transactions: DataFrame) -> DataFrame:
    """A committed transaction takes the same messages out of the queues of every broker that holds it.

    A broker that got the beginning of the transaction by a catch-up is not compared: what it got may contain the dequeues of
    transient messages, which the journals of the others do not.
    """
    return _partial(transactions, *_DEQUEUES)


def partial_ids(transactions: DataFrame) -> DataFrame:
    """PREPARE gives the messages of a transaction the same ids, in the same queues, on every broker."""
    return _partial(transactions, *_IDS)


_ENQUEUES: Final = ("came", "messages come")
_DEQUEUES: Final = ("left", "messages leave")
_IDS: Final = ("given", "ids are given")


def is_partial() -> Column:
    """See `partial_enqueues`, `partial_dequeues` and `partial_ids`."""
    differ = [some_judged(_differs(field, F.col("parts"))) for field, _ in (_ENQUEUES, _DEQUEUES, _IDS)]
    return F.col("committed") & reduce(or_, differ)


def _by_log() -> Column:
    """The parts of brokers that have got all of the transaction by the log, and nothing by a catch-up."""
    return F.filter(
        "parts", lambda p: F.exists("brokers", lambda b: (b["number"] == p["number"]) & (p["first"] > b["began"]))
    )


def _best(field: str, parts: Column) -> Column:
    return F.array_max(F.transform(parts, lambda p: F.struct(p[field].alias("n"), p[f"{field}_fold"].alias("fold"))))


def _differs(field: str, parts: Column) -> Callable[[Column], Column]:
    """Test that a `judged` broker differs from the best of ``parts``. Of more parts, it differs at least as often."""

    def wrong(of: Column) -> Column:
        part, best = of["part"], _best(field, parts)
        other = (part[field] != best["n"]) | (part[f"{field}_fold"] != best["fold"])
        by_log = part["first"] > of["began"]
        comparable = {"came": by_log | (part[field] < best["n"]), "left": by_log}.get(field, F.lit(True))
        return part["prepare"].isNotNull() & comparable & other

    return wrong


def _partial(transactions: DataFrame, field: str, what: str) -> DataFrame:
    parts = F.col("parts") if field == "given" else _by_log()
    rows = each_judged(transactions.filter("committed")).filter(_differs(field, parts)(F.col("of")))
    text = F.format_string(
        f"transaction %s is partial on %s: %d of its %d {what} there, or others than elsewhere",
        F.col("tx"),
        F.col("of.broker"),
        F.col(f"of.part.{field}"),
        _best(field, parts)["n"],
    )
    return violations(rows, "G1", "partial", text, broker=F.col("of.broker"), offset=F.col("prepare"))


def is_uneven() -> Column:
    """See `uneven`. It holds of transactions with a queue that has ended as well."""
    all_durable = (F.col("transient") == 0) & some_judged(lambda of: of["part"]["first"] > of["began"])
    return F.col("committed") & ((F.col("given") < F.col("came")) | ((F.col("given") > F.col("came")) & all_durable))


def uneven(transactions: DataFrame) -> DataFrame:
    """A committed transaction gives as many ids as it brings persistent messages; more if it brings transient messages too.

    So a message that is missing in every log alike is missed. PREPARE gives no ids in a queue that has ended before: of a
    transaction with such a queue (column ``ended``, `with_ended`) nothing is said.
    """
    rows = transactions.filter(is_uneven() & ~F.col("ended"))
    text = F.format_string(
        "transaction %s brings %d persistent messages, and its PREPARE gives %d ids", F.col("tx"), "came", "given"
    )
    return violations(rows, "G1", "uneven", text, offset=F.col("prepare"))


def is_short() -> Column:
    """See `short`."""
    return (operations() < operations_stated()) | (assigns() != F.col("queues"))


def short(transactions: DataFrame) -> DataFrame:
    """A transaction has as many operations as its PREPARE, or DTX_PREPARE, states, and its PREPARE gives ids in as many queues.

    So what is missing in every log alike is missed, dequeues too. An operation on several queues has several events: of more
    events than operations nothing is said. Nor is anything of a body in parts, whose parts are operations and no events.
    """
    found = transactions.filter(is_short())
    text = F.format_string(
        "transaction %s states %d operations and ids in %d queues; no log has more than %d of these operations, with ids in %d",
        F.col("tx"),
        operations_stated(),
        F.coalesce("queues", F.lit(0)),
        operations(),
        assigns(),
    )
    return violations(found, "G1", "short", text, offset=F.coalesce("prepare", "branch"))


def with_ended(transactions: DataFrame, known: DataFrame) -> DataFrame:
    """The transactions that are `uneven`, with ``ended``: a queue of its messages has ended, or may have, before its PREPARE.

    A queue ends when it is deleted. One that is not durable ends without a record: its declaration and end are in no journal, or
    the whole group has restarted. So a queue lasts that the feed declares as durable.

    Args:
        transactions: the table.
        known: events, `tables.transactions.placed`.
    """
    found = transactions.filter(is_uneven())
    queues = known.filter(F.col("event").isin("declare", "delete") & (F.col("what") == "queue"))
    lasts = queues.groupBy("founding", "queue_id").agg(
        F.bool_or((F.col("event") == "declare") & F.col("durable")).alias("lasts"),
        F.min(F.when(F.col("event") == "delete", F.col("offset"))).alias("since"),
    )
    brings = known.filter((F.col("event") == "enqueue") & (F.col("tx") != "")).select("founding", "tx", "queue_id")
    touched = brings.distinct().join(found.select("founding", "tx", "prepare"), ["founding", "tx"])
    touched = touched.join(lasts, ["founding", "queue_id"], "left")
    ended = ~F.coalesce("lasts", F.lit(False)) | F.coalesce(F.col("since") < F.col("prepare"), F.lit(False))
    marked = touched.filter(ended).select("founding", "tx").distinct().withColumn("ended", F.lit(True))
    return found.join(marked, ["founding", "tx"], "left").withColumn("ended", F.coalesce("ended", F.lit(False)))


def is_absent() -> Column:
    """See `absent`."""
    return F.col("committed") & some_judged(lambda of: of["part"]["prepare"].isNull())


def absent(transactions: DataFrame) -> DataFrame:
    """A broker whose log goes beyond the PREPARE of a committed transaction holds that PREPARE."""
    rows = each_judged(transactions.filter("committed")).filter(F.col("of.part.prepare").isNull())
    text = F.format_string(
        "transaction %s is absent on %s, whose log goes beyond its PREPARE at offset %d",
        F.col("tx"),
        F.col("of.broker"),
        F.col("prepare"),
    )
    return violations(rows, "G1", "absent", text, broker=F.col("of.broker"), offset=F.col("prepare"))


def is_unapplied() -> Column:
    """See `unapplied`."""
    return F.col("committed") & some_judged(_is_behind)


def _is_behind(of: Column) -> Column:
    part = of["part"]
    return part["prepare"].isNotNull() & (of["applied"] >= F.col("prepare")) & (part["applies"] != 1)


def unapplied(transactions: DataFrame) -> DataFrame:
    """A broker that has applied its log beyond the PREPARE of a committed transaction has applied the transaction, once."""
    rows = each_judged(transactions.filter("committed")).filter(_is_behind(F.col("of")))
    text = F.format_string(
        "transaction %s was applied %d times on %s, which has applied its log up to offset %d, beyond its PREPARE at %d",
        F.col("tx"),
        F.col("of.part.applies"),
        F.col("of.broker"),
        F.col("of.applied"),
        F.col("prepare"),
    )
    return violations(rows, "G1", "unapplied", text, broker=F.col("of.broker"), offset=F.col("prepare"))
