"""The simulated world: one clock, one queue of events, one source of chance, one story.

Everything that happens is an event at a virtual time; equal seeds give equal runs, event by event (`trace_hash`). The world
knows nothing of brokers. What is told to it (`note`, `fault`) is hashed, and kept as a story if one is wanted; keeping
it changes nothing of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

MS = 1000
"""Virtual time is in microseconds; this many make a millisecond."""
START_US = 1_000 * MS
UNHASHED_AT_MOST = 200
"""So many pieces of the story wait to be hashed together."""
AHEAD = 1 << 60
"""More than there are events in a run."""

Place = tuple[int, int]
"""Of an event in the queue: its time in microseconds, and its number."""


class Chance(Random):
    """Draws what ``Random`` draws; `randrange`, which is asked for several times an event, without its general cases."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if step != 1:
            return super().randrange(start, stop, step)
        if stop is None:
            start, stop = 0, start
        width = stop - start
        if width <= 0:
            raise ValueError(f"nothing lies in [{start}, {stop})")
        bits = width.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= width:
            drawn = self.getrandbits(bits)
        return start + drawn


class World:
    """Clock, events, chance, counters, and the story of a run.

    Attributes:
        now_ms: ``now_us`` in milliseconds, rounded down.
        faults: faults that hit something, by kind.
        happened: what is worth counting and is no fault: step-downs, catch-ups, dropped segments, ...
        after_event: called when an event is over.
    """

    def __init__(self, seed: int, keep_story: bool = False) -> None:
        self.seed = seed
        self.rng = Chance(f"world {seed}")
        self.now_us = START_US
        self.now_ms = START_US // MS
        self.faults: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.events = 0
        self.story: list[str] | None = [] if keep_story else None
        self.after_event: Callable[[], None] | None = None
        self._hash = blake2b(digest_size=8)
        self._unhashed: list[bytes] = []
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    @property
    def trace_hash(self) -> str:
        """Of everything that was noted so far."""
        self._catch_up()
        return self._hash.hexdigest()

    def _catch_up(self) -> None:
        """Hash what was noted: many pieces at once take half the time."""
        self._hash.update(b"".join(self._unhashed))
        self._unhashed.clear()

    def stream(self, name: str) -> Random:
        """A source of chance of its own, so that one more draw in one place changes nothing elsewhere."""
        return Chance(f"{name} {self.seed}")

    def at(self, delay_us: int, action: Callable[..., object], *args: Any) -> None:
        """Call ``action(*args)`` in ``delay_us`` microseconds."""
        self._sequence += 1
        heappush(self._queue, (self.now_us + delay_us if delay_us > 0 else self.now_us, self._sequence, action, args))

    def place(self, delay_us: int) -> Place:
        """The place that `at` would give an event; for one that most often turns out not to be wanted (`at_place`)."""
        self._sequence += 1
        return self.now_us + delay_us, self._sequence

    def at_place(self, place: Place, action: Callable[..., object], *args: Any) -> None:
        """Call ``action(*args)`` at a place in the queue that is still to come."""
        heappush(self._queue, (*place, action, args))

    def ahead(self, delay_us: int, action: Callable[..., object], *args: Any) -> None:
        """The same, before everything else of that microsecond: so it does not matter when it was asked for."""
        self._sequence += 1
        heappush(self._queue, (self.now_us + max(0, delay_us), self._sequence - AHEAD, action, args))

    # -- telling --------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """``who`` did, or met, ``what``."""
        self._unhashed.append(f"{self.now_us} {who} {what}".encode())
        self.tell(who, what)

    def note_bytes(self, who: str, data: bytes, describe: Callable[[bytes], str]) -> None:
        """Bytes passed at ``who``; they are put into words only for a story."""
        self._unhashed += (f"{self.now_us} {who}".encode(), data)
        if len(self._unhashed) > UNHASHED_AT_MOST:
            self._catch_up()
        if self.story is not None:
            what = describe(data)
            if what:
                self.tell(who, what)

    def fault(self, kind: str, what: str) -> None:
        """A fault has hit something."""
        self.faults[kind] += 1
        self.note("NEMESIS", f"{kind}: {what}")

    def tell(self, who: str, what: str) -> None:
        """Something for the story alone."""
        if self.story is not None:
            self.story.append(f"{(self.now_us - START_US) / MS:11.3f} ms  {who:<12}  {what}")

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, until_us: int, done: Callable[[], bool] | None = None, max_events: int = 2_000_000) -> bool:
        """Let events happen until ``until_us``, or until ``done()``; none if it is done already. True if done."""
        if done is not None and done():
            return True
        queue = self._queue
        after = self.after_event
        while queue and queue[0][0] <= until_us:
            self.now_us, _, action, args = heappop(queue)
            self.now_ms = self.now_us // MS
            self.events += 1
            action(*args)
            if after is not None:
                after()
            if done is not None and done():
                return True
            if self.events > max_events:
                raise RuntimeError(f"seed {self.seed}: more than {max_events} events")
        self.now_us = max(self.now_us, until_us)
        self.now_ms = self.now_us // MS
        return done() if done is not None else True
