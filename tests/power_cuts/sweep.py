"""Cut the power at each moment of a life, and open what that could leave."""

from __future__ import annotations

from random import Random

from tests.power_cuts.cut_images import CutImages
from tests.power_cuts.life import BrokenError, Life, Script
from tests.power_cuts.lives import SHORT, drawn
from tests.power_cuts.openings import Counts, Openings
from understudy.broker.log.journal_state import JournalOptions
from understudy.broker.log.segment import JournalError
from understudy.testing.disk import MemoryStorage

STEPS = 30
"""Of a drawn life."""


def sweep(script: Script, life: Life, openings: Openings, rng: Random | None = None, draws: int = 1) -> None:
    """Let ``life`` follow ``script`` and check the law at each operation of its disk.

    Args:
        script: what it does.
        life: that has not begun.
        openings: of its options; their counts are added to.
        rng: None: all images at each moment; else ``draws`` images are drawn there.
        draws: as said.

    Raises:
        BrokenError: the law does not hold.
    """
    counts = openings.counts

    def look(disk: MemoryStorage) -> None:
        cut, law = CutImages(disk), life.law()
        counts.points += 1
        for image in cut.all() if rng is None else [cut.drawn(rng) for _ in range(draws)]:
            counts.states += 1
            opened = openings.open(image)
            wrong = opened.refused or law.broken_by(opened.frames)
            if wrong:
                raise BrokenError(wrong)

    life.disk.watch = look
    try:
        script(life)
        look(life.disk)
    except BrokenError as error:
        raise BrokenError(f"{script.__name__}, moment {counts.points}: {error}") from error
    except (JournalError, AssertionError) as error:
        raise BrokenError(f"{script.__name__}, moment {counts.points}: {type(error).__name__}: {error}") from error


def sweep_short(options: JournalOptions) -> Counts:
    """Each image of each life in `SHORT`.

    Raises:
        BrokenError: the law does not hold.
    """
    openings = Openings(options, Counts())
    for script in SHORT:
        sweep(script, Life(options), openings)
    return openings.counts


def sweep_drawn(seed: int, options: JournalOptions, counts: Counts, draws: int = 2) -> None:
    """The life of that seed; images are drawn.

    Raises:
        BrokenError: the law does not hold.
    """

    def script(life: Life) -> None:
        drawn(life, Random(f"life {seed}"), STEPS)

    script.__name__ = f"seed {seed}"
    rng = Random(seed)
    sweep(script, Life(options), Openings(options, counts, rng), rng, draws)
