"""Conclusions from tallies of a feed: no feed is read here."""

from __future__ import annotations

from typing import Any

from understudy.pipeline.tallies.chosen_log import ChosenLog
from understudy.pipeline.tallies.look import (
    Tally,
    epoch_logs,
    epochs_begun,
    incarnations,
    is_whole,
    said_of_log,
    told_again,
)


def tally(event: str, broker: str = "b1", incarnation: str = "j1-aa", **more: Any) -> Tally:
    return Tally(
        **{"founding": "f", "epoch": 1, "events": 1, **more}, event=event, broker=broker, incarnation=incarnation
    )


def append(broker: str, first: int, last: int, **more: Any) -> Tally:
    return tally("append", broker, first_offset=first, high=last, **{"covered": last - first + 1, **more})


def test_an_incarnation_is_put_together_from_its_events() -> None:
    """A gap has no number, and is in none."""
    rows = [
        tally("segment", first=1, last=1, total=1, squares=1, said="j0-aa", segment=1, previous_events=7, begun_ms=5),
        tally("append", first=2, last=3, total=5, squares=13, events=2, begun_ms=9, ended_ms=11),
        tally("gap", incarnation="", said="dropped"),
    ]
    (found,) = incarnations(rows, {})
    assert (found.name, found.events, found.first, found.last) == ("j1-aa", 3, 1, 3)
    assert found.whole
    assert (found.previous, found.previous_events, found.begun_ms, found.ended_ms) == ("j0-aa", 7, 5, 11)


def test_a_directory_that_is_made_anew_has_epochs_of_its_own() -> None:
    rows = [append("b1", 1, 9), append("b1", 1, 4, incarnation="j1-bb"), tally("apply", said="tx", high=99)]
    found = epoch_logs(rows, {("b1", "j1-bb"): 1})
    assert {(each.life, each.first, each.last, each.applied) for each in found} == {(0, 1, 9, 0), (1, 1, 4, 0)}


def test_records_come_again_behind_a_cut_and_by_a_catch_up_alone() -> None:
    plain = [append("b1", 1, 9), append("b1", 10, 12, incarnation="j2-aa")]
    assert told_again(plain, {}) == {}
    assert told_again([*plain, tally("cut", said="rejoin", low=8), tally("cut", said="rejoin", low=5)], {}) == {"b1": 5}
    assert told_again([*plain, tally("cut", said="catch_up", low=8)], {}) == {"b1": 0}
    assert told_again([*plain, tally("piece", said="transaction", high=8)], {}) == {"b1": 0}
    again = append("b1", 1, 12, incarnation="j1-bb")
    assert told_again([*plain, again], {}) == {"b1": 0}
    assert told_again([*plain, again], {("b1", "j1-bb"): 1}) == {}


def test_a_log_is_whole_unless_records_stand_behind_its_end() -> None:
    kept = {("f", 1): 100}
    chosen = ChosenLog(kept=kept, starts={}, reaches=(), problems=())
    assert is_whole([append("b1", 1, 100), tally("append", epoch=2, high=500)], chosen)
    assert not is_whole([append("b1", 1, 101)], chosen)


def test_what_a_broker_said_of_its_log_is_its_furthest_word() -> None:
    rows = [
        tally("append", stable=7, ended_ms=3),
        tally("append", incarnation="j2-aa", stable=5, ended_ms=4),
        tally("apply", high=6),
        tally("apply", said="tx", high=99),
    ]
    assert said_of_log(rows) == [("f", "append", "b1", 1, 7, 4), ("f", "apply", "b1", 1, 6, 0)]
    begun = [tally("epoch", said="8 b1", low=8, begun_ms=5), tally("epoch", "b2", said="8 b1", low=8, begun_ms=3)]
    assert epochs_begun(begun) == [("f", 8, 3)]
