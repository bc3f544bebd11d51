"""Positions in the log, and the history of epochs that makes two logs comparable.

An *offset* counts records from 1; 0 is "before everything". Offsets are contiguous within a log, across epochs. An
*epoch* is the reign of one broker. Only that broker appends under it, so two logs that hold a record of the same
(epoch, offset) hold the same record, and the same prefix before it: the property that Raft's log matching and
RocketMQ's controller rely on. From it follows the one rule of rejoining: keep the log up to the last position shared
with the leader, cut the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from understudy.broker.errors import UnderstudyError

ID_EPOCH_SHIFT = 40
"""Ids (replication ids, transaction ids, queue creation ids) are ``epoch << 40 | sequence``."""


class Position(NamedTuple):
    """A place in the log: ``offset`` records stand at or before it, the last of them written under ``epoch``."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.offset}"


class EpochOrderError(UnderstudyError):
    """An epoch was begun that is not above the last one, or before its end: our own mistake, or a damaged journal."""


class EpochHistory:
    """For each epoch with a record in this log, the offset of its first record.

    Invariant: epochs and first offsets both ascend strictly.
    """

    __slots__ = ("_starts",)

    def __init__(self, starts: list[tuple[int, int]] | None = None) -> None:
        self._starts: list[tuple[int, int]] = []
        for epoch, first in starts or ():
            self.begin(epoch, first)

    def begin(self, epoch: int, first_offset: int) -> None:
        """Note that ``epoch`` starts with the record at ``first_offset``. Repeating the newest epoch changes nothing."""
        if self._starts:
            newest, start = self._starts[-1]
            if epoch == newest:
                return
            if epoch < newest or first_offset <= start:
                raise EpochOrderError(f"epoch {epoch} at offset {first_offset} after epoch {newest} at offset {start}")
        self._starts.append((epoch, first_offset))

    @property
    def newest(self) -> int:
        """The epoch of the last record, 0 for an empty log."""
        return self._starts[-1][0] if self._starts else 0

    def starts(self) -> list[tuple[int, int]]:
        """(epoch, first offset), oldest first."""
        return list(self._starts)

    def epoch_at(self, offset: int) -> int:
        """The epoch under which the record at ``offset`` was written; 0 before the first."""
        for epoch, first in reversed(self._starts):
            if first <= offset:
                return epoch
        return 0

    def cut(self, offset: int) -> None:
        """Forget epochs that begin after ``offset``."""
        while self._starts and self._starts[-1][1] > offset:
            self._starts.pop()

    def common_offset(self, end: int, other: list[tuple[int, int]], other_end: int) -> int:
        """The last offset at which this log (up to ``end``) and another (its starts and end) hold the same record.

        The newest epoch that both have begun at the same offset is found; the shorter of the two stretches of that
        epoch is common, and so is everything before it. Logs may begin late (behind a state): an epoch that only one
        of them still lists is no obstacle as long as a newer one agrees.
        """
        ours = self._starts
        if ours and other and ours[-1] == other[-1]:  # the ordinary case: both are in the same epoch
            return min(end, other_end)
        theirs = dict(other)
        for i in range(len(ours) - 1, -1, -1):
            epoch, first = ours[i]
            if theirs.get(epoch) != first:
                continue
            our_end = ours[i + 1][1] - 1 if i + 1 < len(ours) else end
            later = [start for number, start in other if number > epoch]
            their_end = min(later) - 1 if later else other_end
            return min(our_end, their_end)
        return 0
