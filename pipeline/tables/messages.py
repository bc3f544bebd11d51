"""The table of messages: one row for each (queue, replication id), with what came of it in the group's log, and who was given it.

The records of one broker that holds the whole log are enough; which brokers agree with it, the table of transactions
says. If no broker holds the whole log by itself, those of all are taken: the folds here (lowest, highest, any) are the
same for one copy and for many.

A message of a transaction has its id from `assign`, and its place in the queue's order from PREPARE.

What a catch-up brings has no records. So messages are also held against brokers that have caught up (`chosen_log.Joiner`):
each has a bit in ``has`` if it ever got the message; in ``holds`` if its queue got it as well, so that what it did not
let go is there; and in ``gone`` if it has let it go.

All values are numbers, and pairs of numbers are `packed`. Names come back for the few messages of which a rule has something to
say (`with_names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.spark.literal_table import values_table
from understudy.pipeline.spark.packed import packed
from understudy.pipeline.tables.transactions import prepare_epoch
from understudy.pipeline.tallies.chosen_log import ChosenLog, Joiner

KEY: Final = ("founding", "queue_id", "id")
_FOLDS: Final = (
    "come",
    "void",
    "leave",
    "decided",
    "seen",
    "number",
    "fresh",
    "begins",
    "fresh_begins",
    "logged",
    "taken",
)
_TAKEN: Final = ("acknowledged", "rejected")
"""Why plain messages leave that some client had been given."""
_LOCK: Final = "lock"
_OF_JOINERS: Final = ("has", "holds", "gone", "lasts")
_EVENTS: Final = ("enqueue", "dequeue", "assign")


def references(chosen: ChosenLog) -> Sequence[str]:
    """Brokers whose records are taken: of each founding one that holds the whole log, else all."""
    found: set[str] = set()
    for founding in {each.founding for each in chosen.reaches}:
        some = [each for each in chosen.reaches if each.founding == founding]
        furthest = max(each.end for each in some)
        whole = sorted(each.broker for each in some if not each.began and each.end == furthest)
        found |= set(whole[:1]) or {each.broker for each in some}
    return sorted(found)


def records_of_messages(
    known: DataFrame,
    transactions: DataFrame,
    positions: DataFrame,
    brokers: Sequence[str],
    joiners: Sequence[Joiner] = (),
    *,
    branches: bool = True,
    whole: Sequence[str] = (),
) -> DataFrame:
    """A row for each record and fact of each message.

    Args:
        known: events, placed (`tables.transactions.placed`).
        transactions: `tables.transactions.transactions`.
        positions: of `tallies.tables`.
        brokers: of `references`.
        joiners: of `tallies.look`.
        branches: some transaction is a branch; else nothing is ever locked.
        whole: foundings of whose log a feed has all, from the first record on.

    Returns:
        The message's key, and numbers that are null where the row does not say them. ``come``: the offset at which it comes, in
        the group's log and committed; ``leave``: epoch and offset at which it leaves; ``lock``: the same of the DTX_PREPARE of
        the branch that takes it; ``void``: 1 for a record that was cut, or rolled back; ``decided``: epoch and offset of the
        first COMMIT of its transaction. Of a delivery ``seen``: epoch, and the end of the log then; ``number``: epoch and number
        of the event; ``begins``: where its epoch begins; ``fresh`` and ``fresh_begins``: the same two if redelivered=0; ``logged``:
        as ``seen``, if its broker says that journals have the record that brings it. ``taken``: as ``leave``, of what clients have
        taken. If there are joiners, their bits in ``has``, ``holds`` and ``gone``, and ``lasts``: 1 if every journal must have it.
    """
    records = _records(known, brokers, joiners)
    plain = records.filter((F.col("tx") == "") & (F.col("event") != "assign"))
    of_tx = records.filter((F.col("tx") != "") & (F.col("event") != "enqueue"))
    leaves, kept, nothing = F.col("event") == "dequeue", F.col("kept"), F.lit(None).cast("long")
    of_plain = plain.filter(kept | ~leaves).select(
        *_record(~leaves & kept, ~leaves & ~kept, leaves, F.col("epoch"), F.col("offset")),
        F.when(leaves & F.col("reason").isin(*_TAKEN), packed(F.col("epoch"), F.col("offset"))).alias("taken"),
        nothing.alias("decided"),
        *((nothing.alias("lock"),) if branches else ()),
        *(_of_joiner(~leaves & kept, leaves, F.col("persistent"), F.col("offset")) if joiners else ()),
    )
    ended = of_tx.join(_ended(transactions).hint("shuffle_hash"), ["founding", "tx"])
    ended = ended.filter(~leaves | F.col("committed") | F.col("branch").isNotNull())
    comes, took = ~leaves & F.col("committed") & kept, leaves & F.col("committed")
    lock = F.when(leaves, packed(F.col("epoch"), F.col("branch"))).alias("lock")
    of_ended = ended.select(
        *_record(comes, ~leaves & ~comes & ~F.col("in_doubt"), took, F.col("prepare_epoch"), F.col("prepare")),
        F.when(took, packed(F.col("prepare_epoch"), F.col("prepare"))).alias("taken"),
        F.when(comes, F.col("decided")).alias("decided"),
        *((lock,) if branches else ()),
        *(_of_joiner(comes, took, F.col("transient") == 0, F.col("prepare")) if joiners else ()),
    )
    spread = of_plain.unionByName(of_ended)
    if joiners:
        spread = spread.unionByName(_pieces(known, joiners), allowMissingColumns=True)
    spread = spread.withColumn("id", F.explode(F.sequence("id", "last"))).drop("last")
    return spread.unionByName(_deliveries(known, positions, whole), allowMissingColumns=True)


def _ended(transactions: DataFrame) -> DataFrame:
    """Transactions that have ended, and branches in doubt. ``branch`` is null of one that was rolled back."""
    in_doubt = F.col("branch").isNotNull() & ~F.col("committed") & ~F.col("rolled_back")
    rows = transactions.filter(F.expr("committed or rolled_back or prepare_cut is not null") | in_doubt)
    return rows.select(
        "founding",
        "tx",
        "committed",
        "prepare",
        "transient",
        prepare_epoch().alias("prepare_epoch"),
        F.col("commit").alias("decided"),
        F.when(F.col("committed") | in_doubt, F.col("branch")).alias("branch"),
        in_doubt.alias("in_doubt"),
    )


def _records(known: DataFrame, brokers: Sequence[str], joiners: Sequence[Joiner] = ()) -> DataFrame:
    """Records of messages: those of ``brokers``, and what ``joiners`` had of the log that a base contains, with their ``bit``."""
    rows = known.filter(F.col("event").isin(*_EVENTS)).withColumn("count", F.greatest(F.col("count"), F.lit(1)))
    of = F.col("broker").isin(*brokers)
    if not joiners:
        return rows.filter(of)
    found = rows.join(F.broadcast(_bits(known, joiners)), ["founding", "broker", "life"], "left")
    before = F.coalesce(F.col("offset") <= F.col("base"), F.lit(False))
    return found.withColumn("bit", F.when(before, F.col("bit"))).filter(of | F.col("bit").isNotNull())


def _bits(known: DataFrame, joiners: Sequence[Joiner]) -> DataFrame:
    rows = [(each.founding, each.broker, each.life, each.bit, each.base, each.applied) for each in joiners]
    types = {"founding": "string", "broker": "string", "life": "int", "bit": "long", "base": "long", "applied": "long"}
    return values_table(known.sparkSession, rows, types)


def _record(comes: Column, void: Column, leaves: Column, epoch: Column, place: Column) -> list[Column]:
    """Columns of a record of consecutive messages, ``id`` to ``last``."""
    return [
        *map(F.col, KEY),
        (F.col("id") + F.col("count") - 1).alias("last"),
        F.when(comes, place).alias("come"),
        F.when(void, 1).alias("void"),
        F.when(leaves, packed(epoch, place)).alias("leave"),
    ]


def _of_joiner(comes: Column, leaves: Column, durable: Column, place: Column) -> list[Column]:
    """Messages that a joiner has got, and let go, by its log, or with a transaction of a piece. It holds what it had applied."""
    return [
        F.when(comes, F.col("bit")).alias("has"),
        F.when(comes & (place <= F.col("applied")), F.col("bit")).alias("holds"),
        F.when(leaves & F.col("kept") & (place <= F.col("base")), F.col("bit")).alias("gone"),
        F.when(comes & durable, 1).alias("lasts"),
    ]


def _pieces(known: DataFrame, joiners: Sequence[Joiner]) -> DataFrame:
    """Messages that catch-ups have brought, and those that they have dropped."""
    rows = known.filter((F.col("event") == "piece") & F.col("what").isin("queue", "drop"))
    found = rows.join(F.broadcast(_bits(known, joiners)), ["founding", "broker", "life"])
    return found.select(
        *KEY,
        (F.col("id") + F.greatest(F.col("count"), F.lit(1)) - 1).alias("last"),
        *(F.when(F.col("what") == "queue", F.col("bit")).alias(name) for name in ("has", "holds")),
        F.when(F.col("what") == "drop", F.col("bit")).alias("gone"),
    )


def _deliveries(known: DataFrame, positions: DataFrame, whole: Sequence[str]) -> DataFrame:
    began = F.broadcast(positions.select("founding", "epoch", "begins"))
    rows = known.filter(F.col("event") == "deliver").select(*KEY, "epoch", "offset", "seq", "redelivered", "logged")
    logged = F.col("logged") & F.col("founding").isin(*whole)
    number, fresh = packed(F.col("epoch"), F.col("seq")), ~F.col("redelivered")
    begins = F.coalesce("begins", F.lit(0))
    return rows.join(began, ["founding", "epoch"], "left").select(
        *KEY,
        packed(F.col("epoch"), F.col("offset")).alias("seen"),
        F.when(logged, packed(F.col("epoch"), F.col("offset"))).alias("logged"),
        number.alias("number"),
        begins.alias("begins"),
        F.when(fresh, number).alias("fresh"),
        F.when(fresh, begins).alias("fresh_begins"),
    )


def messages(rows: DataFrame) -> DataFrame:
    """The table: one exchange, by message.

    Args:
        rows: of `records_of_messages`.

    Returns:
        founding, queue_id, id; ``came``, ``came_last``: lowest and highest offset; ``left``, ``left_last``: the same with the
        epoch, packed; ``void``: 1 if it stands in a record without effect; ``decided``, packed;
        of deliveries: ``seen_first`` and ``seen_last`` (epoch, offset), ``seen_order`` (epoch, number) of the first,
        ``new_order`` of the last with redelivered=0, ``new_begins`` (highest begin of an epoch in which it was delivered so),
        ``seen_begins`` (the same of any delivery), ``seen_logged`` (epoch, offset) of the last whose record journals have.
        ``taken``, packed: where it leaves since a client has taken it.
        ``locked``, packed: of the first branch that takes it. If there are joiners
        ``has``, ``holds`` and ``gone``, all their bits, and ``lasts``.
    """
    joiners = [name for name in _OF_JOINERS if name in rows.columns]
    lock = [_LOCK] if _LOCK in rows.columns else []
    # Records of a message stand far apart: nothing would be folded before the exchange.
    return (
        rows.select(*KEY, *_FOLDS, *joiners, *lock)
        .repartition(*KEY)
        .groupBy(*KEY)
        .agg(
            *(F.coalesce(F.bit_or(name), F.lit(0)).alias(name) for name in joiners),
            F.min("come").alias("came"),
            F.max("come").alias("came_last"),
            F.min("leave").alias("left"),
            F.max("leave").alias("left_last"),
            F.max("void").alias("void"),
            F.min("decided").alias("decided"),
            (F.min(_LOCK) if lock else F.lit(None).cast("long")).alias("locked"),
            F.min("seen").alias("seen_first"),
            F.max("seen").alias("seen_last"),
            F.min("number").alias("seen_order"),
            F.max("fresh").alias("new_order"),
            F.max("fresh_begins").alias("new_begins"),
            F.max("begins").alias("seen_begins"),
            F.max("logged").alias("seen_logged"),
            F.min("taken").alias("taken"),
        )
    )


def beside_joiners(table: DataFrame, known: DataFrame, joiners: Sequence[Joiner]) -> DataFrame:
    """The table with ``joiners``: an array of those of its founding; null of a message whose queue may have ended.

    A queue ends when it is deleted. One that is not durable ends when the whole group has restarted, and no journal declares it.
    """
    by_founding: dict[str, list[tuple[int, str, int, int]]] = {}
    for each in joiners:
        by_founding.setdefault(each.founding, []).append((each.bit, each.broker, each.base, each.caught_up))
    types = {"founding": "string", "joiners": "array<struct<bit:long,broker:string,base:long,caught_up:long>>"}
    found = table.join(
        F.broadcast(values_table(known.sparkSession, list(by_founding.items()), types)), "founding", "left"
    )
    queues = known.filter(F.col("event").isin("declare", "delete") & (F.col("what") == "queue"))
    lasts = F.bool_and((F.col("event") == "declare") & F.col("durable")).alias("declared")
    lasting = queues.groupBy("founding", "queue_id").agg(lasts).filter("declared")
    marked = found.join(F.broadcast(lasting), ["founding", "queue_id"], "left")
    return marked.withColumn("joiners", F.when(F.col("declared"), F.col("joiners"))).drop("declared")


def whole_logs(chosen: ChosenLog) -> Sequence[str]:
    """Foundings of whose log some broker's feed has all."""
    return sorted({each.founding for each in chosen.reaches if not each.began and each.end})


def with_names(suspects: DataFrame, known: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """Messages with ``queue``, the queue's name, and ``tx``, the transaction that brings them, or else takes them.

    Args:
        suspects: few messages.
        known: events, placed.
        brokers: of `references`.
    """
    told = known.filter(F.col("event") == "deliver").withColumns({"count": F.lit(1), "tx": F.lit("")})
    rows = _records(known, brokers).unionByName(told)
    # An enqueue of a transaction has no id, only a place: the transaction's `assign` says the ids.
    rows = rows.filter((F.col("event") != "enqueue") | (F.col("tx") == ""))
    comes = F.col("event") == "assign"
    spread = rows.select("founding", "queue_id", F.explode(_ids()).alias("id"), "queue", "tx", comes.alias("comes"))
    found = (
        spread.join(suspects.select(*KEY), list(KEY))
        .groupBy(*KEY)
        .agg(
            F.max("queue").alias("queue"),
            F.coalesce(F.max(F.when(F.col("comes"), F.col("tx"))), F.max("tx")).alias("tx"),
        )
    )
    return suspects.join(found, list(KEY), "left")


def _ids() -> Column:
    return F.sequence(F.col("id"), F.col("id") + F.col("count") - 1)
