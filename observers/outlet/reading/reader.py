"""OutletReader: the journal of one broker as units, behind a position.

It reads as the feed does (`JournalTail`), from a segment that begins before everything that is needed (`segments`): what
open transactions held when the position was sent stands before it. What was sent already is passed over.

A journal states how far its log is stable with the next batch only. `applied_upto` brings what the broker says beside its
journal (`AppliedFacts`). It may be called where `units` has come to the end, and the fact was read before that: what was cut
before the fact has been read then.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy.broker.log import frame as frames
from understudy.broker.log.journal_gate import NoteFormatError, UnknownNoteError
from understudy.broker.log.journal_tail import JournalTail, Place, SegmentsGone
from understudy.broker.log.position import Position
from understudy.broker.log.record import UnknownKindError
from understudy.broker.log.storage import Storage
from understudy.broker.message import Spill
from understudy.observers.feed.reader import NewerJournalError
from understudy.observers.outlet.errors import OtherFoundingError
from understudy.observers.outlet.reading.log import OutletLog
from understudy.observers.outlet.reading.notes import OutletNotes
from understudy.observers.outlet.reading.units import Unit
from understudy.replicator.wire import UnknownMessageError

NOTHING: Position = Position(0, 0)


class OutletReader:
    """One journal.

    Args:
        storage: its data directory; may be open for reading only.
        sent: everything at or before it was sent.
        founding: of the group to which ``sent`` belongs; "": not known.
        place: where reading begins; None: at the first segment that is kept.
        spill: where bodies of large transactions go.
        accept_gaps: see `OutletLog`.

    Attributes:
        log: what was read.
    """

    def __init__(
        self,
        storage: Storage,
        sent: Position = NOTHING,
        founding: str = "",
        place: Place | None = None,
        spill: Spill | None = None,
        *,
        accept_gaps: bool = False,
    ) -> None:
        self._storage = storage
        self._founding = founding
        self._tail = JournalTail(storage, place)
        self.log = OutletLog(sent, spill, accept_gaps=accept_gaps)
        self._notes = OutletNotes(self.log)

    @property
    def broker(self) -> str:
        """Id of the broker whose journal it is; "" before anything was read."""
        identity = self._tail.identity
        return identity.broker_id if identity is not None else ""

    @property
    def group(self) -> str:
        """Id of its group, likewise."""
        identity = self._tail.identity
        return identity.group_id if identity is not None else ""

    def units(self) -> Iterator[list[Unit]]:
        """Units that are applied behind ``sent`` and the last call, a frame's at a time, perhaps none; ends where the journal does.

        Raises:
            OutletGapError: the journal does not hold everything; this reader is of no more use.
            NoJournalError, JournalDamagedError, JournalFormatError, NewerJournalError, WrongIdentityError: as `FeedReader`.
        """
        log = self.log
        for each in self._tail.frames():
            if isinstance(each, bytes):
                self._take(each)
            elif isinstance(each, SegmentsGone):
                log.forget()
            yield log.take_units()

    def applied_upto(self, stable: int, epoch: int, founding: str) -> list[Unit]:
        """The broker says that its log is stable up to ``stable``; see the head of this file.

        Args:
            stable: offset.
            epoch: newest epoch of the broker's log when it said so. A log of another one may have been rewritten: passed over.
            founding: of the group; likewise.
        """
        context = self.log.context
        if epoch == context.epoch and founding in ("", context.founding):
            self.log.advance(min(stable, context.end))
        return self.log.take_units()

    def _check_founding(self) -> None:
        found = self.log.context.founding
        if self._founding and found and found != self._founding:
            raise OtherFoundingError(self._founding, found)

    def _take(self, frame: bytes) -> None:
        tail = self._tail
        segment = tail.segment
        assert segment is not None
        try:
            if frame[3] == frames.BATCH_MAGIC[3]:
                self.log.batch(frame)
            else:
                self._notes.take(frame[5], frame[frames.NOTE_HEADER_BYTES :])
                self._check_founding()
        except (UnknownKindError, UnknownNoteError, NoteFormatError, UnknownMessageError) as error:
            tail.put_back()
            raise NewerJournalError(
                f"journal {self._storage}: {segment.name}, byte {tail.frame_at}: {error}"
            ) from error

    def find_damage(self) -> None:
        """See whether what looks like the end of the journal is damage.

        Raises:
            JournalDamagedError: it is.
        """
        self._tail.find_damage()

    def close(self) -> None:
        """Close the segment file."""
        self._tail.close()
