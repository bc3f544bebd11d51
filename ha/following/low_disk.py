"""LowDisk: what a backup knows of its disk while that is nearly full, and what it may do about it.

A backup that is not listed holds nothing that the group counts on: it will be caught up from the primary. What it holds may
be what fills its disk: messages that the group has consumed since then stay in its journal. So it links to the primary now and
then, only to ask how much a catch-up would bring. If that fits once everything it holds is gone, it lets go of all
(`HaBroker.let_go`), and rejoins as a broker whose catch-up was broken off at its begin. If it does not fit, nothing would be won.
"""

from __future__ import annotations

from typing import Final

MOST_ASK_MS: Final = 60_000
"""Between two questions, at the most: the primary goes over its queues for each."""
MIB: Final = 1 << 20


class LowDisk:
    """Of one core.

    Args:
        ask_again_ms: between the first two questions; then it doubles.

    Attributes:
        reason: why the disk is called nearly full, as it is told to clients; "" if it has room.
        asking: the present link was made to ask.
    """

    def __init__(self, ask_again_ms: int) -> None:
        self._least_pause_ms = ask_again_ms
        self.reason = ""
        self.asking = False
        self._room = -1
        self._brings: int | None = None
        self._asked = False
        self._pause_ms = ask_again_ms
        self._ask_ms = 0

    def looked(self, reason: str, room: int) -> None:
        """The free space is as ``reason`` says; with nothing of this journal ``room`` bytes of another would fit."""
        self.reason = reason
        self._room = room
        if not reason:
            self._asked = False
            self._pause_ms = self._least_pause_ms
            self._ask_ms = 0

    def may_ask(self, now_ms: int) -> bool:
        """True if it is time to ask the primary, and letting go could help at all."""
        return self._room >= 0 and now_ms >= self._ask_ms

    def linked(self, *, asks: bool) -> None:
        """There is a link to the primary."""
        self.asking = asks

    def unlinked(self, now_ms: int) -> None:
        """Note that the link is gone, whether the question was answered or not."""
        if self.asking:
            self.asking = False
            self._ask_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, MOST_ASK_MS)

    def answered(self, brings: int | None) -> bool:
        """The primary would bring so many bytes, or does not say it: whether this broker is to let go of what it holds."""
        self._asked = True
        self._brings = brings
        return brings is not None and 0 <= brings <= self._room

    @property
    def waits_for(self) -> str:
        """For status: the reason, and what would help."""
        if self._room < 0:
            more = "to let go of what this broker holds would not make enough room"
        elif not self._asked:
            more = "whether what this broker holds may go is asked of the primary"
        elif self._brings is None:
            more = "its primary runs an older program, which does not say whether what the group holds would fit"
        else:
            lacking = -(-(self._brings - self._room) // MIB)
            more = f"about {lacking:,} MiB more are needed to hold what the group holds, even if this broker lets go of its own log"
        return f"{self.reason}; {more}"
