"""PutOff: what is left to do for records that are applied, in steps between turns.

A purge, or the deletion of a queue, is one record, and has its effect in one turn. Taking a million messages out of their index and
freeing them takes 0.4 s. Each step does as much as `SLICE` messages are, a millisecond or two. Until the last step these messages
count as gone everywhere (`Queue.leave`, `Queue.clear`); nothing of this is in the log or on the disk, so a broker that dies in
between has lost nothing.

Works run one after the other, `SLICES` slices between two ticks of the clock, so that other turns have the processor most of
the time, and that no gigabyte is freed before the process looks at its heap again (``server/process/heap.py``): a million messages
take some seconds. Before `begin` nothing is put off: a recovery has no other turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

SLICE: Final = 2_000
"""So many messages are worked on at once."""
SLICES: Final = 3
"""So many slices are done between two ticks."""

_DONE: Final = object()


class PutOff:
    """Of one state.

    Attributes:
        waiting: works that are not done. Each runs up to its next slice when it is asked for its next item.
    """

    __slots__ = ("_allowed", "_begun", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Iterator[None]] = deque()
        self._begun = False
        self._allowed = SLICES

    def begin(self) -> None:
        """Put off from now on: the owner calls :meth:`step` while something waits."""
        self._begun = True

    def add(self, work: Iterator[None]) -> None:
        """Do the first slice of ``work`` now, and what is left of it later."""
        if not self._begun:
            run(work)
        elif next(work, _DONE) is not _DONE:
            self.waiting.append(work)

    def tick(self) -> None:
        """Time passes."""
        self._allowed = SLICES

    def turn(self) -> bool:
        """Do one slice after a turn, if something waits and may go on before the next tick. Returns True if another may follow."""
        if self._allowed > 0:
            self._allowed -= 1
            self.step()
        return self._allowed > 0 and bool(self.waiting)

    def step(self) -> None:
        """Do one slice, if something waits."""
        if self.waiting and next(self.waiting[0], _DONE) is _DONE:
            self.waiting.popleft()

    def finish(self) -> None:
        """Do all of it now: before something rare that looks at every message."""
        while self.waiting:
            run(self.waiting.popleft())


def run(work: Iterator[None]) -> None:
    """Do all of ``work`` at once."""
    for _ in work:
        pass
