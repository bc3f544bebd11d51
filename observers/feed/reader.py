"""FeedReader: the journal of one broker as events, from any place on.

It puts `JournalTail` (frames) and `FeedTranslation` (what they say) together, and knows how to go on: a `Cursor` is where a reader
stands and what it remembers, as bytes. A reader that goes on at a cursor yields the events, with the same numbers, that the reader
which made the cursor would have yielded next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.broker.log import frame as frames
from understudy.broker.log.journal_gate import NoteFormatError, UnknownNoteError
from understudy.broker.log.journal_tail import JournalTail, Place, SegmentBegun, SegmentsGone
from understudy.broker.log.record import UnknownKindError
from understudy.broker.log.storage import Storage
from understudy.observers.events_schema import SCHEMA_VERSION, End, Event
from understudy.observers.feed.context import FeedContext
from understudy.observers.feed.translation import FeedTranslation
from understudy.replicator.wire import UnknownMessageError

CURSOR_VERSION: Final = 1


class CursorError(UnderstudyError):
    """A cursor cannot be used: it is of another program version, or of another broker."""


class NewerJournalError(UnderstudyError):
    """A record or note in the midst of a journal is of a newer program; says where it stands."""


class Cursor(msgspec.Struct):
    """Where a reader stands.

    Attributes:
        version, schema: of this struct, and of the events that were counted.
        group, broker: whose journal it is.
        segment, salt, position, at_group, proof: `journal_tail.Place`.
        incarnation, seq: of the last event.
        at_ms: of the last group.
        context: what is remembered.
        event_digest: of the events of that incarnation; -1: an older program has made the cursor.
    """

    version: int
    schema: int
    group: str
    broker: str
    segment: int
    salt: int
    position: int
    at_group: int
    proof: int
    incarnation: str
    seq: int
    at_ms: int
    context: FeedContext
    event_digest: int = -1


class FeedReader:
    """The journal of one broker.

    Args:
        storage: its data directory; may be open for reading only.
        cursor: of a reader of this journal; None: from the first segment that is kept.

    Raises:
        CursorError: ``cursor`` cannot be used.
    """

    def __init__(self, storage: Storage, cursor: bytes | None = None) -> None:
        found = _decode(cursor) if cursor is not None else None
        self._storage = storage
        self._half_told = False
        if found is None:
            self._tail = JournalTail(storage)
            self._translation = FeedTranslation()
            return
        place = Place(
            segment=found.segment,
            salt=found.salt,
            position=found.position,
            group=found.at_group,
            proof=found.proof,
        )
        self._tail = JournalTail(storage, place)
        self._translation = translation = FeedTranslation(found.context)
        translation.group, translation.broker = found.group, found.broker
        translation.incarnation, translation.seq = found.incarnation, found.seq
        translation.at_ms, translation.event_digest = found.at_ms, found.event_digest

    @property
    def broker(self) -> str:
        """Whose journal it is; "" before anything was read."""
        return self._translation.broker

    @property
    def at_ms(self) -> int:
        """Wall clock of its broker when it wrote what was read last; 0 if that is not known."""
        return self._translation.at_ms

    @property
    def torn(self) -> bool:
        """True if the journal ends, as far as it was read, in the midst of a group."""
        return self._tail.torn

    def events(self) -> Iterator[list[Event]]:
        """Events behind what was read, a frame's at a time; ends where nothing more can be read now.

        Raises:
            NoJournalError: the directory holds no journal.
            JournalDamagedError: names file and byte.
            JournalFormatError, NewerJournalError: a newer program's journal.
            WrongIdentityError: segments of two brokers.

        Behind NewerJournalError the reader stands in front of that frame, of which nothing was said: a newer program that goes on
        at the cursor says all of it.
        """
        if self._half_told:
            return
        tail, translation = self._tail, self._translation
        for each in tail.frames():
            if isinstance(each, bytes):
                self._translate(each)
            elif isinstance(each, SegmentBegun):
                translation.begin_segment(each.header)
            else:
                self._gap(each)
            found = translation.take_events()
            if found:
                yield found

    def _translate(self, frame: bytes) -> None:
        tail, translation = self._tail, self._translation
        segment, group = tail.segment, tail.group
        assert segment is not None
        assert group is not None
        translation.comes_with(group.sequence, group.wall_ms)
        self._half_told = True
        try:
            if frame[3] == frames.BATCH_MAGIC[3]:
                translation.batch(frame)
            else:
                translation.note(frame[5], frame[frames.NOTE_HEADER_BYTES :])
        except (UnknownKindError, UnknownNoteError, NoteFormatError, UnknownMessageError) as error:
            tail.put_back()
            self._half_told = False
            raise NewerJournalError(
                f"journal {self._storage}: {segment.name}, byte {tail.frame_at}: {error}"
            ) from error
        self._half_told = False

    def _gap(self, gone: SegmentsGone) -> None:
        reason = "rewritten" if gone.rewritten else "dropped" if gone.last else "started"
        identity = self._tail.identity
        if identity is not None and not self._translation.broker:
            self._translation.group, self._translation.broker = identity.group_id, identity.broker_id
        self._translation.gap(reason, gone.last, gone.first)

    def find_damage(self) -> None:
        """See whether what looks like the end of the journal is damage; cheap if nothing was read since it was called last.

        Raises:
            JournalDamagedError: it is.
        """
        self._tail.find_damage()

    @property
    def segment(self) -> int:
        """Number of the segment that is read; 0 before the first."""
        segment = self._tail.segment
        return segment.number if segment is not None else 0

    @property
    def frame_at(self) -> int:
        """Byte in that segment where the frame of the last events begins."""
        return self._tail.frame_at

    def end(self) -> End | None:
        """So far this reader has read the incarnation; None if it has read nothing of one."""
        return None if self._half_told else self._translation.end()

    def cursor(self) -> bytes | None:
        """Where a reader can go on behind the last events that were yielded.

        None before the first segment, and when the last frame raised something else than NewerJournalError: it may be said in part.
        """
        place = self._tail.place()
        if place is None or self._half_told:
            return None
        translation = self._translation
        return msgspec.json.encode(
            Cursor(
                CURSOR_VERSION,
                SCHEMA_VERSION,
                translation.group,
                translation.broker,
                place.segment,
                place.salt,
                place.position,
                place.group,
                place.proof,
                translation.incarnation,
                translation.seq,
                translation.at_ms,
                translation.context,
                translation.event_digest,
            )
        )

    def close(self) -> None:
        """Close the segment file."""
        self._tail.close()


def _decode(cursor: bytes) -> Cursor:
    try:
        found = msgspec.json.decode(cursor, type=Cursor)
    except msgspec.MsgspecError as error:
        raise CursorError(f"that is no cursor of this program: {error}") from error
    if (found.version, found.schema) != (CURSOR_VERSION, SCHEMA_VERSION):
        raise CursorError(
            f"the cursor is of version {found.version} and event schema {found.schema}; this program goes on from version "
            f"{CURSOR_VERSION} and schema {SCHEMA_VERSION}"
        )
    return found
