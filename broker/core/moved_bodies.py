"""MovedBodies: for which queues a MOVE repeats the body of the message that moves.

A broker finds the body of a moved message where the message was (``log/move_record.py``). An outlet reads the journal alone, from a
position: the record with the body may stand before it, or be gone. So where an outlet sends what enters a queue, the MOVE
carries the body, as a publish does. `docs/decisions/0058-a-move-repeats-the-body-for-an-outlet.md` has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_REMEMBERED: Final = 100_000
"""So many queues are looked up once only."""


def queue_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of ``vhost/queue``: ``*`` stands for any characters, ``?`` for one, every other character for itself."""
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(each, re.escape(each)) for each in pattern), re.DOTALL)


class MovedBodies:
    """The queues whose messages are sent, by rules.

    Args:
        rules: pattern of ``vhost/queue``, and True if such a queue's messages are sent; the first that matches counts.
        otherwise: the same for queues that no rule matches.
        max_bytes: larger bodies are not sent.
    """

    def __init__(self, rules: Iterable[tuple[str, bool]] = (), *, otherwise: bool = False, max_bytes: int = 0) -> None:
        self._rules = [(queue_pattern(pattern), sent) for pattern, sent in rules]
        self._otherwise = otherwise
        self._max_bytes = max_bytes
        self._known: dict[tuple[str, str], bool] = {}

    def repeats(self, vhost: str, queue: str, size_bytes: int) -> bool:
        """True if a MOVE into that queue carries a body of ``size_bytes``."""
        if not 0 < size_bytes <= self._max_bytes:
            return False
        sent = self._known.get((vhost, queue))
        if sent is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            name = f"{vhost}/{queue}"
            found = (sent for pattern, sent in self._rules if pattern.fullmatch(name))
            sent = self._known[vhost, queue] = next(found, self._otherwise)
        return sent


NO_BODIES: Final = MovedBodies()
