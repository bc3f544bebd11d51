"""GarbageCollector: Python's cycle collector, on our terms.

Messages, records and transactions are freed by reference counts, and so are connections and channels, which let go of their
parts when they end. What needs the collector is rare: a core that was dropped, a link, TLS. Left to itself it runs whenever some
hundred objects have been made and walks over everything that is alive: with a queue of a million messages, for 0.4 to 1 s at a
time. Measured with ``scripts/bench`` (three brokers, 32 x 10, CPU of all three a message): 66 us with Python's defaults, 53 with
thresholds of 50,000, 45 without automatic collection.

So it does not run by itself. Every few seconds what was made since the last time is collected, and what survived is *frozen*: set
aside, and not walked over again. What was frozen with a connection and is left behind by its end (TLS) is garbage that is not
seen; when connections have ended often enough, or ten minutes have passed, everything is thawed and collected once. A core that
was dropped has every message of its queues, and the next one has them again: for its sake everything is thawed until it is gone.
"""

from __future__ import annotations

import gc
import time
import weakref
from typing import Final

EVERY_S: Final = 5.0
THAW_EVERY_S: Final = 600.0
THAW_AT_STALE: Final = 256
WORTH_IT: Final = 2_000
"""New objects, alive or not, below which nothing is done."""
SHARE: Final = 100
"""At most one part in so many of the time goes into collecting."""


class GarbageCollector:
    """Made once a process; switches automatic collection off.

    Attributes:
        generation: how often everything alive was frozen; who is told of an end compares it with that of the beginning.
    """

    def __init__(self) -> None:
        gc.disable()
        gc.collect()
        gc.freeze()
        self.generation = 0
        self._stale = 0
        self._dropped: list[weakref.ref[object]] = []
        self._next_s = 0.0
        self._thaw_s = THAW_EVERY_S

    def ended(self, generation: int) -> None:
        """Something with cycles, begun in ``generation``, has ended."""
        if generation < self.generation:
            self._stale += 1

    def dropped(self, core: object) -> None:
        """``core`` was given up. Clients that have not gone yet may still refer to it for a moment."""
        self._dropped.append(weakref.ref(core))

    def look(self, now_s: float) -> bool:
        """Collect if it is time; returns whether it was. Call it about once a second; ``now_s`` begins near 0."""
        if now_s < self._next_s:
            return False
        self._dropped = [core for core in self._dropped if core() is not None]
        thaw = bool(self._dropped) or self._stale >= THAW_AT_STALE or (now_s >= self._thaw_s and self._stale > 0)
        if not thaw and gc.get_count()[0] < WORTH_IT:
            return False
        started = time.perf_counter()
        if thaw:
            gc.unfreeze()
            self._stale = 0
            self._thaw_s = now_s + THAW_EVERY_S
        gc.collect()
        gc.freeze()
        self.generation += 1
        self._next_s = now_s + max(EVERY_S, SHARE * (time.perf_counter() - started))
        return True
