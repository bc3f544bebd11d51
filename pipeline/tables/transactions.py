"""The table of transactions: one row each, with what every broker's feed has of it.

Two aggregations. The first is by (transaction, broker): the events of a transaction lie close together in each broker's
feed, so most of it is done where the file is read, and one row in place of twenty goes through the exchange. Effects
are folded into a count and an exclusive or of 64-bit hashes: two brokers that hold the same effects have the same fold,
in whatever order they got them. The second is by transaction, over these few rows. All buffers of the first are numbers
(`packed`), so that it hashes rows and does not sort them.

An event that a broker has told twice (its log was cut and came again, or a catch-up brought it) would fold to nothing.
So effects of such a broker, from the cut on, are made distinct first, which costs an exchange of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.window import Window

from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.spark.packed import packed
from understudy.pipeline.tallies.chosen_log import NEVER_ENDS
from understudy.pipeline.tallies.look import is_parted

OWNERS: Final = ("local", "manager", "operator")
"""Who decides (`events_schema.Prepare`); in the table by their places here, from 1."""
EFFECTS: Final = ("enqueue", "dequeue", "assign")
OTHERS: Final = (
    "open",
    "close",
    "prepare",
    "commit",
    "rollback",
    "dtx_prepare",
    "dtx_rollback",
    "apply",
    "applied",
    "told",
)
OWNER_BITS: Final = 34
"""`owner` in the table is ``epoch of PREPARE << 34 | who``: an aggregation of one number costs half of what two cost."""
_KEY: Final = ("founding", "tx", "broker", "life")
_EFFECT: Final = ("founding", "tx", "broker", "life", "event", "offset", "queue_id", "id", "place", "count", "size")
_USED: Final = (
    *_EFFECT,
    "epoch",
    "kept",
    "persistent",
    "events",
    "durable_events",
    "durable_digest",
    "csn",
    "owner",
    "primary_ms",
    "outcome",
    "prepare_offset",
    "at_ms",
    "parted",
    "queues",
    "name",
    "answer",
    "decided_at",
)
_PARTED_AT: Final = 31
_ASSIGNS_AT: Final = 40
"""`effects` of a part counts operations below these bits, bodies in parts behind the first, and `assign` behind the second."""


_IN_PLACE: Final = 8
"""So many ends of epochs, or brokers, are compared with each row; more are joined, which costs four times as much for a row."""


def placed(feed: DataFrame, kept: Mapping[tuple[str, int], int]) -> DataFrame:
    """``feed`` with ``kept``: whether the position is of the group's log.

    Args:
        feed: events, `tallies.tables.with_lives`.
        kept: of `ChosenLog`; empty: all records are of it (`tallies.look.is_whole`).
    """
    ends = [(founding, epoch, end) for (founding, epoch), end in sorted(kept.items()) if end < NEVER_ENDS]
    if len(ends) > _IN_PLACE:
        types = {"founding": "string", "epoch": "long", "kept_to": "long"}
        found = feed.join(F.broadcast(values_table(feed.sparkSession, ends, types)), ["founding", "epoch"], "left")
        return found.withColumn("kept", F.coalesce(F.col("offset") <= F.col("kept_to"), F.lit(True)))
    cut = [
        (F.col("epoch") == epoch) & (F.col("founding") == founding) & (F.col("offset") > end)
        for founding, epoch, end in ends
    ]
    return feed.withColumn("kept", ~reduce(or_, cut) if cut else F.lit(True))


def transactions(known: DataFrame, brokers: DataFrame, numbers: DataFrame, again: Mapping[str, int]) -> DataFrame:
    """The table.

    Args:
        known: events, `placed`.
        brokers: of `tallies.tables`.
        numbers: of `tallies.tables`.
        again: `tallies.look.told_again`.

    Returns:
        A row a transaction: founding, tx; ``parts``, an array with a struct for each broker that has anything of it; over all
        brokers the columns of `_whole`; ``brokers`` and ``all_applied`` of its founding. ``committed``: it has a PREPARE in the
        group's log, and a COMMIT there, or a broker has applied it. ``rolled_back``: its end without effect is applied.
        ``alike``: all brokers of its founding hold the same of it (`_hash`).
    """
    parts = part_rows(known, again).join(F.broadcast(numbers), ["broker", "life"], "left").withColumn("hash", _hash())
    # Beside rows of the feed, Spark would copy each row of the feed before it is folded.
    rows = parts.unionByName(_commit_batches(known), allowMissingColumns=True)
    whole = rows.groupBy("founding", "tx").agg(*_whole())
    committed = F.col("prepare").isNotNull() & (F.col("commit").isNotNull() | (F.col("applied") > 0))
    rolled_back = F.col("rollback").isNotNull() & (F.col("rollback") <= F.col("all_applied"))
    alike = (F.col("hash_first") == F.col("hash_last")) & (F.col("hashed") == F.col("all_bits"))
    return (
        whole.join(F.broadcast(brokers), "founding")
        .withColumns({"committed": committed, "rolled_back": rolled_back, "alike": F.coalesce(alike, F.lit(False))})
        .drop("hash_first", "hash_last", "hashed", "all_bits")
    )


def part_rows(known: DataFrame, again: Mapping[str, int]) -> DataFrame:
    """A row for each transaction, broker and life; arguments as of `transactions`."""
    of_tx = known.filter(F.col("event").isin(*EFFECTS, *OTHERS) & (F.col("tx") != "")).select(*_USED)
    return once(of_tx, again).withColumn("kind", _kind()).groupBy(*_KEY).agg(*_part())


def judged_once(transactions: DataFrame, suspicious: Column) -> DataFrame:
    """The table with ``suspect``, and its arrays only where that is true: it is small enough then to be kept.

    Args:
        transactions: the table.
        suspicious: whether some rule may have something to say of a row.
    """
    marked = transactions.withColumn("suspect", F.coalesce(suspicious, F.lit(False)))
    return marked.withColumns(
        {name: F.when(F.col("suspect"), F.col(name)) for name in ("parts", "brokers", "takeovers")}
    )


def once(
    rows: DataFrame, again: Mapping[str, int], events: Sequence[str] = EFFECTS, same: Sequence[str] = ()
) -> DataFrame:
    """``rows``, each effect once. Where no broker can have told one twice, Spark need not look.

    Args:
        rows: events, with all columns of an effect.
        again: `tallies.look.told_again`.
        events: names of those that are made distinct.
        same: two of them are one if these columns are the same; by default those of an effect.
    """
    if not again:
        return rows
    columns = rows.columns
    if len(again) > _IN_PLACE:
        types = {"broker": "string", "told_from": "long"}
        rows = rows.join(F.broadcast(values_table(rows.sparkSession, again.items(), types)), ["broker"], "left")
        behind = F.coalesce(F.col("offset") > F.col("told_from"), F.lit(False))
    else:
        of_each = [(F.col("broker") == broker) & (F.col("offset") > offset) for broker, offset in again.items()]
        behind = reduce(or_, of_each)
    suspect = F.col("event").isin(*events) & behind
    found = rows.filter(~suspect).unionByName(rows.filter(suspect).dropDuplicates(list(same or _EFFECT)))
    return found.select(*columns)


def names(known: DataFrame) -> DataFrame:
    """The clients' names of transactions that have a PREPARE in the group's log: founding, tx, name."""
    prepares = known.filter((F.col("event") == "prepare") & F.col("kept") & (F.col("name") != ""))
    return prepares.groupBy("founding", "tx").agg(F.max("name").alias("name"))


def _commit_batches(known: DataFrame) -> DataFrame:
    """A row for each `commit`: founding, tx, ``commit_stable``: what the batch that holds it states as stable.

    The `append` of a batch follows its records, within the same segment.
    """
    after = Window.partitionBy("broker", "incarnation").orderBy(F.col("seq").desc())
    batch = F.last(F.when(F.col("event") == "append", F.col("stable")), ignorenulls=True).over(after)
    rows = known.filter(F.col("event").isin("commit", "append")).select(
        "founding", "broker", "incarnation", "seq", "event", "tx", "kept", "stable"
    )
    found = rows.withColumn("commit_stable", batch).filter((F.col("event") == "commit") & F.col("kept"))
    return found.filter("commit_stable is not null").select("founding", "tx", "commit_stable")


_KINDS: Final = (*EFFECTS, *OTHERS)


def _kind() -> Column:
    """The event's name as a number, its place in `_KINDS`: each aggregate compares it. The frequent names come first."""
    found = F.when(F.col("event") == _KINDS[0], 0)
    for number, name in enumerate(_KINDS[1:], 1):
        found = found.when(F.col("event") == name, number)
    return found


def _is(*names: str) -> Column:
    numbers = [_KINDS.index(name) for name in names]
    return F.col("kind").isin(*numbers) if len(numbers) > 1 else F.col("kind") == numbers[0]


def _part() -> list[Column]:
    """Columns of one broker's part of one transaction, as its feed has it."""
    offset, kept = F.col("offset"), F.col("kept")
    came = _is("enqueue") & F.col("persistent")
    prepare = _is("prepare") & kept
    told = _is("told") & (F.col("outcome") == "committed")
    undone = _is("told") & (F.col("outcome") == "rolled back")
    zero = F.lit(0).cast("long")
    return [
        F.min(F.when(_is("open", "enqueue", "dequeue"), offset)).alias("first"),
        F.count_if(came).alias("came"),
        F.coalesce(F.bit_xor(F.when(came, F.xxhash64("offset", "queue_id", "place", "size"))), zero).alias("came_fold"),
        F.coalesce(F.sum(F.when(_is("dequeue"), F.col("count"))), zero).alias("left"),
        F.coalesce(F.bit_xor(F.when(_is("dequeue"), F.xxhash64("offset", "queue_id", "id", "count"))), zero).alias(
            "left_fold"
        ),
        F.coalesce(F.sum(F.when(_is("assign") & kept, F.col("count"))), zero).alias("given"),
        F.coalesce(
            F.bit_xor(F.when(_is("assign") & kept, F.xxhash64("offset", "queue_id", "id", "count"))), zero
        ).alias("given_fold"),
        F.max(F.when(_is("close") & kept, _digest())).alias("digest"),
        F.max(F.when(_is("close") & kept, F.col("events") - F.col("durable_events"))).alias("transient"),
        F.min(F.when(prepare, offset)).alias("prepare_first"),
        F.max(F.when(prepare, offset)).alias("prepare"),
        F.min(F.when(prepare, F.col("csn"))).alias("csn_first"),
        F.max(F.when(prepare, F.col("csn"))).alias("csn"),
        F.min(F.when(prepare, _owner())).alias("owner_first"),
        F.max(F.when(prepare, _owner())).alias("owner"),
        F.max(F.when(_is("prepare") & ~kept, offset)).alias("prepare_cut"),
        F.max(F.when(_is("dtx_prepare") & kept, offset)).alias("branch"),
        F.max(F.when(_is("told") & (F.col("outcome") == "prepared"), F.col("prepare_offset"))).alias("told_branch"),
        F.min(F.when(_is("commit") & kept, packed(F.col("epoch"), offset))).alias("commit"),
        F.max(F.when(_is("rollback", "dtx_rollback") & kept, offset)).alias("rollback"),
        F.max(F.when(_is("rollback") & kept & (F.col("primary_ms") == 0), offset)).alias("ended_by_epoch"),
        F.count_if(_is("apply")).alias("applies"),
        F.count_if(_is("apply", "applied")).alias("applied"),
        F.max(F.when(_is("apply") & ~kept, offset)).alias("applied_cut"),
        F.min(F.when(told, F.col("prepare_offset"))).alias("told_committed_first"),
        F.max(F.when(told, F.col("prepare_offset"))).alias("told_committed"),
        F.max(F.when(undone, F.col("at_ms"))).alias("told_rolled_back"),
        F.max(F.when(undone, F.col("decided_at"))).alias("told_ended"),
        F.max(F.when(told & (F.col("decided_at") > 0), packed(F.col("epoch"), F.col("decided_at")))).alias(
            "told_decided"
        ),
        F.min(F.when(prepare | told, _called())).alias("called_first"),
        F.max(F.when(prepare | told, _called())).alias("called_last"),
        F.max(F.when(prepare, F.col("queues"))).alias("queues"),
        F.coalesce(
            F.sum(F.when(came | _is("dequeue"), _operation()).when(_is("assign") & kept, 1 << _ASSIGNS_AT)), zero
        ).alias("effects"),
    ]


def _operation() -> Column:
    """One event of an operation. A body in parts has operations that are no events: it counts as very many."""
    return F.when(is_parted(), 1 << _PARTED_AT).otherwise(1)


def _called() -> Column:
    """Commit number and name of a PREPARE, or of an answer. The answer to a manager has the branch's xid for a name."""
    of_branch = F.col("answer").startswith("dtx.")
    return F.xxhash64("csn", F.when(of_branch, F.lit("")).otherwise(F.col("name")))


def operations() -> Column:
    """Of a row of the table: how many events of durable operations a broker's log has, at most."""
    return F.col("effects").bitwiseAND(F.lit((1 << _ASSIGNS_AT) - 1))


def operations_stated() -> Column:
    """Of a row of the table: how many durable operations the transaction has, by its PREPARE or DTX_PREPARE."""
    return F.shiftright("digest", 32)


def has_parts() -> Column:
    """Of a row of the table: true if a message of it is a body in parts. One that is published by itself is a transaction."""
    return F.shiftright(operations(), _PARTED_AT) > 0


def assigns() -> Column:
    """Of a row of the table: in how many queues its PREPARE gives ids, by its `assign` events."""
    return F.shiftright("effects", _ASSIGNS_AT)


def _digest() -> Column:
    """Number and digest (32 bits, in hexadecimal) of the durable operations, as one number."""
    digest = F.coalesce(F.conv(F.col("durable_digest"), 16, 10).cast("long"), F.lit(0))
    return F.shiftleft(F.col("durable_events"), 32).bitwiseOR(digest)


def _owner() -> Column:
    known = F.array_position(F.array(*map(F.lit, OWNERS)), F.col("owner"))
    who = F.when(known > 0, known).otherwise(F.crc32("owner") + len(OWNERS) + 1)
    return F.shiftleft(F.col("epoch"), OWNER_BITS).bitwiseOR(who)


def prepare_epoch() -> Column:
    """Of a row of the table: the epoch of its PREPARE."""
    return F.shiftright(F.col("owner"), OWNER_BITS)


def _hash() -> Column:
    """Of a part that has a PREPARE and was applied once: a hash of what the rules compare among brokers. Else null.

    Where all brokers' parts have the same hash, no rule that compares them can find anything: they need not look.
    """
    whole = F.col("prepare").isNotNull() & (F.col("applies") == 1)
    return F.when(whole, F.xxhash64(*(F.coalesce(name, F.lit(-1)) for name in _COMPARED)))


_COMPARED: Final = ("came", "came_fold", "left", "left_fold", "given", "given_fold", "digest", "prepare")


def _whole() -> list[Column]:
    """Of all brokers' parts."""
    lowest: tuple[str, ...] = (
        "prepare_first",
        "csn_first",
        "owner_first",
        "commit",
        "commit_stable",
        "first",
        "told_committed_first",
        "called_first",
    )
    highest: tuple[str, ...] = (
        "prepare",
        "csn",
        "owner",
        "prepare_cut",
        "branch",
        "rollback",
        "ended_by_epoch",
    )
    highest += ("applied_cut",)
    highest += ("told_branch", "told_committed", "told_rolled_back", "applied")
    highest += ("told_ended", "told_decided", "called_last", "queues", "effects", "digest")
    fields: tuple[str, ...] = (
        "number",
        "first",
        "came",
        "came_fold",
        "left",
        "left_fold",
        "given",
        "given_fold",
        "digest",
        "prepare",
    )
    fields += ("branch", "applies", "applied", "applied_cut")
    return [
        F.collect_list(F.when(F.col("number").isNotNull(), F.struct(*fields))).alias("parts"),
        F.min("hash").alias("hash_first"),
        F.max("hash").alias("hash_last"),
        F.bit_or(F.when(F.col("hash").isNotNull(), F.expr("shiftleft(1L, number)"))).alias("hashed"),
        *(F.max(name).alias(name) for name in ("came", "given", "left", "transient")),
        *(F.min(name).alias(name) for name in lowest),
        *(F.max(name).alias(name) for name in highest),
    ]
