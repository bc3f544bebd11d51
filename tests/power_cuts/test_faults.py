"""Errors of the disk: what was told stays, and what cannot be read is no damage and no torn tail."""

from __future__ import annotations

from random import Random

import pytest

from tests.power_cuts.cut_images import CutImages
from tests.power_cuts.faults import EIO, ENOSPC, SHORT_WRITE, fail_each, refuse_each_read
from tests.power_cuts.life import TINY, Life
from tests.power_cuts.lives import SHORT
from tests.power_cuts.openings import Counts, Openings


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
