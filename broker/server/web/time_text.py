"""How logs and pages write a time of day."""

from __future__ import annotations

import datetime as dt


def time_text(wall_ms: int) -> str:
    """``wall_ms`` (since 1970) in UTC, as ISO 8601 has it, to the millisecond.

    A time that the calendar does not reach (a branch's time comes from another broker's clock) is shown as the number.
    """
    try:
        since = dt.datetime.fromtimestamp(wall_ms / 1_000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
    return since.isoformat(timespec="milliseconds").replace("+00:00", "Z")
