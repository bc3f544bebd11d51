"""SegmentFloor: which leading segments a journal needs no more, and their removal.

Dropping has two steps, because a missing file must never be taken for a dropped one: the next group carries the new floor, and
only when that is durable are the files below it removed.
"""

from __future__ import annotations

from understudy.broker.log.journal_state import CutMark, Hold
from understudy.broker.log.segment import Segment
from understudy.broker.log.storage import DropJob, Storage


class SegmentFloor:
    """The number of the first segment that is needed.

    Args:
        storage: the directory.
        segments: of the journal, oldest first; changed in place, here too.
        cuts: the CUT notes in them; likewise.
        floor: as recovery found it.
        bound_segment: the last segment with a bound note, 0 if there is none.

    Attributes:
        wanted, flying, durable: as it should be, as the group in flight states it, as it is on the disk.
        bound_segment: as above; the journal changes it.
        dropped: how many segments were dropped.
    """

    __slots__ = ("_cuts", "_job", "_segments", "_storage", "bound_segment", "dropped", "durable", "flying", "wanted")

    def __init__(
        self, storage: Storage, segments: list[Segment], cuts: list[CutMark], floor: int, bound_segment: int
    ) -> None:
        self._storage = storage
        self._segments = segments
        self._cuts = cuts
        self._job: DropJob | None = None
        self.wanted = self.flying = self.durable = floor
        self.bound_segment = bound_segment
        self.dropped = 0

    def request(self, offset: int, hold: Hold | None = None) -> bool:
        """Let go of the leading sealed segments all of whose live batches end at or below log offset `offset`.

        With offset 0 nothing goes, segments without a live batch neither: after a cut to 0 they may hold what the owner still
        needs. A bound note goes together with everything before it, or stays with everything before it. ``hold`` keeps some of
        them for a reader. Returns whether there is, or will be, anything to remove.
        """
        segments = self._segments
        floor = self.wanted
        for segment in segments[:-1] if offset else ():
            if not segment.closed or segment.last_offset > offset:
                break
            floor = segment.number + 1
        if hold is not None:
            floor = self._held(floor, hold)
        if floor > self.bound_segment or (segments and segments[0].number > self.bound_segment):
            self.wanted = max(self.wanted, floor)
        return bool(segments) and self.wanted > segments[0].number

    def fly(self) -> None:
        """A group that states ``wanted`` is being written."""
        self.flying = self.wanted

    def landed(self) -> None:
        """Note that the group in flight is on the disk."""
        self.durable = self.flying

    def bound_in(self, segment: int) -> None:
        """Note that a bound note stands in the segment of that number, the newest."""
        self.bound_segment = segment

    def begin_anew(self) -> None:
        """Let go of all segments but the newest."""
        self.wanted = self._segments[-1].number

    def _held(self, floor: int, hold: Hold) -> int:
        """``floor``, or less: segments from ``hold.segment`` on stay, the newest first, as long as they fit into the bound."""
        room = hold.max_bytes
        for segment in reversed([each for each in self._segments if hold.segment <= each.number < floor]):
            room -= segment.size_bytes
            if room < 0:
                break
            floor = segment.number
        return floor

    def begin(self) -> DropJob | None:
        """The job that removes segments below the durable floor; None if there are none, or one is in flight."""
        if self._job is not None:
            return None
        segments = self._segments
        dead = [(segment.number, segment.name) for segment in segments if segment.number < self.durable]
        if not dead:
            return None
        self._job = DropJob(self._storage, dead)
        self.dropped += len(dead)
        del segments[: len(dead)]
        self._cuts[:] = [cut for cut in self._cuts if cut.segment >= self.durable]
        return self._job

    def finish(self, job: DropJob) -> None:
        """Note that `job` has run."""
        assert job is self._job, "a drop job of another journal"
        self._job = None
