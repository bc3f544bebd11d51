"""A promise of which a feed has no evidence is named."""

from __future__ import annotations

import pytest

from tests.unit.pipeline.tallies.test_reigns import epoch, tally
from understudy.pipeline.tallies.look import NAMED, PARTED, PLAIN, Tally
from understudy.pipeline.tallies.untold import tails, untold

WORK = [tally("prepare"), tally("commit"), tally("enqueue", said=PLAIN)]
TAKEN = tally("dequeue", said=f"{PLAIN} acknowledged")
COMMITTED = tally("told", said="committed", incarnation="p1-1")
CONFIRM, DELIVER = tally("confirm", incarnation="p1-1"), tally("deliver", incarnation="p1-1")


@pytest.mark.parametrize(
    ("rows", "promises"),
    [
        ([], ""),
        (WORK, "G3, G4, G8 and G9 need it"),
        ([TAKEN], "G3, G4, G8 and G9 need it"),
        ([*WORK, DELIVER], "of G4 and G8 there is no evidence"),
        ([*WORK, CONFIRM], "of G8 there is no evidence"),
        ([*WORK, CONFIRM, tally("enqueue", said=PARTED)], ""),  # a body in parts commits, and is confirmed
        ([*WORK, COMMITTED], ""),  # a publisher need not ask for confirms
        ([*WORK, tally("told", said=NAMED)], ""),
        ([*WORK, COMMITTED, TAKEN], "of G3 and G9 there is no evidence"),
        ([*WORK, COMMITTED, TAKEN, DELIVER], ""),
        ([*WORK, COMMITTED, tally("dequeue", said=f"{PLAIN} expired")], ""),
    ],
)
def test_what_records_call_for_and_nobody_was_told_is_named(rows: list[Tally], promises: str) -> None:
    found = untold(rows)
    assert len(found) == bool(promises), found
    assert all(each.startswith("founding f: ") and each.endswith(promises) for each in found)


def test_each_founding_is_judged_by_itself() -> None:
    other = [tally("commit", founding="g"), tally("deliver", founding="g")]
    (found,) = untold([*WORK, COMMITTED, *other])
    assert found.startswith("founding g: ")


def test_the_tail_of_a_primary_is_what_others_know_of_its_epoch_behind_its_last_fact() -> None:
    facts = [tally("told", incarnation="p1-1", high=7), tally("role", incarnation="p1-1", high=9)]
    others = [tally("status", "b2", incarnation="p1-2", high=11), tally("append", high=12, stable=12)]
    (tail,) = tails([epoch(1, "b1", 1), *facts, *others])
    assert (tail.primary, tail.epoch, tail.facts_end, tail.known, tail.commits) == ("b1", 1, 9, 0, 0)
    of_b2 = [tally("append", "b2", high=30, stable=20), tally("commit", "b2", high=30, events=4)]
    (tail,) = tails([epoch(1, "b1", 1), *facts, *others, *of_b2])
    assert (tail.facts_end, tail.known, tail.commits) == (9, 20, 4)
    (tail,) = tails([epoch(1, "b1", 1), *facts, *of_b2, tally("told", incarnation="p1-1", high=30)])
    assert tail.commits == 0
    (tail,) = tails([epoch(1, "b1", 1), *facts, *of_b2, tally("end", incarnation="p1-1", high=30)])
    assert tail.facts_end == 9, "an `end` is no fact"
    restarted = tally("status", incarnation="p2-1", high=30)
    (tail,) = tails([epoch(1, "b1", 1), *facts, *of_b2, restarted])
    assert tail.facts_end == 30, "it is not known which process led"
    (tail,) = tails([epoch(1, "b1", 1), *facts, *of_b2, restarted, tally("promote", incarnation="p1-1", high=1)])
    assert (tail.facts_end, tail.commits) == (9, 4)
