"""FeedTranslation: frames of one broker's journal to events, in order.

It walks over the records of a batch (`feed.records`) and hands on notes (`feed.notes`). Both say their events to it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.segment import SegmentHeader
from understudy.broker.octets.checksum import crc32
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import SCHEMA_VERSION
from understudy.observers.feed.context import FeedContext
from understudy.observers.feed.event_stream import EventStream
from understudy.observers.feed.notes import NoteEvents
from understudy.observers.feed.records import RecordEvents

Taker = Callable[[bytes, int, int, int], None]
"""Makes the events of a record: of the buffer, where the record's content begins and ends in it, and its offset."""
_U32: Final = Struct(">I")


def incarnation_of(header: SegmentHeader, since: int) -> str:
    """The incarnation of the events of a segment, for readers that have read everything from segment ``since`` on.

    What a reader has not read may change how many events a record makes (whether it opens a transaction, for example). So what
    began later is numbered by itself; all that began at the same segment count the same.
    """
    return f"j{header.number}-{header.salt:x}{f'@{since}' if since > 1 else ''}"


class FeedTranslation(EventStream):
    """One broker's journal.

    Args:
        context: what is known so far; changed in place.
    """

    def __init__(self, context: FeedContext | None = None) -> None:
        super().__init__(context)
        records = RecordEvents(self)
        self._takers = records.takers
        self._note_takers = NoteEvents(self, records).takers

    def begin_segment(self, header: SegmentHeader) -> None:
        """A segment is read from its beginning, or on: then nothing is said."""
        self.group, self.broker = header.identity.group_id, header.identity.broker_id
        context = self.context
        context.begin_segment(header.number)
        incarnation = incarnation_of(header, context.since)
        if incarnation == self.incarnation:
            return
        previous, count, digest = self.incarnation, self.seq, self.digested()
        self.incarnation, self.seq, self.event_digest = incarnation, 0, 0
        self.say(schema.Segment, context.end, header.number, previous, count, digest if previous else -1)

    def gap(self, reason: str, last: int, first: int) -> None:
        """Segments between these two cannot be read. It is this reader's own fact, so it has no number."""
        context = self.context
        if (end := self.end()) is not None:
            self.out.append(end)
        position = (context.epoch, context.end)
        fields = (self.group, context.founding, self.broker, "", 0, *position, self.at_ms)
        self.context = FeedContext()
        self.incarnation = ""
        self.at_ms = 0
        self.out.append(schema.Gap(SCHEMA_VERSION, *fields, reason, *position, last, first))
        self.event_digest = -1  # these two are not in any
        self.digested()
        self.seq = self.event_digest = 0

    def end(self) -> schema.End | None:
        """The incarnation as far as its events were taken; None if there is none."""
        if not self.incarnation:
            return None
        context = self.context
        head = (self.group, context.founding, self.broker, self.incarnation, 0, context.epoch, context.end, self.at_ms)
        return schema.End(SCHEMA_VERSION, *head, self.seq, self.digested())

    def batch(self, data: bytes) -> None:
        """A BATCH frame.

        Raises:
            UnknownKindError: a newer program has written a record of it. Nothing has been said or changed.
        """
        epoch, first, count = frame.BATCH_PLACE.unpack_from(data, frame.BATCH_PLACE_AT)
        records = self._checked_records(data, first)
        stable = frame.header_of_verified(data).stable
        context = self.context
        if stable > context.stable:
            self.advance(stable)
        context.begin_epoch(epoch)
        held = context.end
        last = first + count - 1
        context.reach(last)
        offset = first
        for taker, start, end in records:
            if taker is None:
                (holes,) = _U32.unpack_from(data, start)
                offset += holes
                self.say(schema.Hole, offset - 1, holes)
                continue
            if offset > held:
                taker(data, start, end, offset)
            offset += 1
        new = max(first, held + 1) if held >= first else first
        content = crc32(memoryview(data)[frame.BATCH_HEADER_BYTES :]) if new == first else -1
        self.say(schema.Append, last, new, last - new + 1, stable, self.sync, content, self.digested())

    def _checked_records(self, data: bytes, offset: int) -> list[tuple[Taker | None, int, int]]:
        """Function, begin and end of each record of a batch that begins at ``offset``; no function for a HOLE."""
        records: list[tuple[Taker | None, int, int]] = []
        at = frame.BATCH_HEADER_BYTES
        size = len(data)
        takers = self._takers
        head = record.HEAD.unpack_from
        while at < size:
            kind, length = head(data, at)
            start = at + 5
            at = start + length
            taker = takers.get(kind & 0x7F)
            if taker is not None:
                offset += 1
            elif kind == record.HOLE:
                offset += _U32.unpack_from(data, start)[0]
            else:
                raise record.UnknownKindError(kind & 0x7F, f"at offset {offset}")
            records.append((taker, start, at))
        return records

    def note(self, kind: int, payload: bytes) -> None:
        """A NOTE frame.

        Raises:
            UnknownNoteError, NoteFormatError, UnknownMessageError, UnknownKindError: a newer program has written it. Nothing has
                been said or changed.
        """
        taker = self._note_takers.get(kind)
        if taker is None:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of kind {kind}, which this program does not know: run the newer one"
            )
        taker(payload)
