"""Lives of journals: short ones as scripts, long ones drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from tests.power_cuts.life import Life, Script


def groups(life: Life) -> None:
    """Groups of one frame, of several, and of a frame over several sectors."""
    life.group(100)
    life.group(60, 300, 200)
    life.note(30)
    life.group(900)


def roll(life: Life) -> None:
    """A segment is full, and the next one is made in the job."""
    life.group(1000)
    life.group(700)
    life.group(900, 200)
    life.group(80)


def roll_to_spare(life: Life) -> None:
    """The next segment is made ahead of time."""
    life.group(1000)
    life.spare()
    life.group(700)
    life.group(900)
    life.spare()
    life.group(500)


def large_frame(life: Life) -> None:
    """A frame larger than a segment has one of its own."""
    life.group(100)
    life.group(2700)
    life.group(100)


def dropped(life: Life) -> None:
    """Leading segments are dropped."""
    for _ in range(5):
        life.group(1100)
    life.drop(life.journal.durable_offset - 1)
    life.group(200)


def dropped_beside_a_group(life: Life) -> None:
    """The floor comes with a group of frames that is torn."""
    for _ in range(4):
        life.group(1100)
    life.request_drop(2)
    life.group(300, 300, 300)
    life.remove()
    life.group(50)


def new_epoch(life: Life) -> None:
    """A CUT kills batches, and others come to their places."""
    life.group(100, 100, 100)
    life.cut(1)
    life.group(200, 300)
    life.group(900)
    life.cut(2)
    life.sync()
    life.group(100)


def closed(life: Life) -> None:
    """A clean end and a start, twice."""
    life.group(100)
    life.restart()
    life.group(200, 200)
    life.restart()
    life.group(700)
    life.close()


def torn(life: Life) -> None:
    """The power was cut in a group: its rest is cut, and the next group comes behind it."""
    life.group(100)
    life.batches(200, 300, 600)
    life.break_off(1)
    life.lose_power(Random(3))
    life.group(300, 200)
    life.group(100)


def died(life: Life) -> None:
    """The process dies with a group that is written and not synced; its successor goes on from what it reads."""
    life.group(100)
    life.batches(200, 300, 600)
    life.break_off(1)
    life.die()
    life.group(300)


def died_in_a_roll(life: Life) -> None:
    """The process dies when the next segment has a header and no group, then in its start."""
    life.group(1000)
    life.group(900)
    life.batches(900)
    life.break_off(4)
    life.die(breaks_off=1)
    life.group(500)


def died_in_a_removal(life: Life) -> None:
    """The process dies when the next segment is a file without a header, and its successor when it has removed that file."""
    life.group(1000)
    life.group(900)
    life.batches(900)
    life.break_off(3)
    life.die(breaks_off=1)
    life.group(500)


def full_disk(life: Life) -> None:
    """There is no room for the next segment until the reserve is given up."""
    life.journal.reserve.hold()
    life.group(1000)
    life.group(900)
    life.disk.full = True
    life.group(900)
    life.group(100)
    life.disk.full = False


def failed(life: Life) -> None:
    """An fsync fails: the pages look clean and are not on the disk."""
    life.group(100)
    life.batches(200, 300, 600)
    life.fail()
    life.die()
    life.group(300)


def failed_after_a_tear(life: Life) -> None:
    """An fsync fails in the start that wipes a torn tail; the next start sees its zeros in the cache."""
    life.group(100)
    life.batches(200, 300, 300, 300)
    life.break_off(1)
    life.lose_power(Random(3))
    life.batches(400, 400)
    life.fail()
    life.die(breaks_off=2)
    life.group(300)


def died_with_a_floor(life: Life) -> None:
    """The process dies with a group that lets go of segments, written and not synced; its successor removes them."""
    for _ in range(3):
        life.group(1100)
    life.request_drop(2)
    life.batches(400, 400)
    life.break_off(1)
    life.die()
    life.group(100)


def beside(life: Life) -> None:
    """A spare segment is made, and dead ones are removed, while groups are written and a segment is begun."""
    life.group(1000)
    life.batches(700)
    life.sync_beside(1, life.journal.begin_spare())
    life.group(1000)
    life.group(1000)
    life.request_drop(2)
    life.group(600)
    life.batches(1500)
    life.sync_beside(2, life.journal.begin_drop())
    life.group(50)


def anew(life: Life) -> None:
    """Everything is let go for a checkpoint."""
    life.group(700)
    life.group(700)
    life.begin_anew(40)
    life.group(100)
    life.remove()


def anew_with_a_large_checkpoint(life: Life) -> None:
    """Everything is let go for a checkpoint of several sectors."""
    life.group(700)
    life.begin_anew(1300)
    life.group(100)
    life.remove()


SHORT = (
    groups,
    roll,
    roll_to_spare,
    large_frame,
    dropped,
    dropped_beside_a_group,
    new_epoch,
    closed,
    torn,
    died,
    died_in_a_roll,
    died_in_a_removal,
    died_with_a_floor,
    failed,
    failed_after_a_tear,
    beside,
    full_disk,
    anew,
    anew_with_a_large_checkpoint,
)


def _cut_one(life: Life) -> None:
    life.cut(max(life.journal.last_offset - 1, 0))
    life.group(250)


def _torn(life: Life) -> None:
    life.batches(200, 500, 300)
    life.break_off(1)
    life.lose_power(Random(3))


def _died(life: Life) -> None:
    life.batches(200, 500, 300)
    life.break_off(1)
    life.die()


def _failed(life: Life) -> None:
    life.batches(200, 500, 300)
    life.fail()
    life.die()


LETTERS: dict[str, Script] = {
    "group": lambda life: life.group(60, 300, 200),
    "large group": lambda life: life.group(1000),
    "cut": _cut_one,
    "spare": lambda life: life.spare(),
    "drop": lambda life: life.drop(max(life.journal.durable_offset - 1, 0)),
    "restart": lambda life: life.restart(),
    "torn": _torn,
    "died": _died,
    "failed": _failed,
    "anew": lambda life: life.begin_anew(700),
}
"""Of them `scripts` makes lives."""


def scripts(length: int) -> Iterator[Script]:
    """Each life of so many letters; what a shorter one does is the begin of one of these."""
    for names in product(LETTERS, repeat=length):

        def script(life: Life, names: tuple[str, ...] = names) -> None:
            life.group(700)
            for name in names:
                LETTERS[name](life)

        script.__name__ = ", ".join(names)
        yield script


def drawn(life: Life, rng: Random, steps: int) -> None:
    """A long life: so many steps."""
    for _ in range(steps):
        _WORK[rng.randrange(len(_WORK))](life, rng)


def _group(life: Life, rng: Random) -> None:
    life.group(*[rng.choice((20, 90, 200, 400, 400, 700)) for _ in range(rng.randrange(1, 5))])


def _large(life: Life, rng: Random) -> None:
    life.batches(rng.randrange(900, 3500))
    life.note(rng.randrange(20, 600))
    life.sync()


def _cut(life: Life, rng: Random) -> None:
    life.batches(*[100] * rng.randrange(3))
    life.cut(max(life.journal.last_offset - rng.randrange(4), 0))
    life.batches(*[150] * rng.randrange(3))
    life.sync()


def _spare(life: Life, rng: Random) -> None:
    job = life.journal.begin_spare()
    life.batches(rng.randrange(100, 900))
    life.sync_beside(rng.randrange(4), job)
    if job is not None:
        life.journal.finish_spare(job)


def _drop(life: Life, rng: Random) -> None:
    life.request_drop(max(life.journal.durable_offset - rng.randrange(4), 0))
    life.group(*[300] * rng.randrange(1, 3))
    job = life.journal.begin_drop()
    life.batches(rng.randrange(100, 1500))
    life.sync_beside(rng.randrange(6), job)
    if job is not None:
        life.journal.finish_drop(job)


def _broken_off(life: Life, rng: Random) -> None:
    life.batches(*[rng.choice((100, 400, 400, 1200)) for _ in range(rng.randrange(1, 6))])
    if rng.random() < 0.2:
        life.fail()
    else:
        life.break_off(rng.randrange(1, 7))
    breaks_off = rng.choice((None, None, rng.randrange(8)))
    if rng.random() < 0.5:
        life.die(breaks_off)
    else:
        life.lose_power(rng, breaks_off)


def _restart(life: Life, rng: Random) -> None:
    life.restart()


def _anew(life: Life, rng: Random) -> None:
    if life.journal.last_offset and rng.random() < 0.3:
        life.begin_anew(rng.randrange(20, 2000))
        life.batches(100)
        life.sync()
        life.remove()


_WORK = (_group, _group, _large, _cut, _spare, _spare, _drop, _broken_off, _broken_off, _restart, _anew)
