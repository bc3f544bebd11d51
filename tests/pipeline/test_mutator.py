"""Broken feeds are not proved, however small the alteration; the feeds that they are made of are.

All alterations: ``python -m tests.pipeline.mutator``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.alterations import all_alterations, altered, close_up, copied
from tests.pipeline.base_feeds import Feed, base_feed
from tests.pipeline.hostile_alterations import FORGED, UNSEEN, forged
from tests.pipeline.mutator import BASES, judged_together, write_feed
from tests.pipeline.named_alterations import NAMED
from tests.pipeline.sim_feeds import judge
from tests.pipeline.true_feeds import feed_of_a_fatal_turn
from understudy.pipeline.audit.verdict import PROVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = ("prepare: dropped on one", "assign: count changed on one", "confirm: last_offset changed on one")


@pytest.fixture(scope="module")
def bases() -> dict[str, Feed]:
    return {name: base_feed(seed, power=power) for name, (seed, power) in BASES.items()}


def test_a_base_feed_is_proved_and_an_altered_one_is_not(
    bases: dict[str, Feed], spark: SparkSession, tmp_path: Path
) -> None:
    feeds = {**bases, "fatal": feed_of_a_fatal_turn(5)}
    clean = judge(spark, [write_feed(feed, tmp_path / name) for name, feed in feeds.items()], tmp_path / "clean")
    assert {name: each.word for name, each in clean.items()} == dict.fromkeys(feeds, PROVED), clean
    base = base_feed(BASES["killed"][0], power=False, short=True)
    sample = [each for each in all_alterations(base) if each.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    found = {each.alteration.name: each.judged for each in judged_together(spark, base, [*NAMED, *sample], tmp_path)}
    assert not [name for name, each in found.items() if each.word == PROVED], found


def test_a_forged_feed_that_agrees_with_itself_is_not_proved(
    bases: dict[str, Feed], spark: SparkSession, tmp_path: Path
) -> None:
    some = {f"m{number}": each for number, each in enumerate([*FORGED, *UNSEEN])}
    folders = [write_feed(forged(bases["killed"], each), tmp_path / name) for name, each in some.items()]
    found = judge(spark, folders, tmp_path / "together")
    proved = [some[name].name for name, each in found.items() if each.word == PROVED]
    assert sorted(proved) == sorted(each.name for each in UNSEEN), found


def test_a_feed_whose_numbers_are_closed_up_shows_no_hole(bases: dict[str, Feed]) -> None:
    """Of a clean feed that changes nothing."""
    base = bases["killed"]
    again = copied(base)
    close_up(again)
    assert again == base
    some = next(each for each in all_alterations(base) if each.name == "enqueue plain: dropped on all")
    feed = altered(base, some)
    for broker, events in feed.items():
        assert len(events) == len(base[broker]) - 1
        for stream in {event["incarnation"] for event in events}:
            numbers = [event["seq"] for event in events if event["incarnation"] == stream and event["event"] != "end"]
            assert numbers == list(range(1, len(numbers) + 1))
