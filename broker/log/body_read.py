"""Bodies are read back from the journal: by the offset of the record that carries them, or by the place of a note.

Nearly no message remembers a segment or a position. `Journal.begin_read` finds the segments by their offsets, and the job finds
the batch by the segment's sparse index. So a message that stays in memory pays nothing, and a segment may go whenever its records
are dead. Messages that stand in notes, or in a log that has ended, know a place (`body_place`).

A job is handed copies of what it has to know: the journal goes on while a thread runs it. The journal removes no segment that a
pending job reads (`Journal.begin_drop`). A body that stands in parts (``TX_BODY_PART``) is not read here.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate, record
from understudy.broker.log.body_place import AT_OFFSET, EndedPlace, NotePlace, place_of, segment_and_position
from understudy.broker.log.journal_state import CutMark, live_until
from understudy.broker.log.move_record import decode_move
from understudy.broker.log.segment import (
    READ_WINDOW_BYTES,
    FrameReader,
    JournalDamagedError,
    Segment,
    read_frames,
    read_index,
)
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


_NOTE_KIND_AT: Final = 5


class WantedBody(NamedTuple):
    """A body of ``size`` octets, one at least: in the record at ``offset``, or at ``place`` if that is positive (`body_place`)."""

    offset: int
    size: int
    place: int = AT_OFFSET


@attrs.frozen
class ReadableSegment:
    """A copy of what a thread must know of a segment, and what it reads there.

    Attributes:
        data_start: where its frames begin, or those of the log that is read.
        limit: byte after the last frame that is durable, or the end of the log that is read.
        index: as `Segment.index`; None: it stands in the footer. Empty if offsets do not ascend in what is read.
        wanted: bodies that it holds, by offset, ascending.
        cuts: the CUT notes of the log that is read.
    """

    name: str
    number: int
    alignment: int
    data_start: int
    limit: int
    footer_at: int
    index: Sequence[tuple[int, int]] | None
    wanted: Sequence[WantedBody]
    cuts: Sequence[CutMark]

    @classmethod
    def of(
        cls, segment: Segment, wanted: Sequence[WantedBody], cuts: Sequence[CutMark], end: int = 0
    ) -> ReadableSegment:
        """As it is now. ``end``: where the log that is read ends in it; 0: it does not."""
        here = [cut for cut in cuts if cut.segment == segment.number]
        start = max(
            [segment.data_start, *[cut.position for cut in here if not cut.offset]]
        )  # a log began behind such a cut
        index = segment.index
        if any(cut.offset and cut.position > start for cut in here):
            index = []
        return cls(
            segment.name,
            segment.number,
            segment.alignment,
            start,
            min(segment.durable_end, end or segment.durable_end),
            segment.footer_at,
            None if index is None else tuple(index),
            wanted,
            tuple(cuts),
        )


def readable_segments(
    segments: Iterable[tuple[Segment, int]], wanted: Sequence[WantedBody], cuts: Sequence[CutMark], cut: int = 0
) -> list[ReadableSegment]:
    """The segments, oldest first, that hold the bodies ``wanted``, which ascend.

    Args:
        segments: of one log, oldest first, each with the last offset that lives in it. All bodies are in one of them.
        wanted: of that log.
        cuts: the CUT notes in it, and before it.
        cut: place of the CUT that has ended the log; 0: it goes on.
    """
    result: list[ReadableSegment] = []
    ends_in, ends_at = segment_and_position(cut)
    done = 0
    for segment, last_offset in segments:
        end = bisect_right(wanted, last_offset, lo=done, key=lambda each: each.offset)
        if end > done:
            limit = ends_at if segment.number == ends_in else 0
            result.append(ReadableSegment.of(segment, wanted[done:end], cuts, limit))
            done = end
    assert done == len(wanted), f"no segment holds offset {wanted[done].offset}"
    return result


class ReadableNote(NamedTuple):
    """A body in a note, and a copy of what a thread must know of the segment."""

    name: str
    limit: int
    place: NotePlace
    wanted: WantedBody


def readable_notes(segments: Iterable[Segment], wanted: Iterable[WantedBody]) -> list[ReadableNote]:
    """The notes that hold ``wanted``, in the order in which they stand in the journal.

    Raises:
        KeyError: a segment is not there.
    """
    by_number = {segment.number: segment for segment in segments}
    result = []
    for each in wanted:
        place = place_of(each.place)
        assert isinstance(place, NotePlace), f"{each} is in no note"
        segment = by_number[place.segment]
        result.append(ReadableNote(segment.name, segment.durable_end, place, each))
    return sorted(result, key=lambda each: each.place)


def wanted_by_log(wanted: Iterable[WantedBody]) -> dict[int, list[WantedBody]]:
    """Bodies of logs that have ended, by the place of the CUT; each with the offset that it had in its log, and its place."""
    result: dict[int, list[WantedBody]] = {}
    for each in wanted:
        place = place_of(each.place)
        assert isinstance(place, EndedPlace), f"{each} is in no log that has ended"
        result.setdefault(place.cut, []).append(WantedBody(place.offset, each.size, each.place))
    return result


class ReadJob:
    """Read bodies. `run` may be called in any thread, once.

    Attributes:
        first_segment: the lowest number of a segment that it reads.
        bodies: when it has run, by place if that is positive, else by offset.
    """

    __slots__ = ("_notes", "_segments", "_storage", "bodies", "first_segment")

    def __init__(
        self, storage: Storage, segments: Sequence[ReadableSegment], notes: Sequence[ReadableNote] = ()
    ) -> None:
        self._storage = storage
        self._segments = segments
        self._notes = notes
        self.first_segment = min([each.number for each in segments] + [each.place.segment for each in notes])
        self.bodies: dict[int, bytes] = {}

    def run(self) -> None:
        """Do it: all bodies, or an error.

        Raises:
            JournalDamagedError: what stands there is not what was written; it names segment and position.
            OSError: the disk does not give it back; likewise.
        """
        for notes in _by_segment(self._notes):
            self._read_notes(notes)
        for segment in self._segments:
            whole = read_index(self._storage, segment)
            index = [each for each in whole if segment.data_start <= each[1] < segment.limit]
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
        last = live_until(segment.cuts, first + count - 1, segment.number, at)
        wanted = segment.wanted
        if last < first or wanted[done].offset > last:
            return done
        for offset, kind, begin, end in _records(frame, first):
            if offset > last:
                break
            if offset == wanted[done].offset:
                body = self._body(segment, frame, at, wanted[done], kind, begin, end)
                self.bodies[wanted[done].place or offset] = body
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

    def _read_notes(self, notes: Sequence[ReadableNote]) -> None:
        """Read the bodies in notes of one segment."""
        name = notes[0].name
        file = self._storage.open(name)
        try:
            reader = FrameReader(file, name, READ_WINDOW_BYTES)
            position, frame = 0, b""
            for _, limit, place, wanted in notes:
                if place.position != position or not frame:
                    position, frame = place.position, self._note_at(reader, name, place.position, limit)
                self.bodies[wanted.place] = self._body_in(frame, name, place, wanted)
        except OSError as error:
            where = f"{self._storage}: {name} cannot be read behind byte {notes[0].place.position}"
            raise OSError(error.errno, f"journal {where}, where bodies stand in notes") from error
        finally:
            file.close()

    def _note_at(self, reader: FrameReader, name: str, position: int, limit: int) -> bytes:
        try:
            frame = reader.frame_at(position, limit)
        except frames.FrameError as error:
            raise JournalDamagedError(self._storage, name, position, str(error)) from error
        if not frame.startswith(frames.NOTE_MAGIC) or not _brings_messages(frame[_NOTE_KIND_AT]):
            raise JournalDamagedError(self._storage, name, position, "no note with messages stands here")
        return frame

    def _body_in(self, frame: bytes, name: str, place: NotePlace, wanted: WantedBody) -> bytes:
        what = f"the message at octet {place.at} of the note"
        try:
            body = record.decode_message(frame, place.at, place.at + place.size)[0].content()
        except (record.RecordError, ValueError, IndexError, KeyError, struct.error) as error:
            reason = f"{what} cannot be read: {error}"
            raise JournalDamagedError(self._storage, name, place.position, reason) from error
        if len(body) != wanted.size:
            reason = f"{what} has a body of {len(body)} octets, not {wanted.size}"
            raise JournalDamagedError(self._storage, name, place.position, reason)
        return body


def _brings_messages(kind: int) -> bool:
    """True for a note that messages may stand in."""
    return kind == journal_gate.AGAIN or kind >= frames.FIRST_BOUND_KIND


def _by_segment(notes: Sequence[ReadableNote]) -> Iterator[list[ReadableNote]]:
    for _, group in groupby(notes, key=lambda each: each.place.segment):
        yield list(group)


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
