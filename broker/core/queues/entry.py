"""A message's place in one queue."""

from __future__ import annotations

from typing import Final

from understudy.broker.message import Message

READY: Final = 0
ACQUIRED: Final = 1
DEQUEUING: Final = 2
GONE: Final = 3
RETURNING: Final = 4
WITHHELD: Final = 5
PURGED: Final = 6
HELD: Final = (ACQUIRED, DEQUEUING, RETURNING, PURGED)


class Entry:
    """A message's place in one queue.

    ``id`` is the replication id (for a queue that belongs to a connection: a local number of the same form).
    ``deadline_ms`` is wall-clock milliseconds since 1970, 0 for none. ``state`` is READY (may be handed out), ACQUIRED
    (handed out, unsettled, or locked by a transaction), DEQUEUING (its dequeue is logged, not yet stable), GONE, RETURNING (it
    comes back, which is not stable yet), WITHHELD (no client may have it before it is due) or PURGED (as DEQUEUING, by a purge).
    """

    __slots__ = ("deadline_ms", "id", "message", "redelivered", "state")

    def __init__(
        self, entry_id: int, message: Message, deadline_ms: int, redelivered: bool, state: int = READY
    ) -> None:
        self.id = entry_id
        self.message = message
        self.deadline_ms = deadline_ms
        self.redelivered = redelivered
        self.state = state

    def begin(self) -> None:
        """Be READY: this broker begins to lead."""
        self.state = READY

    def leave(self) -> None:
        """Be in the queue no more."""
        self.state = GONE

    def begin_return(self) -> None:
        """Come back, which is not stable yet."""
        self.state = RETURNING

    def withhold(self) -> None:
        """No client may have it before it is due."""
        self.state = WITHHELD

    def hold_again(self, message: Message) -> None:
        """Hold the same message at another place of the journal."""
        self.message = message

    def note_redelivered(self) -> None:
        """A client may have had it before."""
        self.redelivered = True
