"""A power cut loses nothing that was told, brings nothing back and is never taken for damage."""

from __future__ import annotations

from random import Random

import pytest

from tests.power_cuts import broker_life
from tests.power_cuts.broker_life import BrokerLife, Watch, compact, compacting, taking
from tests.power_cuts.cut_images import CutImages
from tests.power_cuts.life import TINY, WIDE, Law, Life
from tests.power_cuts.lives import SHORT, scripts
from tests.power_cuts.openings import Counts, Openings
from tests.power_cuts.repairs import Repairs, damaged
from tests.power_cuts.sweep import sweep, sweep_drawn, sweep_short
from tests.power_cuts.tails import Tails
from understudy.broker.core.life import compaction
from understudy.broker.log import live_offsets
from understudy.broker.log.journal import JournalOptions
from understudy.testing.disk import MemoryStorage


@pytest.mark.parametrize("options", [TINY, WIDE], ids=["blocks of 512", "blocks of 1024"])
def test_every_cut_of_short_lives(options: JournalOptions) -> None:
    counts = sweep_short(options)
    print(counts)
    assert counts.states > 1_000
    assert counts.total > 10_000


def test_every_cut_of_every_life_of_three_letters() -> None:
    openings = Openings(TINY, Counts())
    lives = 0
    for script in scripts(3):
        sweep(script, Life(), openings)
        lives += 1
    print(openings.counts)
    assert lives == 1_000
    assert openings.counts.states > 50_000
    assert openings.counts.total > 100_000


def test_drawn_cuts_of_long_lives() -> None:
    counts = Counts()
    for seed in (*range(4), 29, 38):
        sweep_drawn(seed, TINY if seed % 2 else WIDE, counts)
    print(counts)
    assert counts.states > 2_000
    assert counts.total > 15_000


@pytest.mark.parametrize("slice_bytes", [1, 128 << 10])
def test_cuts_of_a_broker_that_compacts(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)
    monkeypatch.setattr(compaction, "SLICE_BYTES", slice_bytes)
    watch = Watch(Counts(), Random(1), draws=16)
    for script in (compacting, taking):
        compact(watch, script)

    def drawn(life: BrokerLife) -> None:
        broker_life.drawn(life, Random(slice_bytes), steps=12)

    compact(watch, drawn)
    print(watch.counts, watch.compacted)
    assert watch.counts.states > 500
    assert watch.compacted > 200


def test_each_image_comes_once_and_is_one_that_a_cut_can_leave() -> None:
    storage = MemoryStorage()
    file = storage.create("a", 2048)
    storage.sync_directory()
    file.write([b"x" * 1024], 512)
    file.write([b"y" * 10], 600)
    file.write([bytes(512)], 1536)
    storage.create("b", 512)
    storage.rename("a", "c")
    cut = CutImages(storage)
    images = list(cut.all())
    contents = {tuple(sorted(image.items())) for image in images}
    assert len(images) == len(contents) == cut.count == 2 * 2 * 4 * 2
    assert {frozenset(image) for image in images} == {
        frozenset("a"),
        frozenset("ab"),
        frozenset("c"),
        frozenset("bc"),
    }
    first = {image.get("a", image.get("c", b""))[512:1024] for image in images}
    lost, kept = bytes(512), b"x" * 512
    small = b"y" * 10
    assert first == {lost, kept, lost[:88] + small + lost[98:], kept[:88] + small + kept[98:]}
    for seed in range(50):
        storage.clone().crash(Random(seed))
        assert set(cut.drawn(Random(seed))) <= {"a", "b", "c"}


def test_the_law_sees_what_is_lost_doubled_moved_or_back() -> None:
    frames = [b"a", b"b", b"c", b"d"]
    law = Law(history=frames, told=3, starts={0: 3, 1: 3})
    assert law.broken_by(frames) == law.broken_by(frames[:3]) == law.broken_by(frames[1:]) == ""
    assert "3 frames are told" in law.broken_by(frames[:2])
    assert "nothing is found" in law.broken_by([])
    assert "begins with frame 2" in law.broken_by(frames[2:])
    assert "a hole, another order" in law.broken_by([b"a", b"c", b"d"])
    assert "a hole, another order" in law.broken_by([b"a", b"a", b"b", b"c"])
    assert "never appended" in law.broken_by([b"x", *frames])


def test_every_cut_of_a_repair_and_of_the_runs_that_finish_it() -> None:
    image, kept = damaged()
    repairs = Repairs(kept)
    repairs.cut_each(image)
    print(f"{repairs.states} states, {repairs.images} distinct images, {repairs.refused} refused by a start")
    assert repairs.states > 500
    assert 0 < repairs.refused < repairs.images


def test_a_tail_goes_on_behind_every_cut_or_hears_that_the_journal_was_rewritten() -> None:
    tails = Tails()
    for script in SHORT:
        tails.follow(script)
    print(tails.outcomes)
    assert tails.outcomes["goes on, there"] > 500
    assert tails.outcomes["rewritten, lost"] > 500
    assert "goes on, lost" not in tails.outcomes
