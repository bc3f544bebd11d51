"""Batches of brokers, compared by what one look at all events has of them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.unit.pipeline.tallies.test_reigns import tally
from understudy.pipeline.feed.digest import StreamDigest
from understudy.pipeline.tables.log_records import agreed
from understudy.pipeline.tallies.chosen_log import ChosenLog, EpochLog, choose


def batches(broker: str, **more: Any) -> StreamDigest:
    fields = {"epoch": 1, "digest": 0, "batches": 5, "contents": 77, "unknown": 0, **more}
    return StreamDigest(founding="f", broker=broker, incarnation="j1-aa", **fields)


def chosen(**first: int) -> ChosenLog:
    return choose(
        [EpochLog(founding="f", broker=each, epoch=1, first=first.get(each, 1), last=90) for each in ("b1", "b2")], []
    )


SAME = [batches("b1"), batches("b2")]


def test_brokers_with_the_same_batches_agree_and_no_records_are_read() -> None:
    assert agreed(SAME, [], chosen(), {}, {})
    parts = [batches("b2", batches=2, contents=70), batches("b2", batches=3, contents=77 ^ 70)]
    assert agreed([batches("b1"), *parts], [], chosen(), {}, {}), "tallies of a broker are of parts of its log"


@pytest.mark.parametrize(
    "rows",
    [
        [batches("b1")],
        [batches("b1"), batches("b2", contents=78)],
        [batches("b1"), batches("b2", batches=4)],
        [batches("b1"), batches("b2", epoch=2)],
        [batches("b1", unknown=1), batches("b2", unknown=1)],
        [batches("b1"), batches("b2"), batches("b2", epoch=2)],
    ],
)
def test_brokers_with_other_batches_or_none_or_unknown_ones_do_not_agree(rows: list[StreamDigest]) -> None:
    assert not agreed(rows, [], chosen(), {}, {})


def test_brokers_agree_only_if_each_has_all_of_the_log_once() -> None:
    assert not agreed(SAME, [], chosen(), {"b1": 40}, {}), "b1 may have told records twice"
    assert not agreed(SAME, [], chosen(b2=30), {}, {}), "b2 has caught up"
    cut = attrs.evolve(chosen(), kept={("f", 1): 90})
    assert agreed(SAME, [], cut, {}, {})
    assert not agreed(SAME, [tally("append", "b1", high=95)], cut, {}, {}), "b1 has a batch that was cut"
