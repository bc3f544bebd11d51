"""LogSender: the primary's stream of batches to one backup, bounded in flight."""

from __future__ import annotations

from typing import Final

from understudy.broker.log.log import Log
from understudy.replicator import wire

OUTSIZE_BYTES: Final = 64 << 20
"""Of a batch that only a large message makes: what else waits to be stable is less."""


class LogSender:
    """A cursor over the kept log.

    Attributes:
        sent: the last offset sent on this link.
        told_stable: the last stable position told.
        owed: what stands up to this offset is sent whatever is unacknowledged.
    """

    def __init__(self, log: Log, after: int, credit_bytes: int) -> None:
        """Begin after offset ``after``.

        Raises:
            IndexError: the kept log does not reach back to ``after``.
        """
        if not log.kept.reaches(after, log.closed_end):
            raise IndexError(f"the kept log begins at {log.kept.first}, the backup ends at {after}")
        self._log = log
        self._cursor = log.kept.cursor(after)
        self._credit_bytes = credit_bytes
        self._unacknowledged: list[tuple[int, int]] = []
        self._unacknowledged_bytes = 0
        self._sent_bytes = log.kept.end_bytes - log.kept.size_of(after, log.closed_end)
        self.sent = after
        self.told_stable = 0
        self.owed = 0

    def owes(self, offset: int) -> None:
        """Send all up to ``offset`` without credit."""
        self.owed = max(self.owed, offset)

    def messages(self, tell_stable: bool) -> list[bytes]:
        """Messages that may go now. Every batch tells the stable position; with ``tell_stable`` a changed one is told alone."""
        log = self._log
        messages: list[bytes] = []
        if self.sent < log.closed_end:
            newest = log.kept.next_cursor
            for batch in log.kept.since(self._cursor):
                if self._unacknowledged_bytes >= self._credit_bytes and self.sent >= self.owed:
                    break
                self._cursor += 1
                self.sent = batch.last
                size = len(batch.frame)
                self._unacknowledged.append((batch.last, size))
                self._unacknowledged_bytes += size
                self._sent_bytes += size
                # An older batch may precede a ROLLBACK that stands before the present stable position was reached:
                # only with the newest batch has the backup seen everything that the position rests on.
                stable = log.stable if self._cursor == newest else min(log.stable, self.told_stable)
                self.told_stable = stable
                messages.append(wire.encode_batch(stable, batch.frame))
        if tell_stable and self.untold:
            self.told_stable = log.stable
            messages.append(wire.encode_stable(log.stable))
        return messages

    @property
    def untold(self) -> bool:
        """The stable position has moved and can be told alone."""
        return self.told_stable < self._log.stable and self.sent == self._log.closed_end

    def acknowledged(self, offset: int) -> None:
        """The backup is durable up to ``offset``: its credit grows."""
        outstanding = self._unacknowledged
        done = 0
        for last, size in outstanding:
            if last > offset:
                break
            self._unacknowledged_bytes -= size
            done += 1
        if done:
            del outstanding[:done]

    @property
    def lag_bytes(self) -> int:
        """Octets of batches that the backup has not acknowledged, sent or not."""
        return self._unacknowledged_bytes + self._log.kept.end_bytes - self._sent_bytes

    @property
    def outsize_bytes(self) -> int:
        """Octets of batches of ``OUTSIZE_BYTES`` or more that are sent and not acknowledged: each is acknowledged as a whole."""
        return sum(size for _, size in self._unacknowledged if size >= OUTSIZE_BYTES)

    @property
    def at_end(self) -> bool:
        """Everything that is closed has been sent."""
        return self.sent >= self._log.closed_end
