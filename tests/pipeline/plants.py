"""Violations planted in made feeds at known places: for each kind of the audit's rules at least one, and for each kind of gap.

A plant changes rows of a clean feed, or adds some, so that the numbers of all events stay whole: what it breaks is a
promise and not the evidence. Plants of evidence break just that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from tests.pipeline.conditions import Where, changed, col, some
from tests.pipeline.made_rows import (
    AT_MS,
    BROKERS,
    HALF,
    MESSAGES,
    SHIFT,
    STEPS,
    Rows,
    Size,
    added,
    base,
    commit_of,
    epoch_two_at,
    first_id,
    prepare_of,
    process_of,
    queue_of,
    tx_of,
)

Plant = Callable[[Rows, Size], Rows]

LATE_MS: Final = 600_000


def planted(size: Size) -> int:
    """The transaction at which the promise is broken: in the first epoch, and not near its ends, if ``size`` names none."""
    return size.planted or size.half // 2


@attrs.frozen(kw_only=True)
class Planted:
    """One plant.

    Attributes:
        promise: of the rule that must find it; "" if it breaks the evidence.
        kind: of the violation.
        put: changes the rows.
        elsewhere: kinds that follow from it, at the same place or beside it.
        text: what a problem of evidence says.
        whole: it changes all rows of a broker, or of an event. Other plants change what `touched` says.
    """

    promise: str = ""
    kind: str = ""
    put: Plant
    elsewhere: frozenset[str] = frozenset()
    text: str = ""
    whole: bool = False


PLANTS: dict[str, Planted] = {}


def touched(size: Size) -> set[int]:
    """Transactions whose rows plants change: the planted one, the next, the ends of segment, of epoch and of the feed."""
    near = {planted(size), planted(size) + 1, size.segment - 1, size.half - 1}
    return near | set(range(max(0, size.transactions - 10), size.transactions))


def plant(promise: str, kind: str, *elsewhere: str, whole: bool = False) -> Callable[[Plant], Plant]:
    """Note a plant under its name."""

    def note(put: Plant) -> Plant:
        PLANTS[put.__name__.strip("_")] = Planted(
            promise=promise, kind=kind, put=put, elsewhere=frozenset(elsewhere), whole=whole
        )
        return put

    return note


def gap(text: str, *, whole: bool = False) -> Callable[[Plant], Plant]:
    """Note a plant that breaks the evidence."""

    def note(put: Plant) -> Plant:
        PLANTS[put.__name__.strip("_")] = Planted(put=put, text=text, whole=whole)
        return put

    return note


# -- means --------------------------------------------------------------------------------------------------------------


def at(size: Size, step: str, *brokers: str, k: int | None = None) -> Where:
    """Rows of the planted transaction, or of ``k``."""
    here = (col("k") == (planted(size) if k is None else k)) & (col("step") == step)
    return here & col("broker").isin(*(brokers or BROKERS))


def of_next(size: Size, step: str, *brokers: str) -> Where:
    """Rows behind the planted transaction that tell that it is applied."""
    return at(size, step, *brokers, k=planted(size) + 1)


def hidden(rows: Rows, where: Where) -> Rows:
    """Rows ``where`` stand for transient records: numbered, and say nothing."""
    return changed(rows, where, event="hole", count=1, tx=None, persistent=None)


def told_later(rows: Rows, broker: str, size: Size, *facts: Mapping[str, Any]) -> Rows:
    """More facts, of a later process of a broker."""
    name = f"p{AT_MS + planted(size)}-99"
    row: dict[str, Any] = {"broker": broker, "incarnation": name, "at_ms": AT_MS + size.transactions}
    row |= {"epoch": 2, "offset": commit_of(size.transactions - 1, size)}
    return rows + added({**row, "seq": number, **each} for number, each in enumerate(facts, 1))


def instead_of_applied(rows: Rows, size: Size, *brokers: str, **values: Any) -> Rows:
    """An event in the place of one that says how far the log is applied, behind PREPARE, of the planted transaction."""
    return changed(
        rows,
        at(size, "applied_before", *brokers),
        tx=tx_of(planted(size), size),
        csn=None,
        stable=None,
        **values,
    )


# -- G1 -----------------------------------------------------------------------------------------------------------------


@plant("G1", "partial")
def partial_enqueue(rows: Rows, size: Size) -> Rows:
    return hidden(
        rows, at(size, "enqueue", "b3") & (col("place") == 2) & (col("offset") < base(planted(size), size) + HALF)
    )


@plant("G1", "partial")
def partial_dequeue(rows: Rows, size: Size) -> Rows:
    return hidden(rows, at(size, "dequeue", "b2") & (col("offset") == base(planted(size), size) + MESSAGES + 3))


@plant("G1", "partial")
def other_ids(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "assign", "b3"), id=col("id") + 1)


@plant("G1", "partial")
def other_size(rows: Rows, size: Size) -> Rows:
    one = at(size, "enqueue", "b2") & (col("offset") == base(planted(size), size) + 1)
    return changed(rows, one, size=255)


@plant("G1", "uneven")
def lost_alike(rows: Rows, size: Size) -> Rows:
    """A message of the transaction is in no log, and PREPARE gives it an id all the same."""
    return hidden(rows, at(size, "enqueue") & (col("offset") == base(planted(size), size) + 2))


@plant("G1", "uneven")
def without_an_id(rows: Rows, size: Size) -> Rows:
    """The last message of the second queue gets no id on any broker. So nobody is given it, and nobody takes it."""
    last = col("queue_id") == queue_of(planted(size), 1)
    rows = changed(rows, at(size, "assign") & last, count=HALF - 1)
    gone = last & (col("id") == first_id(planted(size), size) + HALF - 1)
    return hidden(rows, gone & (at(size, "deliver") | of_next(size, "dequeue")))


@plant("G1", "absent")
def absent(rows: Rows, size: Size) -> Rows:
    for step in ("open", "enqueue", "dequeue", "close", "prepare", "assign", "commit"):
        rows = hidden(rows, at(size, step, "b2"))
    return hidden(rows, of_next(size, "applied_tx", "b2"))


@plant("G1", "unapplied")
def unapplied(rows: Rows, size: Size) -> Rows:
    return hidden(rows, of_next(size, "applied_tx", "b3"))


def second_life(rows: Rows, broker: str) -> Rows:
    """The data directory of ``broker`` is lost, and a new one gets the whole log again."""
    again = some(rows, (col("broker") == broker) & col("incarnation").startswith("j"))
    names = [{name: f"{row[name]}bb" for name in ("incarnation", "previous") if row.get(name)} for row in again]
    return rows + [{**row, **each, "at_ms": row["at_ms"] + LATE_MS} for row, each in zip(again, names, strict=True)]


@plant("G1", "unapplied", whole=True)
def unapplied_after_a_loss(rows: Rows, size: Size) -> Rows:
    """The first directory of b3 has applied the transaction, and the second one has not."""
    rows = second_life(rows, "b3")
    return hidden(rows, of_next(size, "applied_tx", "b3") & col("incarnation").endswith("bb"))


# -- G2 -----------------------------------------------------------------------------------------------------------------


@plant("G2", "decided_both_ways", "told_committed")
def decided_both_ways(rows: Rows, size: Size) -> Rows:
    return instead_of_applied(
        rows, size, "b3", event="rollback", offset=commit_of(planted(size), size), primary_ms=AT_MS
    )


@plant("G2", "two_owners")
def two_owners(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "prepare", "b2"), owner="operator")


@plant("G2", "differing")
def differing(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "close", "b3"), durable_digest="00000000")


# -- G3 -----------------------------------------------------------------------------------------------------------------


@plant("G3", "decided_too_early")
def decided_too_early(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "append_commit"), stable=prepare_of(planted(size), size) - 1)


@plant("G3", "seen_early")
def seen_early(rows: Rows, size: Size) -> Rows:
    first = at(size, "deliver") & (col("id") == first_id(planted(size), size))
    return changed(rows, first, offset=prepare_of(planted(size), size))


@plant("G3", "seen_void", "told_committed", "doubled")
def seen_void(rows: Rows, size: Size) -> Rows:
    """The transaction is rolled back, and its messages are delivered all the same. The next one must not take them."""
    rows = changed(rows, at(size, "commit"), event="rollback", csn=None, primary_ms=AT_MS)
    return hidden(hidden(rows, of_next(size, "applied_tx")), of_next(size, "dequeue"))


# -- G4, G6 -------------------------------------------------------------------------------------------------------------


def _told_at_the_end(rows: Rows, size: Size, at_ms: int) -> Rows:
    last = at(size, "told", k=size.half - 1)
    return changed(rows, last, prepare_offset=epoch_two_at(size) + 3, at_ms=at_ms)


@plant("G4", "lost", "told_unprepared")
def lost(rows: Rows, size: Size) -> Rows:
    return _told_at_the_end(rows, size, AT_MS + size.half - 1)


@plant("G6", "stale", "told_unprepared")
def stale(rows: Rows, size: Size) -> Rows:
    return _told_at_the_end(rows, size, AT_MS + size.half + 50)


@plant("G4", "lost")
def lost_confirm(rows: Rows, size: Size) -> Rows:
    last = at(size, "told", k=size.half - 1)
    end = epoch_two_at(size)
    return changed(rows, last, event="confirm", tag=7, first_offset=end - 1, last_offset=end, count=2, tx=None)


@plant("G6", "undone")
def undone(rows: Rows, size: Size) -> Rows:
    last = at(size, "applied_before", "b1", k=size.half - 1)
    return changed(rows, last, offset=epoch_two_at(size) + 5)


@plant("G4", "not_durable")
def not_durable(rows: Rows, size: Size) -> Rows:
    """The journal of b3 ends before ten transactions that clients were told of, and b3 itself goes on."""
    gone = (col("broker") == "b3") & (col("k") >= size.transactions - 10) & col("incarnation").startswith("j")
    later = {"event": "status", "status": "ready", "at_ms": AT_MS + size.transactions + LATE_MS, "offset": 1}
    return told_later(some(rows, ~gone), "b3", size, later)


@plant("G6", "two_primaries")
def two_primaries(rows: Rows, size: Size) -> Rows:
    second = (col("step") == "epoch") & (col("epoch") == 2) & (col("broker") == "b3")
    return changed(rows, second, primary="b3")


# -- G5 -----------------------------------------------------------------------------------------------------------------


@plant("G5", "branch_lost")
def branch_lost(rows: Rows, size: Size) -> Rows:
    return instead_of_applied(rows, size, "b1", "b2", event="dtx_prepare", offset=prepare_of(planted(size), size) - 1)


@plant("G5", "branch_ended", "decided_both_ways", "branch_decided_twice", "told_committed")
def branch_ended(rows: Rows, size: Size) -> Rows:
    rows = instead_of_applied(rows, size, event="dtx_prepare", offset=prepare_of(planted(size), size) - 1)
    rolled = of_next(size, "applied_to")
    return changed(rows, rolled, event="rollback", tx=tx_of(planted(size), size), primary_ms=0)


@plant("G5", "branch_decided_twice", "decided_both_ways", "told_committed")
def branch_decided_twice(rows: Rows, size: Size) -> Rows:
    rows = instead_of_applied(rows, size, event="dtx_prepare", offset=prepare_of(planted(size), size) - 1)
    rolled = of_next(size, "applied_to")
    return changed(rows, rolled, event="rollback", tx=tx_of(planted(size), size), primary_ms=AT_MS)


# -- G7 -----------------------------------------------------------------------------------------------------------------


@plant("G7", "ready_too_early")
def ready_too_early(rows: Rows, size: Size) -> Rows:
    return told_later(
        rows,
        "b2",
        size,
        {"event": "tracker_add", "tx": tx_of(planted(size), size), "backup": "b3", "queue": "q1", "left": 3},
        {"event": "readiness", "backup": "b3", "ready": True, "listed": True, "linked": True, "blockers": 0},
        {"event": "tracker_clear", "tx": tx_of(planted(size), size), "backup": "b3"},
        {"event": "readiness", "backup": "b3", "ready": True, "listed": True, "linked": True, "blockers": 0},
    )


@plant("G7", "ready_and_blocked")
def ready_and_blocked(rows: Rows, size: Size) -> Rows:
    ready = {"event": "readiness", "backup": "b3", "ready": True, "listed": True, "linked": True, "blockers": 1}
    return told_later(rows, "b2", size, ready)


# -- G8 -----------------------------------------------------------------------------------------------------------------


@plant("G8", "told_rolled_back")
def told_rolled_back(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), outcome="rolled back", answer="channel.close")


@plant("G8", "told_both", "told_rolled_back")
def told_both(rows: Rows, size: Size) -> Rows:
    told = {"event": "told", "tx": tx_of(planted(size), size), "outcome": "rolled back", "answer": "tx.rollback-ok"}
    return told_later(rows, "b2", size, told)


@plant("G8", "told_committed", "seen_void", "doubled")
def told_committed(rows: Rows, size: Size) -> Rows:
    return seen_void(rows, size)


def _without_prepare(rows: Rows, size: Size) -> Rows:
    """It is opened and gets messages, and is never closed. Its client was told all the same that it is committed."""
    for step in ("close", "prepare", "assign", "deliver"):
        rows = hidden(rows, at(size, step))
    rows = hidden(hidden(rows, of_next(size, "applied_tx")), of_next(size, "dequeue"))
    return changed(rows, at(size, "told"), prepare_offset=0, csn=0)


@plant("G8", "told_committed", "told_unprepared")
def told_committed_of_nothing(rows: Rows, size: Size) -> Rows:
    rows = _without_prepare(rows, size)
    return changed(rows, at(size, "commit"), event="rollback", csn=None, primary_ms=AT_MS)


@plant("G8", "told_unprepared")
def told_unprepared(rows: Rows, size: Size) -> Rows:
    return hidden(_without_prepare(rows, size), at(size, "commit"))


@plant("G8", "told_unprepared")
def told_another_place(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), prepare_offset=prepare_of(planted(size), size) - 1)


# -- G9 -----------------------------------------------------------------------------------------------------------------


@plant("G9", "commit_order")
def commit_order(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "prepare"), csn=planted(size) - 3)


@plant("G9", "queue_order", "doubled", "seen_early", "unmarked", "taken_again")
def queue_order(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "assign"), id=first_id(0, size))


@plant("G9", "doubled")
def doubled(rows: Rows, size: Size) -> Rows:
    """The planted transaction takes a message that the one a round of queues before it has taken."""
    k = planted(size)
    first = at(size, "dequeue") & (col("offset") == base(k, size) + MESSAGES)
    return changed(rows, first, id=first_id(k - 9, size))


@plant("G9", "taken_again")
def taken_again(rows: Rows, size: Size) -> Rows:
    k = planted(size)
    again = {"event": "deliver", "queue": f"q{k % 8 + 1}", "queue_id": k % 8 + 1, "id": (1 << SHIFT) + 1 + k * HALF}
    return told_later(rows, "b2", size, {**again, "redelivered": True})


@plant("G9", "unmarked")
def unmarked(rows: Rows, size: Size) -> Rows:
    """The last transaction's messages are taken by no other."""
    k = size.transactions - 1
    again = {"event": "deliver", "queue": f"q{k % 8 + 1}", "queue_id": k % 8 + 1, "id": (2 << SHIFT) + 1 + k * HALF}
    return told_later(rows, "b2", size, {**again, "redelivered": False})


# -- evidence -----------------------------------------------------------------------------------------------------------


@gap("events are missing")
def hole_in_numbers(rows: Rows, size: Size) -> Rows:
    return some(rows, ~at(size, "commit", "b2"))


@gap("named by other feeds, and its own feed is missing", whole=True)
def no_feed_of_one(rows: Rows, size: Size) -> Rows:
    return some(rows, ~(col("broker") == "b3"))


@gap("the feed has a gap (rewritten)")
def gap_event(rows: Rows, size: Size) -> Rows:
    told = {"event": "gap", "seq": 0, "incarnation": "", "reason": "rewritten", "from_epoch": 1, "from_offset": 9}
    return told_later(rows, "b2", size, told)


@gap("facts had no room")
def dropped(rows: Rows, size: Size) -> Rows:
    return told_later(rows, "b1", size, {"event": "dropped", "count": 12})


@gap("which is missing", whole=True)
def segment_gone(rows: Rows, size: Size) -> Rows:
    return some(rows, ~(col("broker") == "b1") | ~col("incarnation").startswith("j1-"))


@gap("and the feed has")
def end_of_a_segment_gone(rows: Rows, size: Size) -> Rows:
    last = (col("incarnation") == "j1-5a170") & (col("k") == size.segment - 1) & (col("step") == STEPS[-1])
    return some(rows, ~last)


@gap("the feed has no facts")
def no_facts(rows: Rows, size: Size) -> Rows:
    return some(rows, ~(col("incarnation") == process_of("b3")))


@gap("nothing of what clients were told", whole=True)
def detail_roles(rows: Rows, size: Size) -> Rows:
    return some(rows, ~col("event").isin("told", "deliver") | (col("k") < 0))


@gap("its feed ends before offset")
def feed_ends_early(rows: Rows, size: Size) -> Rows:
    """As `not_durable`, and nothing later is known of b3."""
    gone = (col("broker") == "b3") & (col("k") >= size.transactions - 10) & col("incarnation").startswith("j")
    return some(rows, ~gone)
