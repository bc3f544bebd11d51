"""What follows from tallies for primaries, their in-sync sets and catch-ups: no feed is read here."""

from __future__ import annotations

import json
from typing import Any

from understudy.pipeline.chosen_log import ChosenLog, EpochLog, choose
from understudy.pipeline.feed_look import NEVER, PAUSE_MS, SKEW_MS, Tally, named
from understudy.pipeline.feed_reigns import joiners, reigns, sets_in_force, spans_of, takeovers
from understudy.pipeline.invariants.reigns import of_reigns

CHOSEN = ChosenLog(kept={("f", 1): 99, ("f", 2): NEVER}, starts={("f", 1): 1, ("f", 2): 100}, reaches=(), problems=())


def tally(event: str, broker: str = "b1", incarnation: str = "j1-aa", **more: Any) -> Tally:
    return Tally(
        **{"founding": "f", "epoch": 1, "events": 1, **more}, event=event, broker=broker, incarnation=incarnation
    )


def log(broker: str, end: int) -> EpochLog:
    return EpochLog(founding="f", broker=broker, epoch=1, first=1, last=end)


def told(said: str, broker: str = "b1", **more: Any) -> Tally:
    return tally("in_sync", broker, incarnation="p1-1", said=said, first=int(said.split(maxsplit=1)[0]), **more)


def epoch(number: int, primary: str, offset: int, begun_ms: int = 0) -> Tally:
    return tally("epoch", primary, epoch=number, said=f"{offset} {primary}", low=offset, begun_ms=begun_ms)


def kinds(*rows: Tally) -> list[tuple[str, str]]:
    return [(row[1], row[4]) for row in of_reigns(rows, CHOSEN, {})]


def test_a_set_is_in_force_until_the_next_one_and_as_good_as_its_shortest_member() -> None:
    chosen = choose([log("b1", 90), log("b2", 70)], [])
    rows = [told("9 b1 2"), told("2 b1,b2 2"), told("1 b9 1", "b2")]
    found = sets_in_force(rows, chosen, {"b2": 5}, {})
    assert [(each.since, each.until > 9, each.members, each.lowest, each.few) for each in found] == [
        (2, False, "b1,b2", (70, "b2", 5), False),
        (9, True, "b1", (90, "b1", 0), True),
        (1, True, "b9", (0, "b9", 0), False),  # its log is not in the feed: it proves nothing
    ]
    assert named(rows) == {"b1", "b2", "b9"}


def test_a_journal_has_a_known_end_in_pauses_if_clocks_agree() -> None:
    rest = 3 * PAUSE_MS
    rows = [
        tally("append", high=40, begun_ms=10, ended_ms=20),
        tally("append", high=60, begun_ms=20 + PAUSE_MS, ended_ms=30 + PAUSE_MS),
        tally("append", high=90, begun_ms=rest, ended_ms=rest),
    ]
    commits = [
        tally("commit", lag_ms=rest, begun_ms=20),
        tally("commit", lag_ms=1, begun_ms=rest),
    ]
    spans = spans_of([*rows, *commits], CHOSEN, {})
    assert spans == {("f", "b1"): [(0, rest, 60), (rest, NEVER, 90)]}
    told_then = sets_in_force([*rows, *commits, told("1 b1 1")], choose([log("b1", 90)], []), {}, {})
    assert json.loads(told_then[0].held)[0]["spans"][0] == {"since_ms": 0, "until_ms": rest, "end": 60}
    jumped = tally("commit", "b2", lag_ms=-SKEW_MS - 1, begun_ms=rest)
    assert spans_of([*rows, *commits, jumped], CHOSEN, {}) == {}
    assert spans_of(rows, CHOSEN, {}) == {}


def test_a_broker_has_caught_up_when_that_is_over() -> None:
    base = tally("piece", "b3", said="base", epoch=2, high=120, low=120)
    over = tally("piece", "b3", said="caught_up", epoch=2, high=130)
    applied = tally("apply", "b3", high=80)
    assert joiners([base, applied], CHOSEN, {}) == []
    (found,) = joiners([base, over, applied], CHOSEN, {})
    assert (found.bit, found.base, found.caught_up, found.applied) == (1, 120, 130, 80)
    assert joiners([base, over, tally("cut", "b3", said="let_go")], CHOSEN, {}) == []


def test_a_primary_has_facts_of_the_epoch_in_which_clients_worked() -> None:
    work = [tally(name, events=events) for name in ("prepare", "commit") for events in (6, 6)]
    (found,) = reigns([epoch(1, "b1", 1), *work])
    assert (found.commits, found.works, found.has_facts) == (12, True, False)
    (found,) = reigns([epoch(1, "b1", 1), *work, tally("promote", incarnation="p1-1")])
    assert (found.has_facts, found.is_silent) == (True, True)
    (found,) = reigns([epoch(1, "b1", 1), *work, tally("promote"), tally("told")])
    assert not found.is_silent


def test_a_takeover_lasts_until_the_primary_is_active() -> None:
    active = tally("status", "b2", said="active", epoch=2, low=105)
    assert takeovers([epoch(2, "b2", 100), epoch(3, "b1", 200), active]) == {"f": [(100, 105)]}


def test_who_begins_an_epoch_holds_what_was_stable_before() -> None:
    stable = tally("append", "b2", stable=150, ended_ms=40)
    assert kinds(epoch(2, "b1", 150, 50), stable) == [("unfit", "b1")]
    assert kinds(epoch(2, "b1", 151, 50), stable) == []
    assert kinds(epoch(2, "b1", 150, 39), stable) == []  # it was stated later, of an older epoch's records


def test_a_log_goes_on_with_the_first_record_of_an_epoch_or_behind_a_base() -> None:
    late = tally("append", "b3", epoch=2, first_offset=101, high=110)
    assert kinds(late) == [("forked", "b3")]
    assert kinds(late, tally("piece", "b3", said="base", low=100, high=100, epoch=2)) == []
    assert kinds(tally("append", "b3", epoch=2, first_offset=100, high=110)) == []


def test_a_primary_is_listed_and_a_broker_that_catches_up_is_not() -> None:
    over = tally("piece", "b3", said="caught_up", epoch=2, high=130)
    leads = epoch(2, "b2", 100)
    assert kinds(leads, told("1 b1,b3 2", "b2", epoch=2)) == [("unlisted_primary", "b2")]
    assert kinds(leads, told("1 b2,b3 2", "b2", epoch=2), over) == [("listed_catches_up", "b3")]
    assert kinds(leads, told("1 b2 2", "b2", epoch=2), told("4 b2,b3 2", "b2", epoch=2), over) == []
    assert kinds(leads, over) == []  # the primary has told no set
