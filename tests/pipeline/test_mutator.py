"""Broken feeds are not proved, however small the alteration; the feeds that they are made of are. So are simulated runs.

All alterations: ``python -m tests.pipeline.mutator``. All seeds and all bugs of the simulator:
``python -m tests.pipeline.sim_feeds`` and ``python -m tests.pipeline.sim_mutations``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.alterations import Alteration, all_alterations, altered, close_up, copied
from tests.pipeline.base_feeds import Feed, base_feed
from tests.pipeline.hostile_alterations import FORGED, UNSEEN, forged
from tests.pipeline.mutator import BASES, write_feed
from tests.pipeline.named_alterations import NAMED
from tests.pipeline.sim_feeds import Judged, Wanted, judge, write
from tests.pipeline.sim_mutations import Wanted as WantedBug
from tests.pipeline.sim_mutations import write_found
from tests.pipeline.true_feeds import feed_of_a_fatal_turn
from understudy.pipeline.audit.verdict import PROVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = ("prepare: dropped on one", "assign: count changed on one", "confirm: last_offset changed on one")


CLEAN = "seed-17"
"""A simulated run with catch-ups, cuts, step-downs, directories that are lost, and a log that is let go."""
BUGS = {
    "redelivery-not-marked": (0, "G9 unmarked"),
}
"""Where a search from seed 0 on ends, and what the audit must find. If a change makes them other stories, the search goes on."""


@pytest.fixture(scope="module")
def bases() -> dict[str, Feed]:
    return {name: base_feed(seed, power=power) for name, (seed, power) in BASES.items()}


@pytest.fixture(scope="module")
def altered_feeds() -> dict[str, tuple[Alteration, Feed]]:
    base = base_feed(BASES["killed"][0], power=False, short=True)
    sample = [each for each in all_alterations(base) if each.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    return {f"altered-{number}": (each, altered(base, each)) for number, each in enumerate([*NAMED, *sample])}


@pytest.fixture(scope="module")
def forged_feeds(bases: dict[str, Feed]) -> dict[str, tuple[Alteration, Feed]]:
    some = enumerate([*FORGED, *UNSEEN])
    return {f"forged-{number}": (each, forged(bases["killed"], each)) for number, each in some}


@pytest.fixture(scope="module")
def true_feeds(bases: dict[str, Feed]) -> dict[str, Feed]:
    return {**bases, "fatal": feed_of_a_fatal_turn(5)}


@pytest.fixture(scope="module")
def judged(
    true_feeds: dict[str, Feed],
    altered_feeds: dict[str, tuple[Alteration, Feed]],
    forged_feeds: dict[str, tuple[Alteration, Feed]],
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Judged]:
    """One audit of all feeds of this module, since an audit has a fixed cost: what it says of each, by its name."""
    work = tmp_path_factory.mktemp("judged")
    broken = {name: feed for name, (_, feed) in {**altered_feeds, **forged_feeds}.items()}
    folders = [write_feed(feed, work / name) for name, feed in {**true_feeds, **broken}.items()]
    clean = write(Wanted(17, work / CLEAN))
    assert clean.whole
    assert clean.result.held
    assert not clean.lost
    for name, (start, _) in BUGS.items():
        assert write_found(WantedBug(name, start, work / name)) is not None
    return judge(spark, [*folders, clean.folder, *(work / name for name in BUGS)], work / "together")


def test_a_base_feed_is_proved(true_feeds: dict[str, Feed], judged: dict[str, Judged]) -> None:
    assert {name: judged[name].word for name in true_feeds} == dict.fromkeys(true_feeds, PROVED), judged


def test_an_altered_feed_is_not_proved(
    altered_feeds: dict[str, tuple[Alteration, Feed]], judged: dict[str, Judged]
) -> None:
    assert not [each.name for name, (each, _) in altered_feeds.items() if judged[name].word == PROVED]


def test_a_forged_feed_that_agrees_with_itself_is_not_proved(
    forged_feeds: dict[str, tuple[Alteration, Feed]], judged: dict[str, Judged]
) -> None:
    proved = [each.name for name, (each, _) in forged_feeds.items() if judged[name].word == PROVED]
    assert sorted(proved) == sorted(each.name for each in UNSEEN), judged


def test_clean_runs_are_proved_and_known_bugs_are_found(judged: dict[str, Judged]) -> None:
    assert judged[CLEAN].word == PROVED, judged[CLEAN].as_json()
    for name, (_, wanted) in BUGS.items():
        assert wanted in judged[name].violations, judged[name].as_json()


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
