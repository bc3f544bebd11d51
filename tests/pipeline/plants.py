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
    FOUNDING,
    HALF,
    MESSAGES,
    QUEUES,
    SHIFT,
    STEPS,
    Rows,
    Size,
    added,
    base,
    commit_of,
    epoch_of,
    epoch_two_at,
    first_id,
    journal_of,
    prepare_of,
    process_of,
    queue_of,
    tx_of,
)
from understudy.pipeline.tallies.look import PARTED_BYTES

Plant = Callable[[Rows, Size], Rows]

LATE_MS: Final = 600_000
XID: Final = "1:global:branch"


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
        late: it changes a feed that states its ends and digests. What other plants leave is stated anew (`restated.closed`).
    """

    promise: str = ""
    kind: str = ""
    put: Plant
    elsewhere: frozenset[str] = frozenset()
    text: str = ""
    whole: bool = False
    late: bool = False


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


def gap(text: str, *, whole: bool = False, late: bool = False) -> Callable[[Plant], Plant]:
    """Note a plant that breaks the evidence."""

    def note(put: Plant) -> Plant:
        PLANTS[put.__name__.strip("_")] = Planted(put=put, text=text, whole=whole, late=late)
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


@plant("G1", "uneven", "short")
def lost_alike(rows: Rows, size: Size) -> Rows:
    """A message of the transaction is in no log, and PREPARE gives it an id all the same."""
    return hidden(rows, at(size, "enqueue") & (col("offset") == base(planted(size), size) + 2))


@plant("G1", "uneven")
def without_an_id(rows: Rows, size: Size) -> Rows:
    """The last message of the second queue gets no id on any broker. So no client is given that message, and none takes it."""
    last = col("queue_id") == queue_of(planted(size), 1)
    rows = changed(rows, at(size, "assign") & last, count=HALF - 1)
    gone = last & (col("id") == first_id(planted(size), size) + HALF - 1)
    return hidden(rows, gone & (at(size, "deliver") | of_next(size, "dequeue")))


@plant("G1", "short")
def not_taken(rows: Rows, size: Size) -> Rows:
    """A dequeue of the transaction is in no log."""
    return hidden(rows, at(size, "dequeue") & (col("offset") == base(planted(size), size) + MESSAGES + 1))


@plant("G1", "short")
def too_many_queues(rows: Rows, size: Size) -> Rows:
    """PREPARE states one queue more than it gives ids in."""
    return changed(rows, at(size, "prepare"), queues=3)


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


@plant("G3", "seen_nowhere")
def seen_nowhere(rows: Rows, size: Size) -> Rows:
    never = {
        "event": "deliver",
        "queue": "q1",
        "queue_id": 1,
        "id": (1 << 39) + planted(size),
        "redelivered": True,
        "logged": True,
    }
    return told_later(rows, "b2", size, {**never, "offset": commit_of(planted(size), size)})


# -- G4, G6 -------------------------------------------------------------------------------------------------------------


def _told_at_the_end(rows: Rows, size: Size, at_ms: int) -> Rows:
    last = at(size, "told", k=size.half - 1)
    place = epoch_two_at(size) + 3
    return changed(rows, last, prepare_offset=place, stable=place, at_ms=at_ms)


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
    told = {"event": "confirm", "tag": 7, "first_offset": end - 1, "last_offset": end, "count": 2}
    return changed(rows, last, tx=None, stable=end, **told)


@plant("G6", "undone", "unfit")
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


@plant("G4", "durable_late")
def durable_late(rows: Rows, size: Size) -> Rows:
    """b3 gets five transactions long after clients were told of them. All works again later."""
    late = (col("broker") == "b3") & (col("k") >= size.transactions - 10) & col("incarnation").startswith("j")
    rows = changed(rows, late, at_ms=col("at_ms") + LATE_MS)
    again, later = col("k") >= size.transactions - 5, AT_MS + 2 * LATE_MS
    rows = changed(rows, again, at_ms=later)
    return changed(rows, again & col("step").isin("prepare", "commit"), primary_ms=later)


@plant("G4", "decided_by_few")
def decided_by_few(rows: Rows, size: Size) -> Rows:
    return changed(rows, (col("step") == "in_sync") & (col("broker") == "b2"), min_insync=4)


@plant("G4", "told_early")
def told_early(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), stable=prepare_of(planted(size), size) - 1)


@plant("G4", "told_early")
def told_undecided(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), decided_at=0)


@plant("G4", "told_early", "confirmed_nowhere")
def confirmed_early(rows: Rows, size: Size) -> Rows:
    """A message of the transaction is confirmed as well, before it is stable."""
    first = base(planted(size), size)
    told = {"event": "confirm", "tag": 7, "first_offset": first, "last_offset": first + 1, "count": 2}
    return changed(rows, at(size, "told"), tx=None, stable=first, **told)


@plant("G4", "confirmed_nowhere")
def confirmed_nowhere(rows: Rows, size: Size) -> Rows:
    """The place in a confirm is that of a PREPARE."""
    place = prepare_of(planted(size), size)
    told = {"event": "confirm", "tag": 7, "first_offset": place, "last_offset": place, "count": 1}
    return changed(rows, at(size, "told"), tx=None, **told)


@plant("G4", "miscounted", "confirmed_nowhere")
def miscounted(rows: Rows, size: Size) -> Rows:
    return changed(confirmed_nowhere(rows, size), at(size, "told"), count=2)


@plant("G4", "stable_early")
def stable_early(rows: Rows, size: Size) -> Rows:
    """b3 fsyncs COMMIT together with PREPARE, which that batch states to be stable."""
    return changed(rows, at(size, "append_commit", "b3"), sync=2 * planted(size) + 1)


@plant("G4", "below_minimum")
def below_minimum(rows: Rows, size: Size) -> Rows:
    one_left = {"event": "in_sync", "members": "b2", "min_insync": 2}
    return told_later(rows, "b2", size, one_left, {"event": "expel", "backup": "b3", "reason": "r", "data": "whole"})


@plant("G4", "confirmed_unprepared")
def confirmed_unprepared(rows: Rows, size: Size) -> Rows:
    """A body in parts has its ENQUEUE in every log, and no PREPARE."""
    offset = base(planted(size), size) + 1
    rows = hidden(_without_prepare(rows, size), at(size, "commit"))
    rows = changed(rows, at(size, "enqueue") & (col("offset") == offset), size=PARTED_BYTES)
    told = {"event": "confirm", "tag": 7, "first_offset": offset, "last_offset": offset, "count": 1}
    return changed(rows, at(size, "told"), tx=None, offset=offset, **told)


@plant("G6", "undone")
def undone_transaction(rows: Rows, size: Size) -> Rows:
    last = at(size, "applied_before", "b1", k=size.half - 1)
    return changed(rows, last, offset=epoch_two_at(size) + 3, tx=f"{FOUNDING}/1.999999", csn=999_999)


@plant("G6", "forked", "record_differing")
def forked(rows: Rows, size: Size) -> Rows:
    """b3 keeps a record of the first epoch where the second one begins."""
    first = (col("broker") == "b3") & (col("offset") == epoch_two_at(size)) & (col("k") < 0)
    rows = hidden(rows, first & (col("step") == "epoch"))
    return changed(rows, first & col("step").isin("epoch", "append"), epoch=1)


@plant("G6", "unnoted")
def unnoted(rows: Rows, size: Size) -> Rows:
    second = (col("step") == "epoch_seen") & (col("epoch") == 2) & (col("broker") == "b3")
    return hidden(rows, second)


@plant("G6", "active_too_early")
def active_too_early(rows: Rows, size: Size) -> Rows:
    active = (col("step") == "status") & (col("broker") == "b2")
    return changed(rows, active, stable=epoch_two_at(size) - 1)


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


def _branch(rows: Rows, size: Size, k: int, told_at: int, *facts: Mapping[str, Any]) -> Rows:
    """The transaction is a branch, prepared before its PREPARE, and its manager was told; then its primary tells ``facts``."""
    offset, epoch = prepare_of(k, size) - 1, epoch_of(k, size)
    place = {"event": "dtx_prepare", "tx": tx_of(k, size), "offset": offset, "vhost": "/", "xid": XID}
    rows = changed(rows, at(size, "applied_before", k=k), csn=None, stable=None, **place)
    in_force = {"event": "in_sync", "members": ",".join(BROKERS), "min_insync": 2, "epoch": epoch}
    told: dict[str, Any] = {"event": "told", "answer": "dtx.prepare-ok", "outcome": "prepared", "tx": tx_of(k, size)}
    told |= {"prepare_offset": told_at, "epoch": epoch, "offset": offset}
    return told_later(rows, f"b{epoch}", size, in_force, told, *facts)


@plant("G5", "branch_decided_unasked", whole=True)
def branch_decided_unasked(rows: Rows, size: Size) -> Rows:
    """The new primary was active only after the first transaction of its epoch."""
    k = size.half
    active = (col("step") == "status") & (col("broker") == "b2")
    rows = changed(rows, active, offset=prepare_of(k, size) + 1)
    return _branch(rows, size, k, prepare_of(k, size) - 1)


@plant("G5", "branch_denied")
def branch_denied(rows: Rows, size: Size) -> Rows:
    k = planted(size)
    in_doubt = prepare_of(k, size) - 1
    told = {"event": "told", "answer": "channel.close", "outcome": "unknown", "vhost": "/", "name": XID}
    return _branch(rows, size, k, in_doubt, {**told, "known_at": in_doubt, "epoch": 1, "offset": in_doubt})


@plant("G5", "branches_miscounted")
def branches_miscounted(rows: Rows, size: Size) -> Rows:
    """The manager is told that nothing is in doubt, though its branch is."""
    k = planted(size)
    in_doubt = prepare_of(k, size) - 1
    told = {"event": "told", "answer": "dtx.recover-ok", "outcome": "listed", "vhost": "/", "branches": 0}
    place = {"known_at": in_doubt, "stable": in_doubt, "epoch": 1, "offset": in_doubt}
    return _branch(rows, size, k, in_doubt, {**told, **place})


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


@plant("G7", "ready_and_blocked")
def ready_unlisted(rows: Rows, size: Size) -> Rows:
    ready = {"event": "readiness", "backup": "b3", "ready": True, "listed": False, "linked": True, "blockers": 0}
    return told_later(rows, "b2", size, ready)


@plant("G7", "unfit")
def unfit(rows: Rows, size: Size) -> Rows:
    """b3 begins an epoch with an empty log."""
    later = {"event": "epoch", "epoch": 9, "offset": 1, "primary": "b3", "at_ms": AT_MS + LATE_MS}
    return changed(rows, at(size, "applied_before", "b3"), **later)


@plant("G7", "ready_unlisted")
def backup_ready_unlisted(rows: Rows, size: Size) -> Rows:
    return changed(rows, (col("step") == "status") & (col("broker") == "b3"), listed=False)


@plant("G7", "admitted_early")
def admitted_early(rows: Rows, size: Size) -> Rows:
    return told_later(rows, "b2", size, {"event": "admit", "backup": "b3", "acked": 8, "stable": 9})


@plant("G7", "admitted_early")
def admitted_in_a_catch_up(rows: Rows, size: Size) -> Rows:
    return told_later(rows, "b2", size, {"event": "admit", "backup": "b3", "acked": 9, "catches_up": True})


@plant("G7", "barred_listed")
def barred_listed(rows: Rows, size: Size) -> Rows:
    """b2 is barred, and may join again; b3 is barred, and joins."""
    bars = ({"event": "bar", "backup": "b1", "lifted": lifted} for lifted in (False, True))
    all_of_them = {"event": "in_sync", "members": ",".join(BROKERS), "min_insync": 2}
    return told_later(rows, "b2", size, *bars, {"event": "bar", "backup": "b3"}, all_of_them)


@plant("G7", "handed_over_early")
def handed_over_early(rows: Rows, size: Size) -> Rows:
    """The last batch of the first epoch goes one record further on b1, which hands over to b2."""
    last = at(size, "append_commit", "b1", k=size.half - 1)
    rows = changed(rows, last, offset=col("offset") + 1, count=2)
    return told_later(rows, "b1", size, {"event": "step_down", "successor": "b2", "epoch": 1})


@plant("G2", "transients_kept")
def transients_kept(rows: Rows, size: Size) -> Rows:
    """b2 began to lead in a process that no primary had brought up."""
    return told_later(rows, "b2", size, {"event": "promote", "was": "backup"})


@plant("G7", "unlisted_primary")
def unlisted_later(rows: Rows, size: Size) -> Rows:
    return told_later(rows, "b2", size, {"event": "in_sync", "members": "b1,b3", "min_insync": 2})


@plant("G7", "unlisted_primary")
def unlisted_primary(rows: Rows, size: Size) -> Rows:
    return changed(rows, (col("step") == "in_sync") & (col("broker") == "b2"), members="b1,b3")


def caught_up(rows: Rows, size: Size) -> Rows:
    """b3 is new, and gets the first epoch by a catch-up. It is in no set before the new primary puts it into one."""
    journals = [journal_of("b3", segment) for segment in range(size.segments // 2, size.segments)]
    mine = (col("broker") == "b3") & col("incarnation").startswith("j")
    rows = some(rows, ~mine | col("incarnation").isin(*journals))
    first, k, offset = col("incarnation") == journals[0], size.half - 1, epoch_two_at(size)
    begins = dict.fromkeys(("previous", "previous_events", "previous_event_digest"))
    rows = changed(rows, first & (col("step") == "segment"), segment=1, **begins)
    pieces: list[dict[str, Any]] = [{"what": "base"}, {"what": "caught_up"}]
    for second in range(2):
        queue = queue_of(k, second)
        messages = {"queue_id": queue, "queue": f"q{queue}", "id": first_id(k, size), "count": HALF}
        pieces.insert(1, {"what": "queue", **messages})
    for seq, each in enumerate(pieces, 3):  # in the place of EPOCH, its batch, and what is applied before
        piece = {"event": "piece", "step": "piece", "offset": offset, "epoch": 2, "tx": "", **each}
        rows = changed(rows, first & (col("seq") == seq), **piece)
    head = (col("broker") == "b2") & (col("k") < 0)
    rows = changed(rows, col("broker").isin("b1", "b2") & (col("step") == "in_sync"), members="b1,b2")
    again = {"event": "in_sync", "min_insync": 2, "members": ",".join(BROKERS)}
    rows = changed(rows, head & (col("step") == "status"), **again)
    return _put_back_before(rows, size)


def _put_back_before(rows: Rows, size: Size) -> Rows:
    """b2 had led before, and a message was put back then; now another one is delivered before it, as if a branch had taken it."""
    k = size.half
    queue, one = queue_of(k, 0), first_id(k, size)
    put_back = {"event": "requeue", "queue_id": queue, "queue": f"q{queue}", "id": one, "epoch": 1}
    rows = changed(rows, (col("broker") == "b2") & (col("seq") == 1) & (col("step") == "role"), **put_back)
    first_two = (col("step") == "deliver") & (col("queue_id") == queue) & col("id").isin(one, one + 1)
    return changed(rows, first_two, id=lambda row: 2 * one + 1 - row["id"])


def _pieces() -> Where:
    return (col("step") == "piece") & (col("what") == "queue")


@plant("G7", "listed_catches_up", whole=True)
def listed_catches_up(rows: Rows, size: Size) -> Rows:
    rows = caught_up(rows, size)
    return changed(rows, (col("step") == "in_sync") & (col("broker") == "b2"), members=",".join(BROKERS))


@plant("G1", "left_out", whole=True)
def left_out(rows: Rows, size: Size) -> Rows:
    """The catch-up brings four messages of five."""
    return changed(caught_up(rows, size), _pieces(), count=HALF - 1)


@plant("G1", "brought_back", "left_out", whole=True)
def brought_back(rows: Rows, size: Size) -> Rows:
    """The catch-up brings messages that have left, in place of those that are there."""
    return changed(caught_up(rows, size), _pieces(), id=first_id(size.half - 1 - QUEUES, size))


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
    """The transaction is opened, gets messages, and is never closed. Its client was told all the same that it is committed."""
    for step in ("close", "prepare", "assign", "deliver"):
        rows = hidden(rows, at(size, step))
    rows = hidden(hidden(rows, of_next(size, "applied_tx")), of_next(size, "dequeue"))
    return changed(rows, at(size, "told"), prepare_offset=0, csn=0)


@plant("G8", "told_committed", "told_unprepared")
def told_committed_of_nothing(rows: Rows, size: Size) -> Rows:
    rows = _without_prepare(rows, size)
    return changed(rows, at(size, "commit"), event="rollback", csn=None, primary_ms=AT_MS)


@plant("G8", "told_otherwise")
def told_another_number(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), csn=col("csn") + 1)


@plant("G8", "told_otherwise")
def told_another_commit(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), decided_at=col("decided_at") + 1)


@plant("G8", "told_unended")
def told_unended(rows: Rows, size: Size) -> Rows:
    """A client was told of a ROLLBACK of a transaction that is nowhere."""
    answer = {"event": "told", "answer": "tx.rollback-ok", "outcome": "rolled back", "tx": f"{FOUNDING}/1.999998"}
    return told_later(rows, "b2", size, {**answer, "decided_at": commit_of(planted(size), size), "stable": -1})


@plant("G8", "told_unprepared")
def told_unprepared(rows: Rows, size: Size) -> Rows:
    return hidden(_without_prepare(rows, size), at(size, "commit"))


@plant("G8", "told_unprepared")
def told_another_place(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), prepare_offset=prepare_of(planted(size), size) - 1)


@plant("G8", "told_unprepared")
def branch_told_elsewhere(rows: Rows, size: Size) -> Rows:
    k = planted(size)
    return _branch(rows, size, k, prepare_of(k, size) - 3)


def _answered(rows: Rows, size: Size, name: str, outcome: str, stable: int = -1) -> Rows:
    told = {"event": "told", "answer": "outcome", "outcome": outcome, "tx": "", "name": name, "stable": stable}
    return told_later(rows, "b2", size, {**told, "offset": prepare_of(planted(size), size)})


@plant("G8", "answered_committed")
def answered_committed(rows: Rows, size: Size) -> Rows:
    return _answered(rows, size, "nobody", "committed")


@plant("G8", "answered_rolled_back")
def answered_rolled_back(rows: Rows, size: Size) -> Rows:
    return _answered(rows, size, f"c-{planted(size) + 1}", "rolled back")


@plant("G8", "answered_rolled_back")
def answered_rolled_back_by_id(rows: Rows, size: Size) -> Rows:
    return _answered(rows, size, tx_of(planted(size), size).rpartition("/")[2], "rolled back")


@plant("G8", "answered_expired")
def answered_expired(rows: Rows, size: Size) -> Rows:
    return _answered(rows, size, f"c-{planted(size) + 1}", "expired")


def _barred(rows: Rows, size: Size, name: str) -> Rows:
    record = {"event": "outcome", "name": name, "primary_ms": AT_MS}
    return changed(rows, at(size, "applied_before"), tx=None, csn=None, stable=None, **record)


@plant("G8", "answered_early")
def answered_early(rows: Rows, size: Size) -> Rows:
    """The record that bars the name stands in front of PREPARE."""
    rows = _barred(rows, size, "nobody")
    return _answered(rows, size, "nobody", "rolled back", stable=prepare_of(planted(size), size) - 2)


@plant("G8", "barred")
def barred(rows: Rows, size: Size) -> Rows:
    return _barred(rows, size, f"c-{planted(size) + 1}")


# -- G9 -----------------------------------------------------------------------------------------------------------------


@plant("G9", "commit_order")
def commit_order(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "prepare"), csn=planted(size) - 3)


@plant("G9", "queue_order", "seen_nowhere", "doubled", "seen_early", "unmarked", "taken_again")
def queue_order(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "assign"), id=first_id(0, size))


@plant("G9", "doubled")
def doubled(rows: Rows, size: Size) -> Rows:
    """The planted transaction takes a message that the one a round of queues before it has taken."""
    k = planted(size)
    first = at(size, "dequeue") & (col("offset") == base(k, size) + MESSAGES)
    return changed(rows, first, id=first_id(k - 9, size))


@plant("G9", "overtaken")
def overtaken(rows: Rows, size: Size) -> Rows:
    """The last transaction's messages are taken by no other: one of them is put back, and another one is delivered before it.

    A later epoch knows that they were delivered before.
    """
    k = size.transactions - 1
    message = {"queue": f"q{k % 8 + 1}", "queue_id": k % 8 + 1, "redelivered": True, "epoch": 3}
    first = (2 << SHIFT) + 1 + k * HALF
    ids = (("requeue", first), ("deliver", first + 1), ("deliver", first))
    return told_later(rows, "b2", size, *({"event": event, "id": id_, **message} for event, id_ in ids))


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


@plant("G3", "seen_locked")
def seen_locked(rows: Rows, size: Size) -> Rows:
    """A branch that is prepared takes the message."""
    k = planted(size)
    queue = queue_of(k - 1, 0)
    again = {"event": "deliver", "queue": f"q{queue}", "queue_id": queue, "id": first_id(k - 1, size)}
    again |= {"redelivered": True, "epoch": 1, "offset": prepare_of(k, size)}
    return _branch(rows, size, k, prepare_of(k, size) - 1, again)


@plant("G2", "refused")
def refused(rows: Rows, size: Size) -> Rows:
    vote = {"event": "vote", "vote": "failed", "prepare_offset": prepare_of(planted(size), size), "reason": "r"}
    return instead_of_applied(rows, size, "b3", **vote)


@plant("G2", "logged_unreplicated", "record_differing")
def logged_unreplicated(rows: Rows, size: Size) -> Rows:
    """A queue is declared as not replicated, and a message of it is in all logs."""
    k = planted(size)
    queue = {"queue_id": 98, "queue": "alone", "vhost": "/"}
    declared = {"event": "declare", "what": "queue", **queue, "messages_logged": False, "durable": True}
    rows = changed(rows, at(size, "applied_before"), tx=None, csn=None, stable=None, **declared)
    message = {"event": "enqueue", **queue, "id": (1 << SHIFT) + k, "persistent": True, "size": 10}
    return changed(rows, at(size, "applied_before", k=k + 1), tx="", csn=None, stable=None, **message)


@plant("G1", "half_moved")
def half_moved(rows: Rows, size: Size) -> Rows:
    """A message moves to two queues, and comes to none of them, nor leaves its own."""
    move = {"event": "move", "queue_id": 97, "queue": "old", "vhost": "/", "id": 5, "reason": "expired", "targets": 2}
    return changed(rows, at(size, "applied_before"), tx=None, csn=None, stable=None, **move)


@plant("G2", "record_differing")
def plain_differing(rows: Rows, size: Size) -> Rows:
    """A message of no transaction comes to a queue of its own, and has another size on b3."""
    k = planted(size)
    message = {"event": "enqueue", "queue_id": 99, "queue": "plain", "id": (1 << SHIFT) + k, "persistent": True}
    rows = changed(rows, at(size, "applied_before"), tx="", csn=None, stable=None, size=10, **message)
    rows = changed(rows, at(size, "append_commit", "b3"), content_crc=3)
    return changed(rows, at(size, "applied_before", "b3"), size=11)


@plant("G2", "record_differing")
def plain_absent(rows: Rows, size: Size) -> Rows:
    """The same, and b2 does not have it at all."""
    rows = changed(plain_differing(rows, size), at(size, "append_commit", "b2"), content_crc=2)
    return hidden(rows, at(size, "applied_before", "b2"))


@plant("G2", "record_differing")
def commit_differing(rows: Rows, size: Size) -> Rows:
    """b2's journal has another commit number in a COMMIT."""
    rows = changed(rows, at(size, "append_commit", "b2"), content_crc=2)
    return changed(rows, at(size, "commit", "b2"), csn=7)


# -- evidence -----------------------------------------------------------------------------------------------------------


@gap("events are missing")
def hole_in_numbers(rows: Rows, size: Size) -> Rows:
    return some(rows, ~at(size, "commit", "b2"))


@gap("no event `end` says where it ends", late=True)
def cut_at_a_line(rows: Rows, size: Size) -> Rows:
    """The last lines of b1's feed are gone, and no number has a hole."""
    gone = (col("k") >= size.transactions - 3) | (col("step") == "end")
    return some(rows, ~(col("broker") == "b1") | ~gone)


@gap("have another digest", late=True)
def row_changed(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "enqueue", "b2"), routing_key="another")


@gap("stand for two different events", late=True)
def two_contents(rows: Rows, size: Size) -> Rows:
    return rows + changed(some(rows, at(size, "told", "b1")), at(size, "told", "b1"), client="another")


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


@gap("facts had no room")
def dropped_between(rows: Rows, size: Size) -> Rows:
    """Rows that look like violations, if facts may be missing: in-sync sets, and a delivery."""
    return dropped(overtaken(decided_by_few(stable_early(rows, size), size), size), size)


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


@gap("tell no in-sync set before")
def no_set(rows: Rows, size: Size) -> Rows:
    return changed(rows, (col("step") == "in_sync") & (col("broker") == "b2"), event="status", members=None)


@gap("the facts of its process that led epoch 1 are missing", whole=True)
def facts_of_a_process_gone(rows: Rows, size: Size) -> Rows:
    rows = some(rows, ~((col("broker") == "b1") & col("incarnation").startswith("p")))
    return told_later(rows, "b1", size, {"event": "status", "status": "ready"})


@gap("nothing of what clients were told in epoch 2", whole=True)
def silent(rows: Rows, size: Size) -> Rows:
    said = col("step").isin("told", "deliver") & (col("epoch") == 2)
    return changed(rows, said, event="link_up", tx=None, id=None, outcome=None)


@gap("no feed has a record of epoch 7")
def epoch_gone(rows: Rows, size: Size) -> Rows:
    return changed(rows, at(size, "told"), epoch=7)
