"""CommitTimes: how long groups of commits take, one observation a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from understudy.broker.log.log import Log
from understudy.broker.plugin_api.metrics import LATENCY_BOUNDS_US, Histogram


class CommitTimes:
    """Times each group of one core from the turn that orders it to the turn that answers its clients.

    In between are the fsync, other brokers' acknowledgements and the applying. What a commit waits before its group is
    ordered (the rest of its turn, ``group.min_wait_ms``) is not in it.

    Args:
        sizes: the coordinator's, which tells that a group was ordered.
        log: of the core.

    Attributes:
        durations: microseconds of each group that was answered.
    """

    __slots__ = ("_log", "_ordered", "_sizes", "_waiting", "durations")

    def __init__(self, sizes: Histogram, log: Log) -> None:
        self.durations = Histogram(LATENCY_BOUNDS_US)
        self._sizes = sizes
        self._log = log
        self._ordered = sizes.observed
        self._waiting: deque[tuple[int, int]] = deque()

    def gathered(self, now_us: Callable[[], int]) -> None:
        """The turn has ordered what it had gathered."""
        if self._sizes.observed != self._ordered:
            self._ordered = self._sizes.observed
            self._waiting.append((self._log.end, now_us()))

    def answered(self, now_us: Callable[[], int]) -> None:
        """The turn has applied and answered what is stable."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._log.applied:
            self.durations.observe(now_us() - waiting.popleft()[1])
