"""Check more states by hand: see ``python -m tests.power_cuts --help``. Exit status: 0 if the law holds, else 1."""

from __future__ import annotations

import argparse
import sys
from random import Random

from tests.power_cuts import broker_life
from tests.power_cuts.broker_life import BrokerLife, Watch, compact
from tests.power_cuts.campaign import look_for
from tests.power_cuts.flips import all_bits, batches_each, ended, read_each, start_each, tail_each
from tests.power_cuts.life import TINY, WIDE, BrokenError, Life
from tests.power_cuts.lives import scripts
from tests.power_cuts.mutations import STORE_MUTATIONS
from tests.power_cuts.openings import Counts, Openings
from tests.power_cuts.sweep import sweep, sweep_drawn
from understudy.broker.core.life import compaction
from understudy.broker.log import live_offsets


def _states(wanted: int, seed: int) -> None:
    counts = Counts()
    first = seed
    while counts.total < wanted:
        sweep_drawn(seed, WIDE if seed % 2 else TINY, counts)
        seed += 1
    print(f"lives {first} to {seed - 1}: {counts}")


def _length(length: int) -> None:
    openings = Openings(TINY, Counts())
    for script in scripts(length):
        sweep(script, Life(), openings)
    print(f"every life of {length} letters: {openings.counts}")


def _compaction(lives: int, seed: int) -> None:
    watch = Watch(Counts(), Random(seed), draws=24)
    for number in range(seed, seed + lives):
        setattr(compaction, "SLICE_BYTES", 1 if number % 2 else 128 << 10)  # noqa: B010  # a constant of the product

        def drawn(life: BrokerLife, number: int = number) -> None:
            broker_life.drawn(life, Random(number), steps=20)

        try:
            compact(watch, drawn)
        except BrokenError as error:
            raise BrokenError(f"life {number} of a broker: {error}") from error
    print(
        f"lives {seed} to {seed + lives - 1} of a broker: {watch.counts}; {watch.compacted:,} of these with a pass in them"
    )


def _bits() -> None:
    for closed in (True, False):
        image, frames, proven = ended(closed=closed)
        print(f"starts, closed {closed}: {dict(start_each(image, frames, proven, all_bits))}", flush=True)
    image, frames, _ = ended(closed=True)
    print(f"tails: {dict(tail_each(image, frames, all_bits))}", flush=True)
    print(f"bodies: {dict(read_each(all_bits))}", flush=True)
    print(f"batches: {dict(batches_each(all_bits))}", flush=True)


def _mutations() -> int:
    found = [look_for(mutation) for mutation in STORE_MUTATIONS.values()]
    for one in found:
        print(f"{one!s:.200}")
    missed = sum(not one.what for one in found)
    print(f"{len(found) - missed} of {len(found)} found")
    return 1 if missed else 0


def main() -> int:
    """The command."""
    ask = argparse.ArgumentParser(prog="python -m tests.power_cuts", description="Check the store under power cuts.")
    ask.add_argument("--states", type=int, default=0, metavar="N", help="so many states of drawn lives of a journal")
    ask.add_argument("--length", type=int, default=0, metavar="N", help="every life of so many letters, every image")
    ask.add_argument(
        "--compaction", type=int, default=0, metavar="N", help="so many drawn lives of a broker that compacts"
    )
    ask.add_argument("--bits", action="store_true", help="all eight bits of each octet of a small journal")
    ask.add_argument("--mutations", action="store_true", help="each known bug, and what finds it")
    ask.add_argument("--seed", type=int, default=0, help="of the first drawn life")
    given = ask.parse_args()
    live_offsets.BUCKET_SHIFT = 2  # the product's buckets of offsets are larger than these segments
    try:
        if given.states:
            _states(given.states, given.seed)
        if given.length:
            _length(given.length)
        if given.compaction:
            _compaction(given.compaction, given.seed)
        if given.bits:
            _bits()
        return _mutations() if given.mutations else 0
    except BrokenError as error:
        print(f"BROKEN: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
