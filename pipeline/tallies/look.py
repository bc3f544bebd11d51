"""One look at all events of a feed: tallies by incarnation, epoch and event. What is small in a feed comes to the driver so.

The feed is aggregated once. Every buffer of that aggregation is a number, and every text is part of its key: so Spark hashes
rows, and does not sort them. A tally is a row an incarnation, epoch and kind of event. The texts of rare events (members of an
in-sync set, why there is a gap, ...) are in the key too, so each of those events is a tally of its own.

The rest here is pure: tallies in, small tables out, for `evidence`, `chosen_log` and `statements`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.observers.events_schema import P
from understudy.pipeline.feed.check import is_broken
from understudy.pipeline.feed.digest import head_digest
from understudy.pipeline.tallies.chosen_log import ChosenLog, EpochLog
from understudy.pipeline.tallies.evidence import JOURNAL, MASK, Incarnation

_KEY: Final = ("group", "founding", "broker", "incarnation", "epoch", "event", "said")
Lives = Mapping[tuple[str, str], int]
"""By (broker, incarnation): the life of the data directory, if it is not the first one (`evidence.Evidence`)."""
NEVER: Final = 1 << 62
"""Above all offsets, numbers and clocks."""
SKEW_MS: Final = 10_000
"""So far clocks of a group may differ, and so late may a broker's feed be, before its end is taken for the end of its log."""
PAUSE_MS: Final = 2 * SKEW_MS
"""When a broker's journal gets nothing for longer than this, its end is known for a moment between, by any clock of the group."""
BASE: Final = "base"
CAUGHT_UP: Final = "caught_up"
"""The pieces that begin and end a catch-up."""
_GAP: Final = "gap"
_END: Final = "end"
PLAIN: Final = "plain"
"""`said` of records of messages that are of no transaction."""
PARTED: Final = "parted"
"""`said` of messages of transactions that may be bodies in parts."""
PARTED_BYTES: Final = 2 << 20
"""A persistent body from which on it stands in the log in parts (docs/feed.md, What a client was told)."""
NAMED: Final = "named"
"""`said` of answers to outcome queries, and of rollbacks of transactions with a name."""
EARLY: Final = "early"
"""In `said` of brokers that are put into the in-sync set: that one lacks what is stable, or what a catch-up brings."""
LOST: Final = "/lost"
"""In `said` of epochs in which transient messages ended, behind the offset."""
UNKNOWN: Final = "unknown"
LISTED: Final = "listed"
"""`said` of answers that there is no such branch, and of those that list all that are in doubt."""
UNLOGGED: Final = "unlogged"
"""`said` of declarations of queues whose messages are in no log."""
FIRST: Final = "first"
"""`said` of the first role of a process."""
UNLISTED: Final = "ready unlisted"
"""`said` of a broker that is ready, and not in the in-sync set."""


@attrs.frozen(kw_only=True)
class Tally:
    """Events of one incarnation and epoch with one name, and with the same in `said`.

    Attributes:
        said: what a rare event says, "" of others. In the order of `_said`: of `enqueue` and `dequeue` `PLAIN` if they are of no
            transaction, of `dequeue` with the reason behind it, of other `enqueue` `PARTED` if they are large; of `apply` "tx" if
            it has a transaction; of `append` and `commit` its clock in units of `PAUSE_MS`; of `told` the outcome if it names a
            transaction, `NAMED` if it is the answer to an outcome query, `UNKNOWN` or `LISTED` of branches; of `rollback` `NAMED`
            if its transaction has a name; of `readiness` "blocked" if it should not be ready; of `piece` what it is, with its
            number behind it if that is `BASE` or `CAUGHT_UP`; of `segment` the segment before it; of `gap` and `cut` the reason;
            of `in_sync` its number, the members, and how many there must be; of `epoch` its offset, `LOST` if transient
            messages ended, and the primary; of `vote` and `status` which, `UNLISTED` if it should not be ready; of
            `expel` its number, its data, and the broker; of `admit` `EARLY` if it came too early, and the broker; of
            `bar` its number, the broker, and "lifted" if it is; of `step_down` the successor; of `role` `FIRST` if its process had
            none before; of `declare` `UNLOGGED` if messages of that queue are in no log.
        events: how many.
        broken: rows among them that are no events.
        newest: the highest schema.
        first, last, total: lowest, highest and sum of the numbers.
        squares: sum of the squares of their last 16 bits.
        begun_ms, ended_ms: clocks of the first and of the last one that has a clock.
        low, high: lowest and highest offset; of `cut` the highest end of the log before.
        first_offset: of `append`: the lowest.
        covered: of `append`: places of the log, those of all batches together.
        stable: of `append`: the highest position that one states as stable, at most its own; of `status` and `applied`: the
            highest; -1 if it is not said.
        count: of `dropped`: sum.
        lag_ms: of `commit`: how much later it came to this journal, by its clock, than it was decided, by the primary's clock; the
            lowest.
        segment, previous_events, previous_event_digest: of `segment`.
        ended: of `end`: of the one with most events their number and digest, `packed_end`.
    """

    group: str | None = None
    founding: str | None = ""
    broker: str | None = ""
    incarnation: str | None = ""
    epoch: int | None = 0
    event: str | None = ""
    said: str = ""
    events: int
    broken: int = 0
    newest: int | None = 0
    first: int | None = 0
    last: int | None = 0
    total: int | None = 0
    squares: int | None = 0
    begun_ms: int | None = 0
    ended_ms: int | None = 0
    low: int | None = 0
    high: int | None = 0
    first_offset: int | None = 0
    covered: int | None = 0
    stable: int | None = 0
    count: int | None = 0
    lag_ms: int | None = None
    segment: int | None = 0
    previous_events: int | None = 0
    previous_event_digest: int | None = -1
    ended: int | None = None


def look_at(feed: DataFrame) -> list[Tally]:
    """The tallies of ``feed``: one aggregation, whose result comes to the driver."""
    return [Tally(**row.asDict()) for row in look_rows(feed).collect()]


def look_rows(feed: DataFrame) -> DataFrame:
    """The plan of `look_at`."""
    append = F.col("event") == "append"
    low = F.col("seq").bitwiseAND(F.lit(MASK))
    at = F.when(F.col("at_ms") > 0, F.col("at_ms"))
    return (
        feed.withColumn("said", _said())
        .groupBy(*_KEY)
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.count_if(is_broken()).alias("broken"),
            F.max("schema").alias("newest"),
            F.min("seq").alias("first"),
            F.max("seq").alias("last"),
            F.sum("seq").alias("total"),
            F.sum(low * low).alias("squares"),
            F.min(at).alias("begun_ms"),
            F.max(at).alias("ended_ms"),
            F.min("offset").alias("low"),
            F.max(F.when(F.col("event") == "cut", F.col("end_before")).otherwise(F.col("offset"))).alias("high"),
            F.min(F.when(append, F.col("first_offset"))).alias("first_offset"),
            F.sum(F.when(append, F.col("offset") - F.col("first_offset") + 1)).alias("covered"),
            F.max(F.when(append, F.least("stable", "offset")).when(_is(_STABLE), F.col("stable"))).alias("stable"),
            F.sum(F.when(F.col("event") == "dropped", F.col("count"))).alias("count"),
            F.min(F.when(F.col("event") == "commit", F.col("at_ms") - F.col("primary_ms"))).alias("lag_ms"),
            F.max("segment").alias("segment"),
            F.max("previous_events").alias("previous_events"),
            F.max("previous_event_digest").alias("previous_event_digest"),
            F.max(F.when(F.col("event") == _END, packed_end())).alias("ended"),
        )
    )


def is_ready_too_much() -> Column:
    """Of a `readiness`: whether it says ready, and what forbids that."""
    return F.col("ready") & ((F.col("blockers") > 0) | ~F.col("listed") | ~F.col("linked"))


def is_parted() -> Column:
    """Of an `enqueue`: whether its body may stand in parts. Feeds of older programs say no more than its size."""
    return F.col("parted") | (F.col("size") >= PARTED_BYTES)


def is_unlogged() -> Column:
    """Of a `declare`: whether it is of a queue whose messages are in no log."""
    return (F.col("what") == "queue") & ~F.col("messages_logged")


def _is_admitted_early() -> Column:
    lacks = (F.col("acked") >= 0) & (F.col("acked") < F.col("stable"))
    return F.col("catches_up") | lacks


_STABLE: Final = ("status", "applied")
"""Facts that say how far their broker knew the log to be stable."""
_SILENT: Final = ("assign", "open", "close", "prepare")
"""Frequent events that say nothing more than their names."""


def _said() -> Column:
    """Of rare events what they say. Few: a segment, an epoch, a change of the in-sync set, a gap, a cut.

    Each event more makes the code longer that Java must compile (`tests.pipeline.test_compiled`).
    """
    parted = F.when(is_parted(), PARTED).otherwise("")
    number, space = F.col("seq").cast("string"), F.lit(" ")
    # The frequent ones first: each row is compared with those before its own.
    texts: dict[str | tuple[str, ...], Column] = {
        "enqueue": F.when(F.col("tx") == "", PLAIN).otherwise(parted),
        "dequeue": F.when(F.col("tx") == "", F.concat(F.lit(f"{PLAIN} "), F.col("reason"))).otherwise(""),
        "deliver": F.lit(""),
        "apply": F.when(F.col("tx") == "", "").otherwise("tx"),
        ("append", "commit"): F.floor(F.col("at_ms") / PAUSE_MS).cast("string"),
        _SILENT: F.lit(""),
        "told": F.when(F.col("tx") != "", F.col("outcome"))
        .when(F.col("answer") == "outcome", NAMED)
        .when(F.col("outcome").isin(UNKNOWN, LISTED), F.col("outcome"))
        .otherwise(""),
        "rollback": F.when(F.col("name") != "", NAMED).otherwise(""),
        "readiness": F.when(is_ready_too_much(), "blocked").otherwise(""),
        "piece": F.when(F.col("what").isin(BASE, CAUGHT_UP), F.concat("what", space, number)).otherwise(F.col("what")),
        "segment": F.col("previous"),
        ("gap", "cut"): F.col("reason"),
        "in_sync": F.concat_ws(" ", number, F.col("members"), F.col("min_insync").cast("string")),
        "epoch": F.concat(
            F.col("offset").cast("string"), F.when(F.col("transients_lost"), LOST).otherwise(""), space, "primary"
        ),
        "vote": F.col("vote"),
        "status": F.when((F.col("status") == "ready") & ~F.col("listed"), UNLISTED).otherwise(F.col("status")),
        "expel": F.concat_ws(" ", number, "data", "backup"),
        "admit": F.concat_ws(" ", F.when(_is_admitted_early(), EARLY).otherwise(""), F.col("backup")),
        "bar": F.concat_ws(" ", number, "backup", F.when(F.col("lifted"), "lifted").otherwise("")),
        "step_down": F.col("successor"),
        "role": F.when(F.col("was") == "", FIRST).otherwise(""),
        "declare": F.when(is_unlogged(), UNLOGGED).otherwise(""),
    }
    (first, text), *others = texts.items()
    found = F.when(_is(first), text)
    for name, text in others:
        found = found.when(_is(name), text)
    return found.otherwise("")


def _is(names: str | tuple[str, ...]) -> Column:
    return F.col("event") == names if isinstance(names, str) else F.col("event").isin(*names)


# -- what follows: pure -----------------------------------------------------------------------------------------------


def incarnations(tallies: Iterable[Tally], digests: Mapping[tuple[str, str], int]) -> list[Incarnation]:
    """The numbered streams of all brokers. Events `gap` and `end` have no number, and are in none.

    Args:
        tallies: of all events.
        digests: `feed.digest.digests_of`.
    """
    by_name: dict[tuple[str, str], list[Tally]] = defaultdict(list)
    ends: dict[tuple[str, str], int] = {}
    for each in tallies:
        place = each.broker or "", each.incarnation or ""
        if each.event == _END:
            ends[place] = max(ends.get(place, 0), each.ended or 0)
        elif each.event != _GAP:
            by_name[place].append(each)
    found = [_incarnation(place, some, ends.get(place), digests.get(place, 0)) for place, some in by_name.items()]
    return found + [_incarnation(place, (), ends[place], 0) for place in ends.keys() - by_name.keys()]


def packed_end() -> Column:
    """Of an `end`: how many events there are, and behind that their digest and 1, or 0 if it is not known; as one number."""
    digest = F.greatest(F.col("event_digest"), F.lit(-1)) + 1
    return F.shiftleft("events", P.bit_length()).bitwiseOR(digest)


def _incarnation(place: tuple[str, str], found: Sequence[Tally], ended: int | None, rows: int) -> Incarnation:
    segments = [each for each in found if each.event == "segment"]
    stated = [-1 if each.previous_event_digest is None else each.previous_event_digest for each in segments]
    return Incarnation(
        broker=place[0],
        name=place[1],
        events=sum(each.events for each in found),
        first=min((each.first or 0 for each in found), default=0),
        last=max((each.last or 0 for each in found), default=0),
        total=sum(each.total or 0 for each in found),
        squares=sum(each.squares or 0 for each in found),
        segment=max((each.segment or 0 for each in segments), default=0),
        previous=max((each.said for each in segments), default=""),
        previous_events=max((each.previous_events or 0 for each in segments), default=0),
        begun_ms=min((each.begun_ms for each in found if each.begun_ms), default=0),
        ended_ms=max((each.ended_ms for each in found if each.ended_ms), default=0),
        dropped=sum(each.count or 0 for each in found),
        begins=sum(each.events for each in found if (each.event, each.said) == ("role", FIRST)),
        roles=sum(each.events for each in found if each.event in ("role", "status")),
        digest=(rows + sum(map(_head_digest, found))) % P,
        previous_digest=max(stated, default=-1),
        end=None if ended is None else (ended >> P.bit_length(), (ended & P) - 1),
    )


def _head_digest(each: Tally) -> int:
    return head_digest(each.event or "", each.founding or "", each.epoch or 0, each.total or 0)


def gaps(tallies: Iterable[Tally]) -> list[tuple[str, str]]:
    """(broker, reason) of each `gap`."""
    return [(each.broker or "", each.said) for each in tallies if each.event == _GAP]


def named(tallies: Iterable[Tally]) -> set[str]:
    """Brokers that an in-sync set or an epoch names."""
    found: set[str] = set()
    for each in tallies:
        if each.event == "epoch":
            found.add(each.said.partition(" ")[2])
        elif each.event == "in_sync":
            found |= set(members_of(each).split(","))
    return found


def members_of(each: Tally) -> str:
    """Of an `in_sync`: the broker ids, with commas."""
    return each.said.split(" ")[1]


def epoch_logs(tallies: Iterable[Tally], lives: Lives) -> list[EpochLog]:
    """The part of each epoch's log that each broker has, in each life of its directory."""
    found: dict[tuple[str, str, int, int], dict[str, Any]] = defaultdict(dict)
    for each in tallies:
        place = found[each.founding or "", each.broker or "", each.epoch or 0, life_of(each, lives)]
        if each.event == "append":
            place["first"] = min(place.get("first", NEVER), each.first_offset or 0)
            place["last"] = max(place.get("last", 0), each.high or 0)
        elif is_piece(each, BASE):
            if (at := told_at(each)) >= place.get("base_at", at):
                place |= {"base": each.high or 0, "base_at": at}
        elif each.event == "apply" and not each.said:
            place["applied"] = max(place.get("applied", 0), each.high or 0)
    return [
        EpochLog(founding=founding, broker=broker, epoch=epoch, life=life, **place)
        for (founding, broker, epoch, life), place in found.items()
        if place
    ]


def is_whole(tallies: Iterable[Tally], chosen: ChosenLog) -> bool:
    """True if all records are of the group's log: none stands behind the end of its epoch's part of that log."""
    kept = chosen.kept
    return all((each.high or 0) <= kept.get((each.founding or "", each.epoch or 0), NEVER) for each in tallies)


def told_again(tallies: Iterable[Tally], lives: Lives) -> dict[str, int]:
    """By broker: the offset behind which its feed may have a record twice. A broker whose feed has each once is not in it.

    In one life of its directory, a record comes again when a log has lost its tail (``cut``), or when a catch-up brings it.
    """
    found: dict[str, int] = {}
    spans: dict[tuple[str, str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for each in tallies:
        broker = each.broker or ""
        if each.event == "cut" and each.said == "rejoin":
            found[broker] = min(found.get(broker, NEVER), each.low or 0)
        elif each.event in ("cut", "piece"):
            found[broker] = 0
        elif each.event == "append":
            place = each.founding or "", broker, life_of(each, lives)
            spans[place].append((each.first_offset or 0, each.high or 0, each.covered or 0))
    for (_, broker, _), some in spans.items():
        span = max(high for _, high, _ in some) - min(first for first, _, _ in some) + 1
        if broker not in found and sum(covered for _, _, covered in some) > span:
            found[broker] = 0
    return found


def is_piece(each: Tally, what: str) -> bool:
    """True where a row is the piece ``what``: `BASE` or `CAUGHT_UP`."""
    return each.event == "piece" and each.said.partition(" ")[0] == what


def told_at(each: Tally) -> tuple[int, int]:
    """(segment, number) of an event of a journal that is a tally of its own: of one life, ascending in its order."""
    journal = JOURNAL.fullmatch(each.incarnation or "")
    return int(journal[1]) if journal is not None else 0, each.first or 0


def life_of(each: Tally, lives: Lives) -> int:
    """Number of the data directory of which an incarnation is."""
    return lives.get((each.broker or "", each.incarnation or ""), 0)


def epochs_begun(tallies: Iterable[Tally]) -> list[tuple[str, int, int]]:
    """(founding, offset, clock) of each EPOCH record: the earliest clock at which a broker wrote it."""
    found: dict[tuple[str, int], int] = {}
    for each in tallies:
        if each.event == "epoch":
            place = each.founding or "", each.low or 0
            found[place] = min(found.get(place, NEVER), each.begun_ms or 0)
    return [(founding, offset, at_ms) for (founding, offset), at_ms in found.items()]


def primaries(tallies: Iterable[Tally]) -> list[tuple[str, int, str, int]]:
    """(founding, epoch, primary, offset) of each EPOCH record."""
    return sorted(
        {
            (each.founding or "", each.epoch or 0, each.said.partition(" ")[2], each.low or 0)
            for each in tallies
            if each.event == "epoch"
        }
    )


def said_of_log(tallies: Iterable[Tally]) -> list[tuple[str, str, str, int, int, int]]:
    """(founding, event, broker, epoch, place, clock): the furthest position told as applied, or stated as stable, in each epoch."""
    found: dict[tuple[str, str, str, int], tuple[int, int]] = {}
    for each in tallies:
        if each.event == "append" or (each.event == "apply" and not each.said):
            place = (each.stable if each.event == "append" else each.high) or 0
            key = each.founding or "", each.event, each.broker or "", each.epoch or 0
            before = found.get(key, (0, 0))
            found[key] = max(before[0], place), max(before[1], each.ended_ms or 0)
    return [(*key, *places) for key, places in found.items()]
