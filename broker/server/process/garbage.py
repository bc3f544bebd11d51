"""GarbageCollector: Python's cycle collector, on our terms: no look at what is alive takes longer than 20 ms.

Messages, records, transactions, connections, channels and links form no reference cycles: reference counts free them. Only a
core that was dropped is a cycle, and the driver takes its messages out first (``core.life.let_go``). The collector is needed for
cycles that nobody knows of. Left to itself it walks over everything alive whenever some hundred objects have been made: with a
queue of a million messages that stops the broker for 0.4 to 1 s, and with it the group.

So automatic collection is off, and what is alive is *frozen*: set aside, in constant time, and not walked over again. Reference
counts free frozen objects as ever; only a cycle among them stays. While few objects are alive, the young ones, made since the
last time, are collected before they are frozen, and rarely everything is thawed and collected: a *full look*. While many are
alive, they are frozen unseen.

The count of young objects bounds no look: it is one of allocations less deallocations, so that an old message that goes
hides a new one, and one young tuple may name a million ids. What bounds both kinds of look is how much is alive at all.

Why so, and what it costs: docs/decisions/0029-the-collectors-pauses.md.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import Final

import attrs

EVERY_S: Final = 0.5
"""Between two looks, or freezes."""
STEP: Final = 20_000
"""So many young objects at once are messages, and frozen unseen before that time."""
FULL_EVERY_S: Final = 600.0
FULL_AT_ENDS: Final = 256
FORCED_AT_ENDS: Final = 100_000
"""After so many ends a full look is made however many objects are alive: it bounds what unknown cycles can take."""
DROPPED_ENDS: Final = 1_000
"""A dropped core counts as so many ends."""
FULL_RETRY_S: Final = 5.0
SHARE: Final = 100
"""At most one part in so many of the time goes into full looks."""
FEW_BLOCKS: Final = 300_000
"""Memory blocks in use: an idle broker has 195,000, a queued message 5 to 7. A full look at so many takes 10 ms."""


@attrs.frozen(kw_only=True)
class CollectorStatistics:
    """The collector's work since the process began.

    ``young_looks``, ``full_looks``: collections. ``unseen_freezes``: how often young objects were frozen without a look.
    ``found``: objects that were garbage in cycles. ``longest_ms``, ``total_ms``: processor time of looks. ``ends``: connections and
    cores that ended since the last full look, each of which may have left a cycle. ``blocks``: memory blocks in use.
    """

    young_looks: int
    full_looks: int
    unseen_freezes: int
    found: int
    longest_ms: float
    total_ms: float
    ends: int
    blocks: int


class GarbageCollector:
    """Made once a process; switches automatic collection off.

    Args:
        few_blocks: above so many memory blocks in use no look is made, unless a full one is forced.
    """

    def __init__(self, few_blocks: int = FEW_BLOCKS) -> None:
        gc.disable()
        gc.collect()
        gc.freeze()
        self._few_blocks = few_blocks
        self._ends = 0
        self._dropped: list[weakref.ref[object]] = []
        self._next_s = 0.0
        self._may_be_full_s = 0.0
        self._full_s = FULL_EVERY_S
        self._young_looks = self._full_looks = self._unseen_freezes = self._found = 0
        self._longest_s = self._total_s = 0.0

    def ended(self) -> None:
        """A connection has ended: it may have left a cycle that nobody knows of."""
        self._ends += 1

    def dropped(self, core: object) -> None:
        """``core``, which is a cycle, was given up. Clients that have not gone yet may still refer to it for a moment."""
        self._dropped.append(weakref.ref(core))
        self._ends += DROPPED_ENDS

    def look(self, now_s: float) -> bool:
        """Collect, or freeze, if it is time; returns whether it was. Call it several times a second; ``now_s`` begins near 0."""
        many_young = gc.get_count()[0] >= STEP
        if not many_young and now_s < self._next_s:
            return False
        self._next_s = now_s + EVERY_S
        full_due = self._is_full_look_due(now_s)
        # The blocks are counted only where they decide: with a million messages that takes 0.2 ms, and 5 ms with a cold cache.
        few = (full_due or not many_young) and sys.getallocatedblocks() <= self._few_blocks
        if full_due and (few or self._ends >= FORCED_AT_ENDS):
            self._look_at_all(now_s)
        elif few and not many_young:
            self._collect(0)
            self._young_looks += 1
        else:
            self._unseen_freezes += 1
        gc.freeze()
        return True

    def statistics(self) -> CollectorStatistics:
        return CollectorStatistics(
            young_looks=self._young_looks,
            full_looks=self._full_looks,
            unseen_freezes=self._unseen_freezes,
            found=self._found,
            longest_ms=round(self._longest_s * 1_000, 3),
            total_ms=round(self._total_s * 1_000, 3),
            ends=self._ends,
            blocks=sys.getallocatedblocks(),
        )

    def _is_full_look_due(self, now_s: float) -> bool:
        if now_s < self._may_be_full_s:
            return False
        self._dropped = [core for core in self._dropped if core() is not None]
        return bool(self._dropped) or self._ends >= FULL_AT_ENDS or now_s >= self._full_s

    def _look_at_all(self, now_s: float) -> None:
        gc.unfreeze()
        took_s = self._collect(2)
        self._full_looks += 1
        self._ends = 0
        self._full_s = now_s + FULL_EVERY_S
        self._may_be_full_s = now_s + max(FULL_RETRY_S, SHARE * took_s)

    def _collect(self, generation: int) -> float:
        """Collect; returns the processor time that it took: another process may have had the CPU meanwhile."""
        started = time.thread_time()
        self._found += gc.collect(generation)
        took_s = time.thread_time() - started
        self._longest_s = max(self._longest_s, took_s)
        self._total_s += took_s
        return took_s
