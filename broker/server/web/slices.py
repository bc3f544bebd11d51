"""Slices: what pages of the HTTP port cost is done in slices between the turns of the loop, and is a bounded part of its time.

A page that grows with the broker (a row for each queue, say) is made by *steps*: a generator that yields between any two small
pieces of its work, and returns the page or a part of it. :meth:`Slices.run` takes steps for about a millisecond, lets the loop go
on, and then rests for three times as long as that slice took. All pages share this: however many are asked for at once, one slice
is done in one pass of the loop, whose turn it is goes round, and pages take at most a quarter of the loop's time.

A poller that asks again and again is thus answered more slowly, and clients are not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import merge
from typing import Any, Final, TypeVar

from understudy.broker.plugin_api.pages import Steps

SLICE_S: Final = 0.001
REST: Final = 3
"""So many times as long as a slice took is the rest after it."""

_CHUNK: Final = 100
"""So many items are sorted, or merged, in a step."""

_Made = TypeVar("_Made")
_Item = TypeVar("_Item")


def sorted_in_steps(items: list[_Item], key: Callable[[_Item], Any]) -> Steps[list[_Item]]:
    """As ``sorted``, in steps."""
    chunks = []
    for at in range(0, len(items), _CHUNK):
        chunks.append(sorted(items[at : at + _CHUNK], key=key))
        yield
    ordered: list[_Item] = []
    for item in merge(*chunks, key=key):
        ordered.append(item)
        if len(ordered) % _CHUNK == 0:
            yield
    return ordered


class Slices:
    """One per process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._rests_until = 0.0

    async def run(self, steps: Steps[_Made], *, resting: bool = True) -> _Made:
        """See ``RunsInSlices.run``."""
        try:
            while True:
                async with self._lock:  # first come, first served: askers take turns
                    await asyncio.sleep(max(0.0, self._rests_until - time.perf_counter()) if resting else 0)
                    began = time.perf_counter()
                    try:
                        next(steps)  # one at least, however long others had the CPU meanwhile
                        while time.perf_counter() - began < SLICE_S:
                            next(steps)
                    except StopIteration as done:
                        made: _Made = done.value
                        return made
                    finally:
                        ended = time.perf_counter()
                        if resting:
                            self._rests_until = ended + REST * (ended - began)
        finally:
            steps.close()
