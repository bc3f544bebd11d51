"""Evidence of a feed about itself: holes, repeats, chains of segments, lives of a directory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.pipeline.tallies.evidence import MASK, Incarnation, squares_to, weigh


def numbered(name: str, numbers: list[int], broker: str = "b1", **more: Any) -> Incarnation:
    return Incarnation(
        broker=broker,
        name=name,
        events=len(numbers),
        first=min(numbers),
        last=max(numbers),
        total=sum(numbers),
        squares=sum((each & MASK) ** 2 for each in numbers),
        **{"previous_digest": 0 if "previous" in more else -1, "end": (max(numbers), 0), **more},
    )


def journal(number: int, events: int, salt: str = "aa", **more: Any) -> Incarnation:
    return numbered(f"j{number}-{salt}", list(range(1, events + 1)), segment=number, **more)


FACTS = numbered("p5-1", [1, 2, 3])


@pytest.mark.parametrize("last", [1, 2, MASK - 1, MASK, MASK + 1, 3 * MASK + 17])
def test_squares_are_known_without_a_look(last: int) -> None:
    assert squares_to(last) == sum((n & MASK) ** 2 for n in range(1, last + 1))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=14))
def test_an_incarnation_is_whole_iff_it_has_each_number_once(numbers: list[int]) -> None:
    each = numbered("p1-1", numbers)
    assert each.whole == (sorted(numbers) == list(range(1, max(numbers) + 1)))


def test_a_whole_feed_has_no_problems() -> None:
    feed = [journal(1, 5), journal(2, 4, previous="j1-aa", previous_events=5), FACTS]
    found = weigh(feed, named=["b1", ""])
    assert not found.problems
    assert [found.ranks["b1", name] for name in ("j1-aa", "j2-aa", "p5-1")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        ([numbered("j1-aa", [1, 2, 4], segment=1), FACTS], "b1, j1-aa: events are missing"),
        *(
            (
                [journal(1, 5), numbered("j2-aa", [1, 2], segment=called, previous="j1-aa", previous_events=5), FACTS],
                f"b1, j2-aa: its event `segment` calls it segment {called}",
            )
            for called in (0, 1, 3)
        ),
        *(
            ([journal(1, 5, **stated), FACTS], "its event `segment` speaks of a segment before it, and names none")
            for stated in (dict[str, Any](previous_events=1), dict[str, Any](previous_digest=0))
        ),
        ([numbered("j1-aa", [2, 3], segment=1), FACTS], "their numbers go from 2 to 3"),
        (
            [journal(1, 5), journal(2, 4, previous="j1-aa", previous_events=6), FACTS],
            "it has 6 events, and the feed has 5",
        ),
        ([journal(2, 4, previous="j1-aa", previous_events=6), FACTS], "it follows j1-aa, which is missing"),
        ([journal(3, 4), FACTS], "the journal before segment 3 is missing"),
        ([numbered("j3-aa@3", [1, 2], segment=3), FACTS], "b1, j3-aa@3: the journal before segment 3 is missing"),
        (
            [numbered("j4-aa@3", [1], segment=4, previous="j3-aa@3", previous_events=3), FACTS],
            "b1, j4-aa@3: it follows j3-aa@3, which is missing",
        ),
        (
            [journal(1, 4, end=None), FACTS],
            "b1, j1-aa: no event `end` says where it ends; the feed has it up to event 4",
        ),
        ([journal(1, 4, end=(3, 0)), FACTS], "b1, j1-aa: it ends with event 3, and the feed has it up to event 4"),
        ([journal(1, 4), numbered("p5-1", [1, 2], end=(3, 0))], "b1, p5-1: it ends with event 3"),
        ([journal(1, 4, digest=7), FACTS], "b1, j1-aa: its 4 events are not those that were written"),
        ([journal(1, 4, end=(4, -1)), FACTS], "no digest of its 4 events is stated"),
        (
            [journal(1, 5, digest=7), journal(2, 4, previous="j1-aa", previous_events=5), FACTS],
            "b1, j1-aa: its 5 events are not those that were written",
        ),
        ([numbered("j1-aa", [1, 2, 2, 3], segment=1), FACTS], "1 numbers stand for two different events each"),
        ([journal(1, 4)], "the feed has no facts"),
        ([FACTS], "nothing of the journal"),
        ([journal(1, 4), numbered("p5-1", [1, 2], dropped=9)], "9 facts had no room"),
        ([journal(1, 4), numbered("p5-1", [1, 2], roles=2)], "b1, p5-1: the first facts of this process are missing"),
        (
            [journal(1, 4), numbered("p5-1", [1, 2], begins=2, roles=2)],
            "b1, p5-1: the facts of 2 processes stand under this name",
        ),
    ],
)
def test_what_is_missing_is_said(feed: list[Incarnation], text: str) -> None:
    (problem,) = weigh(feed).problems
    assert text in problem


def test_a_gap_and_a_broker_without_a_feed_are_said() -> None:
    assert weigh([journal(1, 4), FACTS], [("b1", "dropped")], ["b1", "b2"]).problems == (
        "b1: the feed has a gap (dropped)",
        "b2: named by other feeds, and its own feed is missing",
    )


def test_a_journal_of_which_a_gap_says_that_it_began_late_needs_no_other_word() -> None:
    late = numbered("j3-aa@3", [1, 2], segment=3)
    assert weigh([late, FACTS], iter([("b1", "started")])).problems == ("b1: the feed has a gap (started)",)


def test_a_stream_of_which_an_end_alone_is_left_is_missing() -> None:
    nothing = Incarnation(broker="b1", name="p7-1", events=0, first=0, last=0, total=0, squares=0, end=(9, 0))
    assert weigh([journal(1, 4), FACTS, nothing]).problems == (
        "b1, p7-1: it has 9 events, and the feed has none of them",
    )


def test_brokers_whose_rows_are_not_as_stated_are_named() -> None:
    assert weigh([journal(1, 4), FACTS]).altered == frozenset()
    assert weigh([journal(1, 4, digest=7), FACTS]).altered == {"b1"}


def test_a_directory_that_was_replaced_begins_a_new_life() -> None:
    """Its numbers begin again, and the clock says which life was the first."""
    old = [journal(1, 5, begun_ms=10), journal(2, 4, previous="j1-aa", previous_events=5, begun_ms=20)]
    new = [journal(1, 3, salt="bb", begun_ms=30)]
    found = weigh([*new, *old, FACTS])
    assert not found.problems
    assert sorted(found.ranks, key=lambda key: found.ranks[key]) == [
        ("b1", "j1-aa"),
        ("b1", "j2-aa"),
        ("b1", "j1-bb"),
        ("b1", "p5-1"),
    ]
    assert found.lives == {("b1", "j1-bb"): 1}
