"""Conclusions from tallies for primaries, their in-sync sets and catch-ups: no feed is read here."""

from __future__ import annotations

import json
from typing import Any

import attrs

from understudy.pipeline.invariants.reigns import of_reigns
from understudy.pipeline.tables.batch_groups import Span, held_again, member_spans
from understudy.pipeline.tables.taken_back import TakenBack, taken_back
from understudy.pipeline.tallies.chosen_log import ChosenLog, EpochLog, choose
from understudy.pipeline.tallies.look import NEVER, PARTED, PAUSE_MS, SKEW_MS, Lives, Tally, epoch_logs, named
from understudy.pipeline.tallies.reigns import joiners, reigns, sets_in_force, short_logs, spans_of, takeovers

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


NOTED = [tally("epoch_seen", broker, epoch=9, first=-1) for broker in ("b1", "b2", "b3")]
"""All brokers have noted a high epoch first of all."""


def kinds(*rows: Tally, noted: bool = True) -> list[tuple[str, str]]:
    return [(row[1], row[4]) for row in of_reigns([*NOTED, *rows] if noted else rows, CHOSEN, {})]


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


def test_of_a_set_the_member_is_known_whose_feed_begins_last() -> None:
    """By what it has of the log in any life: by a batch, or by a base that a catch-up begins with."""
    base = tally("piece", "b3", said="base 4", low=120, high=120)
    rows = [tally("append", first_offset=1), tally("append", "b2", first_offset=7), base, told("2 b1,b2 1")]
    (found,) = sets_in_force(rows, CHOSEN, {}, {})
    assert found.bare == (6, "b2")
    (found,) = sets_in_force([*rows[:-1], told("2 b1,b2,b3 1")], CHOSEN, {}, {})
    assert found.bare == (120, "b3")


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


def test_the_last_base_counts_though_one_before_it_stood_further() -> None:
    """A primary died while it brought b3 up from 120; the next one began anew, from 110."""
    first = tally("piece", "b3", "j2-bb", said="base 5", first=5, epoch=2, high=120)
    again = tally("piece", "b3", "j3-cc", said="base 3", first=3, epoch=2, high=110)
    over = tally("piece", "b3", "j3-cc", said="caught_up 9", first=9, epoch=2, high=130)
    later = tally("piece", "b3", "j3-cc", said="base 12", first=12, epoch=2, high=125)
    rows = [over, again, first]
    assert [(each.base, each.caught_up) for each in joiners(rows, CHOSEN, {})] == [(110, 130)]
    assert joiners([*rows, later], CHOSEN, {}) == [], "the last catch-up is not over"
    (log_of,) = epoch_logs([first, again], {})
    assert (log_of.base, log_of.base_at) == (110, (3, 3))
    (reach,) = choose([log_of, attrs.evolve(log_of, epoch=1, base=115, base_at=(2, 9))], []).reaches
    assert (reach.began, reach.end, reach.applied) == (110, 110, 110)


def test_what_a_broker_applied_before_a_base_that_stands_before_it_is_taken_back() -> None:
    base = tally("piece", "b3", "j3-cc", said="base 40", first=40, epoch=2, high=110)
    applied = {"said": "tx", "epoch": 2}
    rows = [
        tally("apply", "b3", "j2-bb", first=7, high=120, **applied),
        tally("apply", "b3", "j3-cc", first=30, high=115, **applied),
        base,
    ]
    assert taken_back(rows, {}) == [TakenBack("b3", "j2-bb", 110, NEVER), TakenBack("b3", "j3-cc", 110, 40)]
    kept = [
        tally("apply", "b3", "j3-cc", first=50, high=120, **applied),  # behind the base
        tally("apply", "b3", "j1-aa", first=50, high=110, **applied),  # the base contains it
        tally("apply", "b2", "j1-aa", first=50, high=120, **applied),
        tally("apply", "b3", "j2-bb", first=50, high=120),  # of no transaction
    ]
    assert taken_back([*kept, base], {}) == []


def test_a_primary_has_facts_of_the_epoch_in_which_clients_worked() -> None:
    work = [tally(name, events=events) for name in ("prepare", "commit") for events in (6, 6)]
    (found,) = reigns([epoch(1, "b1", 1), *work])
    assert (found.commits, found.works, found.has_facts) == (12, True, False)
    (found,) = reigns([epoch(1, "b1", 1), *work, tally("promote", incarnation="p1-1")])
    assert (found.has_facts, found.is_silent) == (True, True)
    (found,) = reigns([epoch(1, "b1", 1), *work, tally("promote"), tally("told")])
    assert not found.is_silent
    large = tally("enqueue", said=PARTED, events=3)
    (found,) = reigns([epoch(1, "b1", 1), *work, tally("promote"), large])
    assert (found.commits, found.is_silent) == (9, False), "of a large message that commits no client need be told"


def test_a_primary_has_what_others_know_to_be_stable_of_its_epoch() -> None:
    """A batch that was sent and is not stable may be on other disks alone: a killed primary had not written it."""
    rows = [
        epoch(1, "b1", 1),
        tally("append", "b1", founding="f", epoch=1, first_offset=1, high=20, stable=15),
        tally("append", "b2", founding="f", epoch=1, first_offset=1, high=90, stable=80),
    ]
    unwritten = [*rows[:2], attrs.evolve(rows[2], stable=20)]
    logs = [EpochLog(founding="f", broker=each, epoch=1, first=1, last=end) for each, end in (("b1", 20), ("b2", 90))]
    (problem,) = short_logs(rows, choose(logs, ()))
    assert problem.startswith(
        "b1: its feed ends at offset 20; b2 knew the log of epoch 1, which b1 led, to be stable up to offset 80"
    )
    assert not short_logs(unwritten, choose(logs, ()))
    (problem,) = short_logs([*unwritten, tally("applied", "b3", "p1-3", stable=90)], choose(logs, ()))
    assert problem.startswith("b1: its feed ends at offset 20; b3 knew")
    caught_up = EpochLog(founding="f", broker="b1", epoch=1, first=1, last=20, base=90)
    assert not short_logs(rows, choose([caught_up, logs[1]], ())), "by a catch-up"
    beyond = attrs.evolve(logs[0], last=90, applied=91)
    (problem,) = short_logs(rows, choose([beyond, logs[1]], ()))
    assert problem == "b1: it has applied its log up to offset 91, and its feed has that up to offset 90"
    cut = ChosenLog(kept={("f", 1): 15}, starts={}, reaches=choose(logs, ()).reaches, problems=())
    assert not short_logs(rows, cut), "what is cut is of no group's log"


def test_a_takeover_lasts_until_the_primary_is_active() -> None:
    active = tally("status", "b2", said="active", epoch=2, low=105)
    assert takeovers([epoch(2, "b2", 100), epoch(3, "b1", 200), active]) == {"f": [(100, 105)]}


def test_who_begins_an_epoch_holds_what_was_stable_before() -> None:
    stable = tally("append", "b2", stable=150, ended_ms=40)
    assert kinds(epoch(2, "b1", 150, 50), stable) == [("unfit", "b1")]
    assert kinds(epoch(2, "b1", 151, 50), stable) == []
    assert kinds(epoch(2, "b1", 150, 39), stable) == []  # it was stated later, of an older epoch's records
    gone = tally("step_down", epoch=2)
    assert kinds(epoch(2, "b1", 150, 50), stable, gone) == []  # others held more, and it was never active
    assert kinds(epoch(2, "b1", 1, 50), stable, gone) == [("unfit", "b1")]  # it knew that its log was empty
    active = tally("status", epoch=2, said="active", stable=-1)
    assert kinds(epoch(2, "b1", 150, 50), stable, gone, active) == [("unfit", "b1")]


def test_a_log_goes_on_with_the_first_record_of_an_epoch_or_behind_a_base() -> None:
    late = tally("append", "b3", epoch=2, first_offset=101, high=110)
    assert kinds(late) == [("forked", "b3")]
    assert kinds(late, tally("piece", "b3", said="base", low=100, high=100, epoch=2)) == []
    assert kinds(tally("append", "b3", epoch=2, first_offset=100, high=110)) == []


def test_a_primary_is_listed_and_a_broker_that_catches_up_is_not() -> None:
    over = tally("piece", "b3", incarnation="j2-bb", said="caught_up", epoch=2, first=7, high=130)
    leads = epoch(2, "b2", 100)
    later_noted = tally("epoch_seen", "b3", incarnation="j2-bb", epoch=3, first=6)
    # A later primary has brought it up:
    assert kinds(leads, told("1 b2,b3 2", "b2", epoch=2), over, later_noted, noted=False) == []
    before = tally("epoch_seen", "b3", incarnation="j1-bb", epoch=3, first=9)
    # and in an earlier segment it began to.
    assert kinds(leads, told("1 b2,b3 2", "b2", epoch=2), over, before, noted=False) == []
    assert kinds(leads, told("1 b1,b3 2", "b2", epoch=2)) == [("unlisted_primary", "b2")]
    assert kinds(leads, told("1 b2,b3 2", "b2", epoch=2), over, noted=False) == [("listed_catches_up", "b3")]
    assert kinds(leads, told("1 b2 2", "b2", epoch=2), told("4 b2,b3 2", "b2", epoch=2), over, noted=False) == []
    assert kinds(leads, over, noted=False) == []  # the primary has told no set
    later = told("4 b1,b3 2", "b2", epoch=2)
    assert kinds(leads, told("1 b2,b3 2", "b2", epoch=2), later) == [("unlisted_primary", "b2")]


def test_who_holds_what_it_was_listed_for_stays_at_the_minimum() -> None:
    sets = (told("1 b1,b2 2"), told("5 b1 2"))
    for data, found in (("whole", [("below_minimum", "b2")]), ("lost", []), ("", [])):
        expelled = tally("expel", incarnation="p1-1", said=f"6 {data} b2", first=6)
        assert kinds(*sets, expelled) == found
    before = tally("expel", incarnation="p1-1", said="4 whole b3", first=4)
    assert kinds(*sets, before) == []  # two were left


def test_who_is_barred_is_in_no_set_until_the_bar_is_lifted() -> None:
    bar, lifted = (
        tally("bar", incarnation="p1-1", said=f"{number} b2 {how}") for number, how in ((3, ""), (7, "lifted"))
    )
    assert kinds(told("2 b1,b2 2"), bar, told("8 b1,b2 2"), lifted) == []
    assert kinds(bar, told("5 b1,b2 2"), lifted) == [("barred_listed", "b2")]
    # An operator may have lifted it in the store while no broker led:
    assert kinds(bar, told("1 b1,b2 2", "b3", epoch=2)) == []


def test_an_epoch_is_noted_before_a_record_of_it_is_held() -> None:
    def seen(number: int, segment: int, first: int) -> Tally:
        return tally("epoch_seen", incarnation=f"j{segment}-aa", epoch=number, first=first)

    def held(number: int, segment: int, first: int, suffix: str = "") -> Tally:
        return tally("append", incarnation=f"j{segment}-aa{suffix}", epoch=number, first=first, first_offset=1, high=9)

    assert kinds(seen(1, 1, 2), held(1, 1, 5), held(1, 2, 2), noted=False) == []
    assert kinds(seen(3, 1, 9), held(1, 1, 5), noted=False) == [("unnoted", "b1")]
    assert kinds(seen(3, 1, 2), held(1, 1, 5), noted=False) == []  # a higher one
    assert kinds(held(1, 3, 5, "@3"), noted=False) == []  # it may stand in front of what was read


def test_who_has_restarted_ends_transient_messages() -> None:
    promoted = tally("promote", incarnation="p1-1", epoch=2, first=5)
    begun, told_lost = epoch(2, "b1", 100), tally("epoch", epoch=2, said="100/lost b1", low=100)
    assert kinds(begun, promoted) == [("transients_kept", "b1")]
    assert kinds(told_lost, promoted) == []
    assert kinds(begun, promoted, tally("status", incarnation="p1-1", said="ready", first=4)) == []
    assert kinds(begun, promoted, tally("status", incarnation="p1-1", said="ready", first=6)) != []
    assert kinds(begun, promoted, tally("status", incarnation="p1-1", said="joining", first=4)) != []
    assert kinds(epoch(1, "b1", 1), tally("promote", incarnation="p1-1", first=5)) == []  # there was nothing before


def test_a_primary_is_active_and_hands_over_when_others_hold_its_log() -> None:
    begun = epoch(2, "b2", 100)
    for stable, found in ((99, [("active_too_early", "b2")]), (100, []), (-1, [])):
        assert kinds(begun, tally("status", "b2", said="active", epoch=2, stable=stable)) == found
    gone = tally("step_down", said="b2", high=120)
    assert kinds(begun, gone, tally("append", high=99, first_offset=1)) == []
    assert kinds(begun, gone, tally("append", high=100, first_offset=1)) == [("handed_over_early", "b2")]


def spans_of_members(rows: list[Tally], lives: Lives | None = None) -> list[Span]:
    return member_spans(rows, held_again(rows, lives or {}))


def test_batches_are_judged_while_their_broker_is_a_member_and_behind_what_may_come_again() -> None:
    sets = [told("1 b1,b2 2", high=10), told("5 b1,b2,b3 2", high=50)]
    of_b3 = ("f", 1, "b3", 50, NEVER)
    spans = [
        ("f", 1, "b1", 10, 50),
        ("f", 1, "b2", 10, 50),
        ("f", 1, "b1", 50, NEVER),
        ("f", 1, "b2", 50, NEVER),
        of_b3,
    ]
    leads = epoch(1, "b1", 1)
    assert spans_of_members([leads, *sets]) == spans
    assert spans_of_members(sets) == []  # no EPOCH names the primary
    piece = tally("piece", "b3", said="caught_up", high=70)
    assert spans_of_members([leads, *sets, piece]) == [*spans[:4], ("f", 1, "b3", 70, NEVER)]
    cut, rejoined = (tally("cut", "b3", said=how, high=80) for how in ("catch_up", "rejoin"))
    assert spans_of_members([leads, *sets, cut])[4:] == [("f", 1, "b3", 80, NEVER)]
    assert spans_of_members([leads, *sets, rejoined]) == spans
    lives = {("b3", "j1-bb"): 1}
    log = [tally("append", "b3", high=60), tally("append", "b3", "j1-bb", high=90)]
    assert spans_of_members([leads, *sets, *log], lives)[4:] == [("f", 1, "b3", 60, NEVER)]
    gone = tally("gap", "b3", "", said="rewritten")
    assert spans_of_members([leads, *sets, gone]) == spans[:4]
