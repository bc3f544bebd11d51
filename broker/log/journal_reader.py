"""JournalReader: reads a journal's live batches again, from the disk and from what is not there yet."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator

from understudy.broker.log import frame as frames
from understudy.broker.log.journal_state import CutMark, OffsetNotKeptError, Piece, live_until
from understudy.broker.log.segment import JournalDamagedError, Segment, read_frames, read_index
from understudy.broker.log.storage import Storage

BATCH_SPAN = struct.Struct(">QI")
"""First offset and count of a BATCH frame, at ``BATCH_SPAN_AT``."""
BATCH_SPAN_AT = 12
BATCH_BYTE = frames.BATCH_MAGIC[3]
"""The octet at place 3 that tells a BATCH from a NOTE."""


class JournalReader:
    """Reads for one journal, whose lists it shares.

    Args:
        storage: the directory.
        segments: all that are kept, oldest first; changed in place by the journal.
        cuts: the CUT notes in them; changed in place by the journal.
        in_memory: the groups that are in flight or buffered, in this order.
    """

    def __init__(
        self,
        storage: Storage,
        segments: list[Segment],
        cuts: list[CutMark],
        in_memory: Callable[[], list[Piece]],
    ) -> None:
        self._storage = storage
        self._segments = segments
        self._cuts = cuts
        self._in_memory = in_memory

    @property
    def first_offset(self) -> int | None:
        """The first offset of the first live batch that is kept; None if there is none."""
        for segment in self._segments:
            if segment.first_offset is not None:
                return segment.first_offset
        return None

    def batches(self, from_offset: int, last_offset: int) -> Iterator[bytes]:
        """The live BATCH frames that hold offset `from_offset` and all that follows, oldest first.

        Frames that are not durable yet come from memory, so that whoever reads to the end may go on with what is
        appended next. The iterator may be kept while the journal grows, but not across a cut. It belongs to the
        loop's thread, and reads 256 KiB at a time, mostly from the page cache. After a cut in the middle of a batch
        that batch is still yielded whole, and the next one begins inside it.

        Raises:
            OffsetNotKeptError: at once, if `from_offset` lies before what is kept; while iterating, if the rest has
                been dropped.
            JournalDamagedError: while iterating: what stands on the disk is not what was written.
        """
        first = self.first_offset
        if from_offset > last_offset:
            return iter(())
        if first is None or from_offset < first:
            raise OffsetNotKeptError(from_offset, first)
        return self._batches(from_offset)

    def _batches(self, from_offset: int) -> Iterator[bytes]:
        number, position = self._seek(from_offset)
        while True:
            segment = self._segment(number, from_offset)
            position = max(position, segment.data_start)
            if position < (limit := segment.durable_end):
                source = read_frames(self._storage, segment, position, limit)
            elif position < (limit := segment.end):
                source = self._frames_in_memory(segment, position)
            elif segment is not self._segments[-1]:
                number, position = number + 1, 0
                continue
            else:
                return
            for frame, at in source:
                if frame[3] == BATCH_BYTE:
                    first, count = BATCH_SPAN.unpack_from(frame, BATCH_SPAN_AT)
                    last = live_until(self._cuts, first + count - 1, number, at)
                    if last >= from_offset and last >= first:
                        if first > from_offset:
                            reason = f"the batch that holds offset {from_offset} is not before this one"
                            raise JournalDamagedError(self._storage, segment.name, at, reason)
                        yield frame
                        from_offset = last + 1
            position = limit

    def _segment(self, number: int, from_offset: int) -> Segment:
        index = number - self._segments[0].number
        if index < 0:
            raise OffsetNotKeptError(from_offset, self.first_offset)
        return self._segments[index]

    def _seek(self, from_offset: int) -> tuple[int, int]:
        """(segment, position) from which a scan meets every live batch that ends at or after `from_offset`."""
        segment = next(each for each in self._segments if each.last_offset >= from_offset)
        if any(cut.segment == segment.number for cut in self._cuts):
            return segment.number, segment.data_start  # offsets do not ascend in it
        index = read_index(self._storage, segment)
        at = bisect_right(index, from_offset, key=lambda entry: entry[0]) - 1
        return segment.number, index[at][1] if at >= 0 else segment.data_start

    def _frames_in_memory(self, segment: Segment, position: int) -> Iterator[tuple[bytes, int]]:
        """The frames of `segment` from `position` on that were buffered or in flight at the first step."""
        for piece in self._in_memory():
            if piece.segment is segment and piece.end > position:
                at = piece.start
                for frame in list(piece.frames):
                    if at >= position:
                        yield frame, at
                    at += len(frame)
