"""A promise of which a feed has no evidence is named."""

from __future__ import annotations

import pytest

from tests.unit.pipeline.test_feed_reigns import epoch, tally
from understudy.pipeline.feed_look import NAMED, PARTED, PLAIN, Tally
from understudy.pipeline.untold import facts_end, untold

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


def test_the_facts_of_a_primary_end_with_the_last_one_of_its_epoch() -> None:
    facts = [tally("told", incarnation="p1-1", high=7), tally("role", incarnation="p1-1", high=9)]
    others = [tally("status", "b2", incarnation="p1-2", high=11), tally("append", high=12)]
    assert facts_end([epoch(1, "b1", 1), *facts, *others]) == {("f", 1, "b1"): 9}
