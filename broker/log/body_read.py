"""Bodies are read back from the journal: by the offset of the record that carries them.

No message remembers a segment or a position. `Journal.begin_read` finds the segments by their offsets, and the job finds the
batch by the segment's sparse index. So a message that stays in memory pays nothing, and a segment may go whenever its records are
dead. A job is handed copies of what it has to know: the journal goes on while a thread runs it. The journal removes no segment
that a pending job reads (`Journal.begin_drop`).

A body that stands in parts (``TX_BODY_PART``) is not read here, nor one of a note, nor one from before the log's start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log import record
from understudy.broker.log.journal_state import CutMark, live_until
from understudy.broker.log.move_record import decode_move
from understudy.broker.log.segment import READ_WINDOW_BYTES, JournalDamagedError, Segment, read_frames, read_index
from understudy.broker.log.storage import Storage
from understudy.broker.message import Message

_SPAN: Final = Struct(">QI")
_SPAN_AT: Final = 12
_BATCH_BYTE: Final = frames.BATCH_MAGIC[3]
_DECODERS: Final[dict[int, Callable[[bytes, int, int], Message]]] = {
    record.ENQUEUE: lambda buf, at, end: record.decode_enqueue(buf, at, end)[1],
    record.TX_ENQUEUE: lambda buf, at, end: record.decode_tx_enqueue(buf, at, end)[2],
    record.TX_ENQUEUE_TIMED: lambda buf, at, end: record.decode_tx_enqueue(buf, at, end)[2],
    record.MOVE: lambda buf, at, end: decode_move(buf, at, end).message,
}


class WantedBody(NamedTuple):
    """A body of ``size`` octets, one at least, in the record at ``offset``."""

    offset: int
    size: int


@attrs.frozen
class ReadableSegment:
    """A copy of what a thread must know of a segment, and what it reads there.

    Attributes:
        limit: byte after the last frame that is durable.
        index: as `Segment.index`; None: it stands in the footer. Empty if offsets do not ascend in the segment.
        wanted: bodies that it holds, by offset, ascending.
    """

    name: str
    number: int
    alignment: int
    data_start: int
    limit: int
    footer_at: int
    index: Sequence[tuple[int, int]] | None
    wanted: Sequence[WantedBody]

    @classmethod
    def of(cls, segment: Segment, wanted: Sequence[WantedBody], cuts: Sequence[CutMark]) -> ReadableSegment:
        """As it is now."""
        index = segment.index
        if any(cut.segment == segment.number for cut in cuts):
            index = []
        return cls(
            segment.name,
            segment.number,
            segment.alignment,
            segment.data_start,
            segment.durable_end,
            segment.footer_at,
            None if index is None else tuple(index),
            wanted,
        )


def readable_segments(
    segments: Iterable[Segment], wanted: Sequence[WantedBody], cuts: Sequence[CutMark]
) -> list[ReadableSegment]:
    """The segments, oldest first, that hold the bodies ``wanted``, which ascend and are all in one of ``segments``."""
    result: list[ReadableSegment] = []
    done = 0
    for segment in segments:
        end = bisect_right(wanted, segment.last_offset, lo=done, key=lambda each: each.offset)
        if end > done:
            result.append(ReadableSegment.of(segment, wanted[done:end], cuts))
            done = end
    assert done == len(wanted), f"no segment holds offset {wanted[done].offset}"
    return result


class ReadJob:
    """Read bodies. `run` may be called in any thread, once.

    Attributes:
        first_segment: the lowest number of a segment that it reads.
        bodies: by offset, when it has run.
    """

    __slots__ = ("_cuts", "_segments", "_storage", "bodies", "first_segment")

    def __init__(self, storage: Storage, segments: Sequence[ReadableSegment], cuts: Sequence[CutMark]) -> None:
        self._storage = storage
        self._segments = segments
        self._cuts = tuple(cuts)
        self.first_segment = segments[0].number
        self.bodies: dict[int, bytes] = {}

    def run(self) -> None:
        """Do it: all bodies, or an error.

        Raises:
            JournalDamagedError: what stands there is not what was written; it names segment and position.
            OSError: the disk does not give it back; likewise.
        """
        for segment in self._segments:
            index = read_index(self._storage, segment)
            done = 0
            while done < len(segment.wanted):
                done = self._scan(segment, index, done)

    def _scan(self, segment: ReadableSegment, index: Sequence[tuple[int, int]], done: int) -> int:
        """Read on from the first body that is not ``done``; returns how many are done where a long stretch may be skipped."""
        wanted = segment.wanted
        at = begin = _seek(segment, index, wanted[done].offset)
        try:
            for frame, at in read_frames(self._storage, segment, begin, segment.limit):
                if frame[3] == _BATCH_BYTE:
                    done = self._take(segment, frame, at, done)
                    if done == len(wanted):
                        return done
                    if _seek(segment, index, wanted[done].offset) > at + READ_WINDOW_BYTES:
                        return done
        except OSError as error:
            place = f"{self._storage}: {segment.name} cannot be read behind byte {at}"
            raise OSError(error.errno, f"journal {place}, where the body at offset {wanted[done].offset} is") from error
        raise self._damaged(segment, begin, f"from here on no batch holds offset {wanted[done].offset}")

    def _take(self, segment: ReadableSegment, frame: bytes, at: int, done: int) -> int:
        """Take the bodies that the batch ``frame`` at byte ``at`` holds."""
        first, count = _SPAN.unpack_from(frame, _SPAN_AT)
        last = live_until(self._cuts, first + count - 1, segment.number, at)
        wanted = segment.wanted
        if last < first or wanted[done].offset > last:
            return done
        for offset, kind, begin, end in _records(frame, first):
            if offset > last:
                break
            if offset == wanted[done].offset:
                self.bodies[offset] = self._body(segment, frame, at, wanted[done], kind, begin, end)
                done += 1
                if done == len(wanted):
                    return done
        if wanted[done].offset <= last:
            raise self._damaged(segment, at, f"the batch holds no record of offset {wanted[done].offset}")
        return done

    def _body(
        self, segment: ReadableSegment, frame: bytes, at: int, wanted: WantedBody, kind: int, begin: int, end: int
    ) -> bytes:
        decode = _DECODERS.get(kind)
        what = f"the record of kind {kind} at offset {wanted.offset}"
        if decode is None:
            raise self._damaged(segment, at, f"{what} has no body, of {wanted.size} octets")
        try:
            body = decode(frame, begin, end).content()
        except (record.RecordError, ValueError, IndexError, KeyError) as error:
            raise self._damaged(segment, at, f"{what} cannot be read: {error}") from error
        if len(body) != wanted.size:
            raise self._damaged(segment, at, f"{what} has a body of {len(body)} octets, not {wanted.size}")
        return body

    def _damaged(self, segment: ReadableSegment, at: int, reason: str) -> JournalDamagedError:
        return JournalDamagedError(self._storage, segment.name, at, reason)


def _seek(segment: ReadableSegment, index: Sequence[tuple[int, int]], offset: int) -> int:
    """Where a scan begins that meets the batch with ``offset``."""
    at = bisect_right(index, offset, key=lambda entry: entry[0]) - 1
    return index[at][1] if at >= 0 else segment.data_start


def _records(frame: bytes, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Offset, kind, begin and end of the payload of each record of a batch that begins at ``offset``."""
    for kind, at, end in record.records_of(frame, frames.BATCH_HEADER_BYTES):
        if kind == record.HOLE:
            offset += int.from_bytes(frame[at : at + 4], "big")
        else:
            yield offset, kind & ~record.TRANSIENT, at, end
            offset += 1
