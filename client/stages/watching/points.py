"""Points: named moments of a worker at which tests kill it."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Point(enum.Enum):
    """A moment in the handling of one delivery."""

    BEFORE_DATABASE_COMMIT = "before database commit"
    AFTER_DATABASE_COMMIT = "after database commit"
    BEFORE_BROKER_COMMIT = "before broker commit"
    """Messages and acknowledgement are on their way, the commit is not."""
    AFTER_BROKER_COMMIT = "after broker commit"
    AFTER_PREPARE = "after prepare"
    """Of a stage with ``xa=True``, as the next two: both branches are prepared, and nothing is decided."""
    AFTER_DECISION = "after decision"
    BETWEEN_COMMITS = "between commits"
    """The database's branch is committed, the broker's is not."""
    BEFORE_MARK = "before mark"
    AFTER_MARK = "after mark"
    RELAY_SENT = "relay sent"


AtPoint = Callable[[Point, str], None]
"""Called with a point and the name of the stage."""


def pass_by(point: Point, stage: str) -> None:
    """Do nothing."""
