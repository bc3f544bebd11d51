"""StreamWishes: what a stream was asked for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs


class Format(StrEnum):
    """Of the tables that are written."""

    PARQUET = "parquet"
    DELTA = "delta"
    CONSOLE = "console"


@attrs.frozen(kw_only=True)
class StreamWishes:
    """One stream.

    Attributes:
        feed: as the user named it.
        window_s: width of the windows of event time.
        late_s: an event that comes so much later than the newest event is left out of windows, and counted as late.
        open_s: a transaction that is open so long is told.
        in_doubt_s: a branch that is prepared so long is told.
    """

    feed: str
    checkpoint: Path
    out: Path | None
    format: Format
    window_s: float
    late_s: float
    open_s: float
    in_doubt_s: float

    @property
    def window(self) -> str:
        """Spark's notation."""
        return f"{round(self.window_s * 1000)} milliseconds"

    @property
    def late(self) -> str:
        """Spark's notation."""
        return f"{round(self.late_s * 1000)} milliseconds"

    def identity(self) -> dict[str, Any]:
        """Values to which a checkpoint is bound: with another value the state in it would mean something else."""
        return {
            "feed": self.feed,
            "out": str(self.out) if self.out is not None else "",
            "format": self.format.value,
            "window_s": self.window_s,
            "late_s": self.late_s,
        }
