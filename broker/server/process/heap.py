"""Heap: gives memory that was freed back to the kernel, a portion at a time.

Bodies above 512 bytes come from the C library, whose ``free`` gives back only what lies at the end of the heap: after a queue of
two million messages was emptied, each broker kept 2 GB. ``malloc_trim`` returns the free pages in the middle, too. It takes 80 ms
for a GB, and holds the heap's lock all the time: in another thread it would stop the event loop at the next ``malloc`` just the
same (measured: 162 ms of 167). So it is called on the loop, as soon as ``PORTION`` bytes can be had, which takes 5 ms.

How much that is ``mallinfo2`` says: the free bytes of the heap, less the fewest since the last trim, which were given back or
are too scattered. It takes 0.05 ms, 5 ms when 250,000 pieces are free, and 20 ms in a broker with 800,000 messages on a loaded
machine, so its time is limited, and that of trims, too: a queue that grows and shrinks takes the same pages again and again.

What is freed a slice at a time leaves less than a portion at its end. That remainder is given back `REMAINDER_AFTER_S`
after a trim.

While the process grows it is not asked, since then nothing can be given back: what is freed is taken again at once. The bytes by
which the process has grown count as taken from those that were free.

Other C libraries than glibc (2.33 or newer, for ``mallinfo2``) are left alone, which is logged once.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import structlog

from understudy.broker.server.process.memory_watch import resident_bytes

PORTION: Final = 64 << 20
REMAINDER: Final = 8 << 20
"""Of the last portion of much that was freed: a remainder of so many bytes goes, too."""
REMAINDER_AFTER_S: Final = 5.0
"""Between a trim and the one of the remainder."""
GROWTH: Final = 256 << 10
"""A process that has so many bytes more than a quarter of a second before is growing,"""
REST_S: Final = 1.0
"""and for so long after that. It may only have had no CPU for a moment."""
EVERY_S: Final = 0.25
"""Between two looks: a consumer may empty a queue at 100 MB a second."""
LOOKS_SHARE: Final = 1_000
TRIMS_SHARE: Final = 50
"""At most one part in so many of the time goes into looks and into trims."""

_log: Final = structlog.get_logger()


class Allocator(Protocol):
    """The interface of an allocator; glibc's, or a test's."""

    def free_bytes(self) -> int:
        """Bytes of the heap that were freed and not yet taken again, given back to the kernel or not."""

    def trim(self) -> None:
        """Give back every page that is free as a whole."""


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2``: ten counts, of which ``fordblks`` is the free bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


class Glibc:
    """``malloc`` of the C library that this process runs on.

    Raises:
        AttributeError, OSError: it has no ``malloc_trim`` or no ``mallinfo2``.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = library.malloc_trim
        self._info = library.mallinfo2
        self._info.restype = _MallInfo2

    def free_bytes(self) -> int:
        return int(self._info().fordblks)

    def trim(self) -> None:
        self._trim(0)


def glibc() -> Glibc | None:
    """The C library's allocator, None if it cannot be asked."""
    try:
        return Glibc()
    except (AttributeError, OSError) as error:
        _log.info("freed memory is not given back: the C library is not glibc 2.33 or newer", error=str(error))
        return None


@attrs.frozen(kw_only=True)
class HeapStatistics:
    """``free_bytes``: at the last look; most of it is not resident. ``longest_ms``: processor time of a look and its trim."""

    free_bytes: int
    trims: int
    longest_ms: float


class Heap:
    """The heap of this process."""

    def __init__(self, allocator: Allocator | None, resident: Callable[[], int] = resident_bytes) -> None:
        """``allocator``: None if the C library cannot be asked; nothing is done then. ``resident``: for tests."""
        self._allocator = allocator
        self._resident = resident
        self._occupied = resident()
        self._free = self._fewest = allocator.free_bytes() if allocator is not None else 0
        self._next_s = self._rests_s = self._remainder_due_s = 0.0
        self._trims = 0
        self._longest_s = 0.0

    def look(self, now_s: float) -> None:
        """Trim if a portion can be had. Call it several times a second; ``now_s`` is monotonic."""
        allocator = self._allocator
        if allocator is None or now_s < self._next_s:
            return
        before, self._occupied = self._occupied, self._resident()
        grown = self._occupied - before
        if grown >= GROWTH:
            self._fewest = max(0, self._fewest - grown)
            self._rests_s = now_s + REST_S
            self._remainder_due_s = 0.0
        if now_s < self._rests_s:
            self._next_s = now_s + EVERY_S
            return
        started = time.thread_time()
        self._free = allocator.free_bytes()
        looked = ended = time.thread_time()
        self._fewest = min(self._fewest, self._free)
        remainder_due = 0 < self._remainder_due_s <= now_s
        if self._free - self._fewest >= (REMAINDER if remainder_due else PORTION):
            self.give_back()
            ended = time.thread_time()
            self._remainder_due_s = now_s + REMAINDER_AFTER_S
        elif remainder_due:
            self._remainder_due_s = 0.0
        self._longest_s = max(self._longest_s, ended - started)
        self._next_s = now_s + max(EVERY_S, LOOKS_SHARE * (looked - started), TRIMS_SHARE * (ended - looked))

    def give_back(self) -> None:
        """Trim now, whatever can be had."""
        if self._allocator is not None:
            self._allocator.trim()
            self._trims += 1
            self._free = self._fewest = self._allocator.free_bytes()

    def statistics(self) -> HeapStatistics:
        return HeapStatistics(free_bytes=self._free, trims=self._trims, longest_ms=round(self._longest_s * 1_000, 3))
