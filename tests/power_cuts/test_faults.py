"""Errors of the disk: what was told stays, and what cannot be read is no damage and no torn tail."""

from __future__ import annotations

from random import Random

import pytest

from tests.power_cuts.broker_life import SEGMENT_BYTES, fail_in_a_pass
from tests.power_cuts.cut_images import CutImages, storage_of
from tests.power_cuts.faults import (
    CHANGING,
    EIO,
    ENOSPC,
    SHORT_WRITE,
    FaultyDisk,
    fail_each,
    fail_each_read_of,
    refuse_each_read,
)
from tests.power_cuts.flips import eventful
from tests.power_cuts.life import TINY, Life
from tests.power_cuts.lives import SHORT
from tests.power_cuts.openings import Counts, Openings
from tests.unit.core.life.compaction_kit import JournaledCore, held
from understudy.broker.core.life import compaction
from understudy.broker.log import live_offsets
from understudy.broker.log.journal import Journal
from understudy.broker.log.journal_tail import JournalTail


@pytest.mark.parametrize("kind", [EIO, ENOSPC, SHORT_WRITE])
def test_each_operation_fails(kind: str) -> None:
    """Then the process ends, or the power with it."""
    rng = Random(4)
    openings = Openings(TINY, Counts(), rng)
    failed = opened = 0
    for script in SHORT:
        operations, images = fail_each(script, kind, openings, rng)
        failed += operations
        opened += images
    print(failed, opened, openings.counts)
    assert failed > (400 if kind == EIO else 200)
    assert opened == 4 * (failed - len(SHORT) * _starts(kind))


def _starts(kind: str) -> int:
    """Operations of the first start, of an empty directory."""
    return 1 if kind == EIO else 0


@pytest.mark.parametrize("kind", [EIO, ENOSPC, SHORT_WRITE])
def test_each_operation_of_a_compaction_fails(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Then the process ends, or the power with it: the next one holds what clients were told."""
    monkeypatch.setattr(live_offsets, "BUCKET_SHIFT", 2)
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)
    rng = Random(5)
    number = 0
    while True:
        disk = FaultyDisk(kind, number, CHANGING if kind == EIO else ("write", "create"))
        life, told = fail_in_a_pass(disk)
        if not disk.failed:
            break
        cached = {name: disk.content(name) for name in disk.names()}
        for image in (cached, CutImages(disk).drawn(rng)):
            assert held(JournaledCore(storage_of(image), SEGMENT_BYTES).node) == told, f"{disk.failed} {number} failed"
        number += 1
    print(number)
    assert life.core.journal.first_segment > 1
    assert number > 8


def test_each_read_fails_of_a_journal_that_has_started() -> None:
    """Batches for a backup, and a tail of a feed."""
    life = Life()
    eventful(life)
    image = {name: life.disk.content(name) for name in life.disk.names()}

    def batches(_: FaultyDisk, journal: Journal) -> object:
        assert journal.first_offset is not None
        return list(journal.read_batches(journal.first_offset))

    def tail(disk: FaultyDisk, _: Journal) -> object:
        follower = JournalTail(disk)
        frames = list(follower.frames())
        follower.find_damage()
        return frames

    assert fail_each_read_of(image, batches) > 4
    assert fail_each_read_of(image, tail) > 20


def test_each_read_fails() -> None:
    """Of each start from the end of a life, and from a torn group behind it."""
    reads = 0
    for script in SHORT:
        life = Life()
        script(life)
        reads += refuse_each_read({name: life.disk.content(name) for name in life.disk.names()})
        life.die()
        life.batches(300, 600, 300)
        life.break_off(1)
        reads += refuse_each_read(CutImages(life.disk).drawn(Random(3)))
    print(reads)
    assert reads > 500
