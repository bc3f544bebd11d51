"""MovedBodies: for which queues a MOVE repeats the body of the message that moves.

A broker finds the body of a moved message where the message was (``log/move_record.py``). An outlet reads the journal alone, from a
position: the record with the body may stand before it, or be gone. So where an outlet sends what enters a queue, the MOVE
carries the body, as a publish does. `docs/decisions/0058-a-move-repeats-the-body-for-an-outlet.md` has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

_REMEMBERED: Final = 100_000
"""So many queues are looked up once only."""


def queue_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of ``vhost/queue``: ``*`` stands for any characters, ``?`` for one, every other character for itself."""
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(each, re.escape(each)) for each in pattern), re.DOTALL)


@attrs.frozen
class MovedBodies:
    """The queues whose messages are sent, by rules. Two with the same rules are equal.

    Attributes:
        rules: pattern of ``vhost/queue``, and True if such a queue's messages are sent; the first that matches counts.
        otherwise: the same for queues that no rule matches.
        max_bytes: larger bodies are not sent.
    """

    rules: Sequence[tuple[str, bool]] = attrs.field(default=(), converter=tuple[tuple[str, bool], ...])
    otherwise: bool = attrs.field(default=False, kw_only=True)
    max_bytes: int = attrs.field(default=0, kw_only=True)
    _patterns: Sequence[tuple[re.Pattern[str], bool]] = attrs.field(init=False, eq=False, repr=False)
    _known: dict[tuple[str, str], bool] = attrs.field(init=False, eq=False, repr=False, factory=dict)

    @_patterns.default
    def _compiled(self) -> Sequence[tuple[re.Pattern[str], bool]]:
        return [(queue_pattern(pattern), sent) for pattern, sent in self.rules]

    def repeats(self, vhost: str, queue: str, size_bytes: int) -> bool:
        """True if a MOVE into that queue carries a body of ``size_bytes``."""
        if not 0 < size_bytes <= self.max_bytes:
            return False
        sent = self._known.get((vhost, queue))
        if sent is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            name = f"{vhost}/{queue}"
            found = (sent for pattern, sent in self._patterns if pattern.fullmatch(name))
            sent = self._known[vhost, queue] = next(found, self.otherwise)
        return sent


NO_BODIES: Final = MovedBodies()
