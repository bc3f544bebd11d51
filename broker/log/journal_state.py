"""Parts of a journal beside itself: sizes, what recovery hands it, its own statistics, a group in the making."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import attrs

from understudy.broker.log.body_place import frame_place
from understudy.broker.log.frame import MAX_FRAME_BYTES
from understudy.broker.log.segment import GROUP_BYTES, MIN_SEGMENT_BYTES, JournalError, Segment
from understudy.broker.log.storage import Chunk, NewSegment, ReserveState, SegmentWrite

CheckpointSource = Callable[[], bytes | None]
"""Gives the NOTE frame that begins a new segment; see :class:`~understudy.broker.log.journal.Journal`."""

WallClock = Callable[[], int]
"""Tells the wall clock in milliseconds since 1970."""


def no_clock() -> int:
    """The wall clock of who has none."""
    return 0


class JournalFailedError(JournalError):
    """A write or a sync failed, or the journal is closed. What was not durable before may or may not be on the disk."""


class JournalOrderError(JournalError):
    """A batch does not continue the log: our own mistake. Nothing was appended."""


class OffsetNotKeptError(JournalError):
    """A read begins before the first batch that is kept.

    Attributes:
        first_offset: where it could begin; None if no batch is kept at all.
    """

    def __init__(self, from_offset: int, first_offset: int | None) -> None:
        self.first_offset = first_offset
        super().__init__(f"offset {from_offset} is no longer in the journal, which begins at {first_offset}")


class BodyNotKeptError(JournalError):
    """A body is wanted whose place is not in the journal any more."""


def _power_of_two(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 512 or value & (value - 1):
        raise ValueError(f"{attribute.name} {value} is not a power of two of at least 512")


@attrs.frozen(kw_only=True)
class JournalOptions:
    """Sizes.

    Args:
        segment_bytes: of an ordinary segment; at least `MIN_SEGMENT_BYTES` and room for a few groups.
        index_interval_bytes: distance of index entries in a segment's footer.
        alignment_bytes: where groups begin: a power of two, at least 512. Of new segments; old ones keep theirs.
        reserve_bytes: of the reserve, and the free space below which `low_space` says so; 0: neither.
        max_frame_bytes: of the longest frame that `append` takes.
        salt: 64 random bits from whoever has randomness; stands in each group of each segment made by this process.
    """

    segment_bytes: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(MIN_SEGMENT_BYTES))
    index_interval_bytes: int = attrs.field(default=64 << 10, validator=attrs.validators.ge(512))
    alignment_bytes: int = attrs.field(default=4096, validator=_power_of_two)
    reserve_bytes: int = attrs.field(default=256 << 20, validator=attrs.validators.ge(0))
    max_frame_bytes: int = attrs.field(default=MAX_FRAME_BYTES, validator=attrs.validators.ge(512))
    salt: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.lt(1 << 64)])


@attrs.frozen(kw_only=True)
class JournalStatistics:
    """A moment of a journal. `bytes` is what the segment files occupy; counts begin with this process."""

    segments: int
    bytes: int
    first_offset: int | None
    last_offset: int
    durable_offset: int
    appended_frames: int
    durable_frames: int
    buffered_bytes: int
    in_flight_bytes: int
    sync_jobs: int
    fsyncs: int
    written_bytes: int
    largest_group_bytes: int
    rolls: int
    dropped_segments: int
    spare_ready: bool
    reserve: ReserveState
    low_space: bool
    failed: bool


class Hold(NamedTuple):
    """A reader of the journal needs ``segment`` and what follows; no more than ``max_bytes`` are kept for it alone."""

    segment: int
    max_bytes: int


class SealedSegment(NamedTuple):
    """A sealed segment that is durable: its number, its last live offset (0: it has no live batch), the size of its file."""

    number: int
    last_offset: int
    size_bytes: int


class Occupancy(NamedTuple):
    """The space that a journal takes up.

    Attributes:
        sealed: the sealed segments that are needed, oldest first.
        newest_used_bytes: written to the segments behind them.
        segment_bytes: size of an ordinary segment.
        bound_segment: the last segment with a bound note; 0 if there is none.
    """

    sealed: list[SealedSegment]
    newest_used_bytes: int
    segment_bytes: int
    bound_segment: int


class CutMark(NamedTuple):
    """A CUT note: batches before (segment, position) are dead after log offset `offset`."""

    segment: int
    position: int
    offset: int


def live_until(cuts: Iterable[CutMark], last: int, number: int, position: int) -> int:
    """The last live offset of a batch that ends at `last` and lies at `position` of segment `number`."""
    for cut in cuts:
        if cut.offset < last and cut[:2] > (number, position):
            last = cut.offset
    return last


@attrs.frozen
class EndedLog:
    """A log that stands in the journal before a CUT to 0, as far as bodies are read from it.

    The log may begin anew. What a broker held before stays in its queues, and the records that brought it stay in the
    journal as long as they are needed. But no offset of the new log leads there.

    Attributes:
        cut: the place of the CUT's frame (`body_place.frame_place`).
        segments: those with live batches of it, oldest first, each with the first and the last live offset in it.
        cuts: earlier CUT notes.
    """

    cut: int
    segments: list[tuple[Segment, int, int]]
    cuts: tuple[CutMark, ...]

    @classmethod
    def at(cls, segments: Iterable[Segment], cuts: Iterable[CutMark], segment: int, position: int) -> EndedLog:
        """The log that a CUT to 0 at ``position`` of ``segment`` ends. Call it before the segments hear of the cut."""
        live = [(each, each.first_offset, each.last_offset) for each in segments if each.first_offset is not None]
        return cls(frame_place(segment, position), live, tuple(cuts))


@attrs.define
class JournalState:
    """The state that recovery found, from which a journal goes on; the default is an empty directory.

    Attributes:
        bound_segment: number of the last segment with a bound note (`frame.FIRST_BOUND_KIND`), 0 if there is none.
    """

    segments: list[Segment] = attrs.field(factory=list)
    cuts: list[CutMark] = attrs.field(factory=list)
    ended_logs: list[EndedLog] = attrs.field(factory=list)
    next_segment: int = 1
    sequence: int = 0
    previous_end: int = 0
    floor: int = 1
    last_offset: int = 0
    bound_segment: int = 0
    proven: bool = True

    def begin_segment(self, segment: Segment) -> None:
        """Read ``segment``, which follows those before it."""
        if not self.segments:
            self.sequence = segment.first_sequence - 1
        assert segment.first_sequence == self.sequence + 1, "the end of the segment before was not checked"
        self.segments.append(segment)
        self.previous_end = 0
        self.proven = True

    def group_read(self, sequence: int, floor: int) -> None:
        """The note of a group was read: it proves what stands before it."""
        self.sequence = sequence
        self.floor = floor
        self.proven = True

    def group_ends(self, end: int, *, empty: bool) -> None:
        """The frames of a group were read, up to ``end``; no note proves them yet, unless there was none."""
        self.previous_end = end
        self.proven = empty

    def floor_is(self, floor: int) -> None:
        """Segments before the one of number ``floor`` are not needed, and none after it is without need."""
        self.floor = floor

    def bound_in(self, segment: int) -> None:
        """A bound note stands in the segment of that number."""
        self.bound_segment = segment

    def go_on_behind(self, newest: int) -> None:
        """The next segment follows the one of number ``newest``."""
        self.next_segment = newest + 1

    def next_sequence(self) -> int:
        """Give a closing group its sequence number."""
        self.sequence += 1
        return self.sequence


class Piece(SegmentWrite):
    """A group in the making: the frames of one group that go to one segment. It ends as a step of a SyncJob."""

    __slots__ = ("end", "footer", "frames", "grouped", "is_new", "limit", "segment", "start")

    def __init__(self, segment: Segment, position: int, limit: int, grouped: bool, is_new: bool) -> None:
        self.segment = segment
        self.start = self.end = position + GROUP_BYTES if grouped else position
        self.limit = limit
        self.grouped = grouped
        self.is_new = is_new
        self.frames: list[bytes] = []
        self.footer: bytes | None = None

    def add(self, frame: bytes, length: int) -> int:
        """Write ``frame``, too; returns where it ends."""
        self.frames.append(frame)
        self.end += length
        return self.end

    def lay_out(self, new: NewSegment | None) -> list[tuple[int, list[Chunk]]]:
        """Name the file to write to, ``new`` if it is to be made; returns the list of writes, for them to be put into."""
        self.name = self.segment.name
        self.file = self.segment.file
        self.new = new
        assert (self.file is None) is self.is_new, "a segment is either open or to be made"
        self.writes = []
        return self.writes

    def end_with(self, footer: bytes) -> None:
        """Write ``footer`` behind it: the segment is full."""
        self.footer = footer
