"""About how many events files hold, by their sizes: Spark is set up for them before it has read any."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from understudy.pipeline.spark.errors import FeedError

BYTES: Final = {".jsonl": 250, ".parquet": 10}
"""Of an event, by the ending of its file; rather few, so that a feed is not taken for a smaller one."""
SMALL: Final = 120_000
"""Up to so many events, compiling plans takes longer than running them without."""
PARTITIONS: Final = 64
"""Tasks behind an exchange, if the number of events is not known."""
OF_PARTITION: Final = 500_000
"""Events of a partition: a task holds what it has of them in memory, and starting one costs some milliseconds of a core."""
FEWEST: Final = 2


def estimated_events(paths: Iterable[str]) -> int | None:
    """About how many events there are; None: of some path this is not known, as of a topic or of another file system.

    Raises:
        FeedError: a path cannot be looked at.
    """
    total = 0
    for path in map(Path, paths):
        try:
            if not path.exists():
                return None
            total += _events_below(path)
        except OSError as error:
            raise FeedError(f"{path} cannot be read: {error.strerror}") from error
    return total


def _events_below(path: Path) -> int:
    files = [path] if path.is_file() else [each for pattern in ("*", "*/*") for each in path.glob(pattern)]
    return sum(each.stat().st_size // BYTES.get(each.suffix, BYTES[".jsonl"]) for each in files if each.is_file())


def is_small(events: int | None) -> bool:
    """True if Spark had better run without compiling."""
    return events is not None and events <= SMALL


def partitions_for(events: int | None) -> int:
    """How many tasks stand behind an exchange."""
    return PARTITIONS if events is None else max(FEWEST, -(-events // OF_PARTITION))
