"""QueueGuard: from which position on completions wait for one backup.

Qpid guarded each queue message by message. With one log for the group a guard is a position: what stands at or before it
may complete without the backup, nothing after it may until the backup has acknowledged it.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class QueueGuard:
    """The guard of one joiner.

    Invariant: the stable position never passes max(position, what the backup has acknowledged since this link began).
    """

    position: int

    def passed_by(self, acknowledged: int) -> bool:
        """True if the backup holds everything up to the guard."""
        return acknowledged >= self.position
