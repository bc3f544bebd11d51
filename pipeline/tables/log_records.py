"""Records of the log, held against one another: at one place of the log all brokers hold the same, field by field.

Every kind of record is compared, with every field that a record has. Names of queues are the exception: a record has the
number of a queue, and each reader finds the name by itself. Declarations have the name in the record.

**Batches.** A batch has the same bytes in all journals, and each feed states their CRC-32. So batches are compared first: all of an
epoch by one fold, which the look at all events has (`agreed`), and else block by block. Records are compared only where batches
differ, or if a feed does not have the rows that it states (`evidence`).

**Blocks.** Records are compared in blocks of the log: each broker's part of a block is folded to a count and an exclusive or
of 64-bit hashes, as the effects of a transaction are. A block ends wherever some broker begins or ends to hold the log, so a
broker has all of a block or nothing.

**Places.** Blocks that differ are few. Their records are compared offset by offset: so a violation names the offset, the broker
that holds something else than most brokers, and the fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed.digest import StreamDigest
from understudy.pipeline.feed.schema import fields_of
from understudy.pipeline.spark.literal_table import literal_table, values_table
from understudy.pipeline.tables.transactions import once
from understudy.pipeline.tallies.chosen_log import NEVER_ENDS, ChosenLog
from understudy.pipeline.tallies.look import Lives, Tally, is_whole

BLOCK: Final = 1 << 8
"""So many places of the log are folded to one number."""
EVENTS: Final = (
    *("enqueue", "dequeue", "assign", "open", "close", "prepare", "commit", "rollback"),
    *("dtx_prepare", "dtx_rollback", "dtx_forget", "outcome", "outcomes_trimmed"),
    *("declare", "delete", "bind", "unbind", "exchange_bind", "exchange_unbind", "epoch", "move", "return"),
)
"""Events of records, the frequent ones first. `hole` stands for records that no journal keeps."""
_NAMED: Final = (
    *("declare", "dtx_prepare", "dtx_rollback", "dtx_forget"),
    *("bind", "unbind", "exchange_bind", "exchange_unbind"),
)
"""Events whose record has the virtual host itself."""
Range = tuple[str, int, int, int]
"""(founding, epoch, first, last): offsets at which records are compared."""
_BATCH: Final = ("founding", "broker", "life", "epoch", "first_offset", "offset", "content_crc")
_PLACE: Final = ("founding", "epoch", "offset")
_PART: Final = ("founding", "epoch", "block", "border")
_HELD: Final = {
    **dict.fromkeys(("founding", "broker"), "string"),
    **dict.fromkeys(("life", "number"), "int"),
    **dict.fromkeys(("began", "end"), "long"),
    "borders": "array<long>",
}


def _content() -> dict[str, Column]:
    """By name the fields of all kinds of records, as their records have them."""
    named = {"vhost": F.col("event").isin(*_NAMED), "queue": F.col("event") == "declare"}
    names = dict.fromkeys(name for event in EVENTS for name in fields_of(event))
    return {name: F.when(named[name], F.col(name)) if name in named else F.col(name) for name in names}


def agreed(
    digests: Sequence[StreamDigest], tallies: Sequence[Tally], chosen: ChosenLog, again: Mapping[str, int], lives: Lives
) -> bool:
    """True if all brokers are known to have the same batches, by one fold of each: then `doubtful` finds nothing. Pure.

    Args:
        digests: of `feed.digest`.
        tallies: of `tallies.look`.
        chosen: the group's log.
        again: `tallies.look.told_again`.
        lives: of `Evidence`.
    """
    batches_of_log = is_whole([each for each in tallies if each.event == "append"], chosen)
    if again or not batches_of_log or any(each.began for each in chosen.reaches):
        return False
    batches: dict[tuple[str, str, int], dict[int, list[int]]] = {
        (each.founding, each.broker, each.life): defaultdict(lambda: [0, 0]) for each in chosen.reaches
    }
    for each in digests:
        if each.unknown:
            return False
        if each.batches:
            life = lives.get((each.broker, each.incarnation), 0)
            of = batches[each.founding, each.broker, life][each.epoch]
            of[0] += each.batches
            of[1] ^= each.contents
    found: dict[str, dict[int, list[int]]] = {}
    return all(found.setdefault(founding, epochs) == epochs for (founding, _, _), epochs in batches.items())


def doubtful(
    known: DataFrame, brokers: DataFrame, chosen: ChosenLog, again: Mapping[str, int], altered: Collection[str] = ()
) -> list[Range]:
    """Where brokers have other batches than others, or state no CRC of one. A job; of a clean feed it reads batches alone.

    Args:
        known: events, `tables.transactions.placed`.
        brokers: of `tallies.tables`.
        chosen: the group's log.
        again: `tallies.look.told_again`.
        altered: brokers whose batches are no evidence (`evidence.Evidence`): all of their groups' records are compared.
    """
    appends = known.filter((F.col("event") == "append") & F.col("kept"))
    rows = _held_rows(once(appends, again, ("append",), _BATCH), known, chosen)
    crc = F.when(F.col("content_crc") < 0, -1 - F.col("number")).otherwise(F.col("content_crc"))
    found = _blocks(rows, brokers, F.xxhash64("first_offset", "offset", crc), "first_offset")
    ranges = found.select("founding", "epoch", "first", "last").orderBy("founding", "epoch", "first").collect()
    doubted = {each.founding for each in chosen.reaches if each.broker in altered}
    merged: list[Range] = [(of, epoch, 0, NEVER_ENDS) for of, epoch in chosen.kept if of in doubted]
    for row in ranges:
        if row["founding"] in doubted:
            continue
        founding, epoch, first, last = merged[-1] if merged else ("", -1, 0, -1)
        if (row["founding"], row["epoch"]) == (founding, epoch) and row["first"] <= last + BLOCK:
            merged[-1] = founding, epoch, first, max(last, row["last"])
        else:
            merged.append((row["founding"], row["epoch"], row["first"], row["last"]))
    return merged


def differing(
    known: DataFrame,
    brokers: DataFrame,
    chosen: ChosenLog,
    again: Mapping[str, int],
    ranges: Sequence[Range],
) -> DataFrame:
    """A row for each place of the log, and each broker that holds something else there than most brokers.

    Args:
        known: events, `tables.transactions.placed`.
        brokers: of `tallies.tables`.
        chosen: the group's log.
        again: `tallies.look.told_again`.
        ranges: of `doubtful`.

    Returns:
        founding, epoch, offset, broker; ``held``: the events of its records there; ``usual``, ``other``: the same of a broker that
        holds what most hold, and its name; ``fields``: what differs, with commas.
    """
    types = {"of": "string", "of_epoch": "long", "first": "long", "last": "long"}
    within = F.broadcast(literal_table(known.sparkSession, ranges, types))
    same = (F.col("founding") == F.col("of")) & (F.col("epoch") == F.col("of_epoch"))
    same &= F.col("offset").between(F.col("first"), F.col("last"))
    rows = _judged(known.join(within, same, "left_semi"), chosen, again)
    fold = F.xxhash64("offset", "event", *_content().values())
    suspect = F.broadcast(_blocks(rows, brokers, fold, "offset").select(*_PART))
    return _places(rows.join(suspect, list(_PART)), brokers)


def _judged(known: DataFrame, chosen: ChosenLog, again: Mapping[str, int]) -> DataFrame:
    """Records of the group's log that their brokers have by the log, each once, with the block in which they stand."""
    of_epoch = (F.col("event") == "rollback") & (F.col("primary_ms") == 0)
    records = known.filter(F.col("event").isin(*EVENTS) & F.col("kept") & ~of_epoch)
    same = ("founding", "broker", "life", "epoch", "offset", "event", *_content())
    return _held_rows(once(records, again, EVENTS, same), known, chosen)


def _held_rows(records: DataFrame, known: DataFrame, chosen: ChosenLog) -> DataFrame:
    """Those that their brokers have by the log, with the number of the broker, and the block in which they stand."""
    rows = records.join(F.broadcast(_held(known, chosen)), ["founding", "broker", "life"])
    border = F.size(F.filter("borders", lambda each: each < F.col("offset")))
    placed = rows.filter("began < offset and offset <= end")
    return placed.withColumns({"block": F.shiftright("offset", BLOCK.bit_length() - 1), "border": border})


def _blocks(rows: DataFrame, brokers: DataFrame, content: Column, first: str) -> DataFrame:
    """The blocks of which brokers hold different rows. ``first``: the column with the first offset of a row."""
    parts = rows.groupBy(*_PART, "number").agg(
        F.count(F.lit(1)).alias("n"),
        F.bit_xor(content).alias("fold"),
        F.min(first).alias("first"),
        F.max("offset").alias("last"),
    )
    whole = parts.groupBy(*_PART).agg(
        F.min("n").alias("n"),
        F.max("n").alias("n_last"),
        F.min("fold").alias("fold"),
        F.max("fold").alias("fold_last"),
        F.collect_set("number").alias("found"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    beside = whole.join(F.broadcast(brokers), "founding")
    return beside.filter(F.expr("n <> n_last or fold <> fold_last") | (F.size(_without()) > 0))


def _without() -> Column:
    """The brokers that hold the log from ``first`` to ``last``, and have no record of it in their feeds."""
    return F.filter(
        "brokers",
        lambda b: (b["began"] < F.col("first")) & (F.col("last") <= b["end"]) & ~F.array_contains("found", b["number"]),
    )


def _places(rows: DataFrame, brokers: DataFrame) -> DataFrame:
    """Of few records: what `differing` returns."""
    content = _content()
    parts = rows.groupBy(*_PLACE, "number", "broker").agg(
        F.bit_xor(F.xxhash64("event", *content.values())).alias("fold"),
        F.concat_ws(", ", F.array_sort(F.collect_list("event"))).alias("held"),
        F.array(*(F.bit_xor(F.xxhash64("event", each)) for each in content.values())).alias("folds"),
    )
    part = F.struct("broker", "fold", "held", "folds", "number")
    whole = parts.groupBy(*_PLACE).agg(
        F.collect_list(part).alias("parts"),
        F.mode("fold", deterministic=True).alias("most"),
        F.collect_set("number").alias("found"),
    )
    zero = F.lit(0).cast("long")
    nothing = F.transform(
        _without(),
        lambda b: F.struct(
            b["broker"].alias("broker"),
            zero.alias("fold"),
            F.lit("").alias("held"),
            F.array().cast("array<bigint>").alias("folds"),
            b["number"].alias("number"),
        ),
    )
    beside = whole.withColumns({"first": F.col("offset"), "last": F.col("offset")})
    beside = beside.join(F.broadcast(brokers), "founding").withColumn("all", F.concat("parts", nothing))
    most = F.get(F.filter("parts", lambda p: p["fold"] == F.col("most")), F.lit(0))
    odd = beside.withColumn("usual", most).withColumn(
        "odd", F.explode(F.filter("all", lambda p: p["fold"] != F.col("most")))
    )
    differ = [
        F.when(F.get("odd.folds", F.lit(i)) != F.get("usual.folds", F.lit(i)), F.lit(name))
        for i, name in enumerate(content)
    ]
    return odd.select(
        *_PLACE,
        F.col("odd.broker").alias("broker"),
        F.col("odd.held").alias("held"),
        F.col("usual.broker").alias("other"),
        F.col("usual.held").alias("usual"),
        F.concat_ws(", ", *differ).alias("fields"),
    )


def _held(known: DataFrame, chosen: ChosenLog) -> DataFrame:
    """By broker and life: how much of the log it holds; and where a broker of its founding begins or ends to."""
    borders: dict[str, set[int]] = defaultdict(set)
    for each in chosen.reaches:
        borders[each.founding] |= {each.began, each.end}
    rows = [
        (each.founding, each.broker, each.life, each.number, each.began, each.end, sorted(borders[each.founding]))
        for each in chosen.reaches
    ]
    return values_table(known.sparkSession, rows, _HELD)
