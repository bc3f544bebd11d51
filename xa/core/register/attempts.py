"""Attempts: when the recovery of a transaction is tried again after a failure, without end.

A resource manager that is down for a moment must not use up attempts, however many programs of the job come meanwhile. So a
failure is followed by a pause: half a second, twice as long after each further failure, a minute at most. Meanwhile the job begins
new work. The pauses of different transactions differ by up to a half, by a digest of the global id: what failed together does not
come back together.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from typing import Final

FIRST_MS: Final = 500
MOST_MS: Final = 60_000
_STEPS: Final = MOST_MS.bit_length()


def pause_ms(gid: str, attempts: int) -> int:
    """How long no recovery is tried after a failure.

    Args:
        gid: of the transaction.
        attempts: failures so far, 1 or more.

    Returns:
        Milliseconds: from half the pause to the whole, which is at most `MOST_MS`.
    """
    whole = min(FIRST_MS << min(attempts - 1, _STEPS), MOST_MS)
    digest = hashlib.blake2b(f"{gid}\0{attempts}".encode(), digest_size=4).digest()
    return whole // 2 + whole // 2 * int.from_bytes(digest, "big") // 0xFFFFFFFF


class Paused:
    """Transactions whose next recovery is not due. Known in memory alone: after a restart of the server all are due."""

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def add(self, gid: str, attempts: int, now_ms: int) -> None:
        """A recovery has failed for the time being."""
        self._due_ms[gid] = due_ms = now_ms + pause_ms(gid, attempts)
        heapq.heappush(self._order, (due_ms, gid))

    def discard(self, gid: str) -> None:
        """The transaction is claimed, or over."""
        self._due_ms.pop(gid, None)

    def due(self, now_ms: int) -> list[str]:
        """Remove and return what is due. A clock that was set back does not make a pause longer than the longest one."""
        if self._order and self._order[0][0] > now_ms + MOST_MS:
            return self._all()
        found = []
        while self._order and self._order[0][0] <= now_ms:
            due_ms, gid = heapq.heappop(self._order)
            if self._due_ms.get(gid) == due_ms:
                del self._due_ms[gid]
                found.append(gid)
        return found

    def _all(self) -> list[str]:
        found = list(self._due_ms)
        self._due_ms.clear()
        self._order.clear()
        return found

    def __contains__(self, gid: object) -> bool:
        return gid in self._due_ms

    def __iter__(self) -> Iterator[str]:
        """The one that is due next comes first."""
        return iter(sorted(self._due_ms, key=lambda gid: self._due_ms[gid]))

    def __len__(self) -> int:
        return len(self._due_ms)
