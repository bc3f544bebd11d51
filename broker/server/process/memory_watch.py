"""MemoryWatch: holds publishers back while messages fill the memory that the broker may use (``limits.memory_ratio``).

What counts is what the process occupies, not the sum of the bodies: that is what the kernel ends it for. The allocator keeps
what has been freed, so it is asked to give that back before anybody is refused. Without a message that a consumer could take,
and without messages that are on their way into a queue, waiting would free nothing; nobody is made to wait then, whatever else
fills the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

MIB: Final = 1 << 20
ENOUGH: Final = 0.95
"""New work is taken again below this share of the limit."""
TRIM_EVERY: Final = 10
"""The allocator is asked at every so manieth look above the limit: it walks over its whole heap."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_log: Final = structlog.get_logger()


def ram_bytes() -> int:
    """The memory of this machine, or of the container if that has less."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            ram = min(ram, int(Path(path).read_text(encoding="ascii")))
    return ram


def resident_bytes() -> int:
    """The resident octets of this process; 0 where that is not told (no Linux), which switches the watch off."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:  # without a Path and a text file, which take ten times as long: `heap` reads it four times a second
        return int(os.read(statm, 128).split()[1]) * _PAGE_BYTES
    finally:
        os.close(statm)


class MemoryWatch:
    """Looks at the memory of this process for one core.

    Args:
        limit_bytes: above it new work is refused.
        tell: the core: told why at each look above the limit, and "" once when it is over.
        holds_messages: whether there is anything that consumers could take, or much that is not whole or not stable yet.
        give_back: gives what is free back to the kernel.
        resident: for tests.
    """

    def __init__(
        self,
        limit_bytes: int,
        tell: Callable[[str], None],
        holds_messages: Callable[[], bool],
        give_back: Callable[[], None],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._limit = limit_bytes
        self._tell = tell
        self._holds_messages = holds_messages
        self._resident = resident
        self._give_back = give_back
        self._full = False
        self._looks = 0

    def look(self) -> None:
        """One read of a few bytes; once a second is plenty."""
        used = self._used()
        before = self._full
        limit = self._limit * ENOUGH if before else self._limit
        self._full = used > limit and self._holds_messages()
        reason = f"{used // MIB} MiB of memory are in use, limits.memory_ratio allows {self._limit // MIB} MiB"
        if self._full != before:
            _log.warning("the memory is full" if self._full else "the memory is not full any more", reason=reason)
        if self._full or before:
            self._tell(reason if self._full else "")

    def _used(self) -> int:
        used = self._resident()
        if used <= self._limit:
            self._looks = 0
            return used
        if self._looks % TRIM_EVERY == 0:
            self._give_back()
            used = self._resident()
        self._looks += 1
        return used
