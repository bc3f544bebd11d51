"""FeedPace: how a feed that follows shares the CPUs with the brokers: it waits while others want them, within a bound.

A feed needs a third as much CPU as its broker. On a machine whose CPUs are full, each moment that it runs is one that a broker
waits. So it works in short rounds with long pauses while its own threads have to wait for a CPU, and catches up when there is
room again. What it has not read stands in the journal meanwhile, and is held there (`feed_hold`).

It waits no longer than `BEHIND_S`. Then it takes its share until it has caught up, since the journal is not held for ever.

Low priority alone does not bring this: a broker that wakes still waits for the feed's slice to end. It helps while there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

IDLE_S: Final = 0.05
"""The pause after a round that found nothing."""
SHORT_S: Final = 0.2
"""The pause after a round that took all there was: many small rounds cost more than a large one."""
LONG_S: Final = 1.0
BEHIND_S: Final = 10.0
"""A feed that is further behind its broker than this does not wait."""
CAUGHT_UP_S: Final = 1.0
ROUND_EVENTS: Final = 20_000
"""Of one broker in one round, before the others have their turn."""
SMALL_ROUND_EVENTS: Final = 1_000
"""The same while others want the CPU: some milliseconds."""
WANTED_RATIO: Final = 0.3
"""The CPU is wanted by others if a round waited for it for so much of the time that it ran."""

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")

Waited = Callable[[], tuple[int, int]]
"""(ns that this thread ran, ns that it was ready to run and waited for a CPU), both since it began."""


def waited_for_cpu() -> tuple[int, int]:
    """As the kernel counts it; (0, 0) where it does not tell."""
    try:
        ran, waited, _ = _SCHEDSTAT.read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran), int(waited)


class FeedPace:
    """Says after each round how long to pause.

    Args:
        waited: see :data:`Waited`.

    Attributes:
        round_events: how many events of one broker the next round may take.
    """

    def __init__(self, waited: Waited = waited_for_cpu) -> None:
        self._waited = waited
        self._ran, self._delayed = waited()
        self._pause_s = 0.0
        self._hurries = False
        self.round_events = ROUND_EVENTS

    def after_round(self, *, taken: int, behind_s: float) -> float:
        """Seconds to pause.

        Args:
            taken: how many events the round had of the broker that had most.
            behind_s: how old the newest is that was read.
        """
        ran, delayed = self._waited()
        wanted = delayed - self._delayed > (ran - self._ran) * WANTED_RATIO
        self._ran, self._delayed = ran, delayed
        if not taken:
            self._pause_s, self._hurries, self.round_events = 0.0, False, ROUND_EVENTS
            return IDLE_S
        self._hurries = behind_s > (CAUGHT_UP_S if self._hurries else BEHIND_S)
        if self._hurries:
            self._pause_s = 0.0
        elif wanted:
            self._pause_s = min(LONG_S, 2 * self._pause_s or SHORT_S)
        elif self._pause_s > SHORT_S:
            self._pause_s /= 2  # slowly: one round that did not have to wait says little
        else:
            self._pause_s = 0.0 if taken >= self.round_events else SHORT_S
        careful = not self._hurries and (wanted or self._pause_s > SHORT_S)
        self.round_events = SMALL_ROUND_EVENTS if careful else ROUND_EVENTS
        return self._pause_s


def age_s(at_ms: int) -> float:
    """How old a wall clock's time is; 0 if it is not known, or if the clock was set back."""
    return max(0.0, time.time() - at_ms / 1000) if at_ms else 0.0
