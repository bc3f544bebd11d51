"""ReadingTime: how long this process takes to read its journal again, for an operator who is about to have it done.

A core that steps down is recovered from the journal (docs/operations.md, Step-down).
"""

from __future__ import annotations

from typing import Final

import attrs

USUAL_BYTES_PER_S: Final = 40 << 20
"""Until a start has read enough to measure by: of messages of a few hundred bytes, on a core of 2022."""
LEAST_MEASURED_BYTES: Final = 8 << 20
"""Less than that says little of the speed."""


@attrs.frozen(kw_only=True)
class ReadingCost:
    """What reading the journal again costs.

    Attributes:
        journal_bytes: what is to be read.
        reads_ms: how long that takes, about.
    """

    journal_bytes: int
    reads_ms: int


class ReadingTime:
    """Of one process."""

    def __init__(self) -> None:
        self._bytes_per_s = float(USUAL_BYTES_PER_S)

    def measured(self, journal_bytes: int, seconds: float) -> None:
        """A core has been recovered from ``journal_bytes``, in so many seconds."""
        if journal_bytes >= LEAST_MEASURED_BYTES and seconds > 0:
            self._bytes_per_s = journal_bytes / seconds

    def cost(self, journal_bytes: int) -> ReadingCost:
        """What reading ``journal_bytes`` costs, by the newest measurement."""
        return ReadingCost(journal_bytes=journal_bytes, reads_ms=round(1_000 * journal_bytes / self._bytes_per_s))
