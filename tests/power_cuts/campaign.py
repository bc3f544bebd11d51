"""Look for a known bug of the store with what is checked at every run."""

from __future__ import annotations

from random import Random

import attrs

from tests.power_cuts.broker_life import Watch, compact, compacting, taking
from tests.power_cuts.cut_images import CutImages
from tests.power_cuts.faults import EIO, ENOSPC, SHORT_WRITE, fail_each, refuse_each_read
from tests.power_cuts.flips import batches_each, ended, one_bit, read_each, start_each
from tests.power_cuts.life import TINY, BrokenError, Life
from tests.power_cuts.lives import SHORT
from tests.power_cuts.mutations import BROKER, CUT, FAULT, FLIP, READ, TAIL
from tests.power_cuts.openings import Counts, Openings
from tests.power_cuts.sweep import sweep_short
from tests.power_cuts.tails import Tails
from tests.simulator.mutations.mutation import Mutation
from understudy.broker.log.segment import JournalError


@attrs.frozen
class Found:
    """A bug that was looked for.

    Attributes:
        name: of the bug.
        what: the law that it broke, or the error by which the product itself saw it; "" if nothing was seen.
        strikes: how often the bug did something.
    """

    name: str
    what: str
    strikes: int

    def __str__(self) -> str:
        return f"{self.name}: {self.what or 'NOT FOUND'} ({self.strikes} strikes)"


def look_for(mutation: Mutation) -> Found:
    """Look for a bug where it says that it is seen."""
    (where,) = mutation.caught_by
    with mutation.in_force() as bug:
        what = ""
        try:
            _LOOKS[where]()
        except (BrokenError, JournalError, AssertionError) as error:
            what = f"{type(error).__name__}: {error}"
        return Found(mutation.name, what, bug.strikes)


def _cuts() -> None:
    sweep_short(TINY)


def _tails() -> None:
    tails = Tails()
    for script in SHORT:
        tails.follow(script)


def _flips() -> None:
    start_each(*ended(closed=True), one_bit)


def _reads() -> None:
    batches_each(one_bit)
    read_each(one_bit)


def _faults() -> None:
    rng = Random(4)
    for script in SHORT:
        life = Life()
        script(life)
        life.die()
        life.batches(300, 600, 300)
        life.break_off(1)
        refuse_each_read(CutImages(life.disk).drawn(Random(3)))
        for kind in (EIO, ENOSPC, SHORT_WRITE):
            fail_each(script, kind, Openings(TINY, Counts(), rng), rng)


def _broker() -> None:
    for script in (taking, compacting):
        compact(Watch(Counts(), Random(1), draws=16), script)


_LOOKS = {CUT: _cuts, TAIL: _tails, FLIP: _flips, READ: _reads, FAULT: _faults, BROKER: _broker}
