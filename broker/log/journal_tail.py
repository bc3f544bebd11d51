"""JournalTail: reads a journal while its broker writes it, or after it died, and changes nothing.

It takes no lock and works over the storage port, so it reads simulated disks too. What it yields, in file order:

    SegmentBegun   a segment is read from its beginning, or from the place where the tail was told to go on
    bytes          a whole, undamaged frame (batch or note), group notes excluded
    SegmentsGone   the journal has dropped segments that were not read yet

`frames` ends where nothing more can be read now; called again later, it goes on there.

**The end of what is there.** A frame that is not whole is waited for: its group is being written, or the broker died over it. When
that broker starts again, its recovery keeps the whole frames of the torn group, and the note of the next group says where they end
(`segment`, `previous_end`): the tail goes on behind them, as every later recovery does.

**Damage** is told from an end as `journal_recovery` does: by what stands behind it. A next segment that begins with a later group
than the one that is due proves at once that something is missing. Within the newest segment `find_damage` looks for a later group;
that reads the rest of the segment, so the caller asks for it rarely. Each looks twice: the broker may have written what is due
between the two reads.

**What is read may not be synced yet**: a group is written, then fsynced. A power failure in between may take it away, and another
group is written there later. `Place.proof` recognises that when a reader goes on: it is the checksum of the group's note. If the
power failure has taken a part of the group, the note of the next group says so: the place lies behind the end that it states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log.frame import FRAME_VERSION, KIND_GROUP, KIND_TIMED_GROUP, NOTE_HEADER_BYTES, NOTE_MAGIC
from understudy.broker.log.segment import (
    GROUP_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameReader,
    GroupHeader,
    JournalDamagedError,
    JournalFormatError,
    JournalIdentity,
    NoJournalError,
    Segment,
    SegmentHeader,
    WrongIdentityError,
    align_up,
    first_nonzero,
    later_group,
    segment_name,
    segment_number,
)
from understudy.broker.log.storage import File, Storage

_PROOF_AT: Final = NOTE_HEADER_BYTES - 4


class SegmentBegun(NamedTuple):
    """The frames that follow are of this segment."""

    header: SegmentHeader


class SegmentsGone(NamedTuple):
    """Segments between these two are not there any more: ``last`` was read last (0: none), ``first`` is the first that is kept.

    With ``rewritten`` they are, but hold something else than what was read.
    """

    last: int
    first: int
    rewritten: bool = False


@attrs.frozen(kw_only=True)
class Place:
    """Between two frames of a journal.

    Attributes:
        segment, salt: number and salt of the segment file.
        position: byte where the next frame or group begins.
        group: byte where the last group begins of which something was read; 0 if none was.
        proof: checksum of that group's note.
    """

    segment: int
    salt: int
    position: int
    group: int
    proof: int


class JournalTail:
    """Follows one journal.

    Args:
        storage: the directory; may be open for reading only.
        place: where to go on; None: at the first segment that is kept.

    Attributes:
        identity: whose journal it is; None before a header was read.
        group: the group of the frame that was yielded last.
        frame_at: byte where that frame begins.
    """

    def __init__(self, storage: Storage, place: Place | None = None) -> None:
        self._storage = storage
        self._resume = place
        self.identity: JournalIdentity | None = None
        self.group: GroupHeader | None = None
        self.frame_at = 0
        self._segment: Segment | None = None
        self._file: File | None = None
        self._reader: FrameReader | None = None
        self._sequence = 0
        self._position = 0
        self._group_end = 0
        self._proof = 0
        self._searched = (0, 0)
        self._void = 0
        self._due: list[SegmentBegun | SegmentsGone] = []

    @property
    def segment(self) -> Segment | None:
        """The segment that is being read; None before the first."""
        return self._segment

    def place(self) -> Place | None:
        """Behind the last frame that was yielded; None before the first segment."""
        segment, group = self._segment, self.group
        if segment is None:
            return self._resume
        return Place(
            segment=segment.number,
            salt=segment.salt,
            position=self._position,
            group=group.position if group is not None else 0,
            proof=self._proof,
        )

    def put_back(self) -> None:
        """Stand in front of the frame that was yielded last: it is yielded again, by this tail or by one that goes on there."""
        self._position = self.frame_at

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- frames -------------------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[bytes | SegmentBegun | SegmentsGone]:
        """Frames and changes of segments that can be read now.

        Raises:
            JournalDamagedError: what stands there was synced once and is not what was written.
            JournalFormatError: it was written by a newer program.
            WrongIdentityError: segments of two brokers.
        """
        if self._segment is None:
            self._begin()
            if self._segment is None:
                return
        while True:
            while self._due:
                yield self._due.pop(0)
            yield from self._groups()
            later = self._later()
            if not later:
                return
            segment = self._segment
            if self._more():  # its broker has written that after it was looked for
                continue
            header = self._header(later[0])
            if header is None:
                return
            gone = SegmentsGone(segment.number, later[0]) if later[0] > segment.number + 1 else None
            if gone is None and (header.first_sequence != self._sequence + 1 or self.torn):
                raise self._missing(f"the next segment begins with group {header.first_sequence}")
            self._go_to(header, gone)

    def _groups(self) -> Iterator[bytes]:
        """The frames of the present segment, as far as they are there."""
        segment, reader = self._segment, self._reader
        assert segment is not None
        assert reader is not None
        while True:
            while self._position < self._group_end:
                try:
                    frame = self._frame(reader)
                except frames.FrameVersionError as error:
                    place = f"journal {self._storage}: {segment.name}, byte {self._position}"
                    raise JournalFormatError(place, "frame version", error.version, FRAME_VERSION) from error
                except frames.CorruptFrameError:
                    break
                self.frame_at = self._position
                self._position += len(frame)
                yield frame
            found = self._next_group()
            if found is None:
                reader.forget()
                return
            self._enter(*found)

    def _frame(self, reader: FrameReader) -> bytes:
        """The frame that is due in the group.

        Raises:
            CorruptFrameError: it is not whole; or a recovery has cut the group there, and the note of the next group stands there.
            FrameVersionError: a newer program has written it.
        """
        frame = reader.frame_at(self._position, self._group_end)
        if frame.startswith(NOTE_MAGIC) and frame[5] in (KIND_GROUP, KIND_TIMED_GROUP):
            raise frames.CorruptFrameError(self._position, "a group note inside a group")
        return frame

    def _next_group(self) -> tuple[GroupHeader, int] | None:
        """The note of the group that is due behind the last whole frame, read anew, and its checksum; None if it is not there.

        Nothing is entered: the place stays where it is.
        """
        segment, file = self._segment, self._file
        assert segment is not None
        assert file is not None
        position = align_up(self._position, segment.alignment)
        if position >= segment.footer_at:
            return None
        note = file.read(position, GROUP_BYTES)
        group = GroupHeader.decode(note, segment.number, position, segment.salt)
        if group is None or group.sequence != self._sequence + 1 or group.end > segment.footer_at:
            return None
        first = group.sequence == segment.first_sequence
        if not first and group.previous_end != self._position:
            return None  # the rest of the group before it is not there yet, though this one is
        return group, _proof_of(note)

    def _enter(self, group: GroupHeader, proof: int) -> None:
        self.group = group
        self._proof = proof
        self._sequence = group.sequence
        self._position = group.start
        self._group_end = group.end

    # -- segments -----------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        return sorted(number for name in self._storage.names() if (number := segment_number(name)) is not None)

    def _begin(self) -> None:
        numbers = self._numbers()
        if not numbers:
            raise NoJournalError(f"there is no journal in {self._storage}: no file is named like {segment_name(1)}")
        place = self._resume
        gone = SegmentsGone(0, numbers[0]) if numbers[0] > 1 else None
        if place is not None:
            header = self._header(place.segment) if place.segment in numbers else None
            if header is not None and header.salt == place.salt and self._go_on_at(header, place):
                self._due = [SegmentBegun(header)]
                return
            rewritten = header is not None or place.segment > numbers[-1]
            gone = SegmentsGone(place.segment, numbers[0], rewritten)
        header = self._header(numbers[0])
        if header is None:
            return
        if self._go_to(header, gone):
            self._resume = None

    def _go_on_at(self, header: SegmentHeader, place: Place) -> bool:
        """Open the segment at ``place``; False if the journal there is not the one that was read."""
        if not self._open(header):
            return False
        segment, file = self._segment, self._file
        assert segment is not None
        assert file is not None
        if not place.group:
            return True
        note = file.read(place.group, GROUP_BYTES)
        group = GroupHeader.decode(note, segment.number, place.group, segment.salt)
        if group is None or _proof_of(note) != place.proof or place.position > _end_of(file, segment, group):
            self.close()
            self._segment = None
            return False
        self._enter(group, place.proof)
        self._position = place.position
        return True

    def _header(self, number: int) -> SegmentHeader | None:
        """The header of a segment; None if it is not whole yet, or was never written."""
        name = segment_name(number)
        try:
            file = self._storage.open(name)
        except (FileNotFoundError, KeyError):
            return None  # dropped since it was listed
        try:
            head = file.read(0, SEGMENT_HEADER_BYTES)
            header = SegmentHeader.decode(head, f"journal {self._storage}: {name}, byte 0")
        finally:
            file.close()
        if header is None:
            if number < self._numbers()[-1]:
                raise JournalDamagedError(self._storage, name, 0, "the segment header is damaged")
            return None
        if header.number != number:
            raise JournalDamagedError(self._storage, name, 0, f"this is segment {header.number} under another name")
        self._check_identity(header, name)
        return header

    def _check_identity(self, header: SegmentHeader, name: str) -> None:
        expected = self.identity = self.identity or header.identity
        place = f"journal {self._storage}: {name}"
        if header.identity.group_id != expected.group_id:
            raise WrongIdentityError(place, "the group", header.identity.group_id, expected.group_id)
        if header.identity.broker_id != expected.broker_id:
            raise WrongIdentityError(place, "the broker", header.identity.broker_id, expected.broker_id)

    def _go_to(self, header: SegmentHeader, gone: SegmentsGone | None) -> bool:
        """Read a segment from its beginning; False, and nothing has changed, if it has been dropped since its header was read."""
        if not self._open(header):
            return False
        if gone is not None:
            self._due.append(gone)
        self._due.append(SegmentBegun(header))
        return True

    def _open(self, header: SegmentHeader) -> bool:
        try:
            file = self._storage.open(segment_name(header.number))
        except (FileNotFoundError, KeyError):
            return False
        self.close()
        self._file = file
        segment = self._segment = Segment.from_header(header)
        self._reader = FrameReader(file, segment.name)
        self._sequence = header.first_sequence - 1
        self._position = self._group_end = segment.data_start
        self.group = None
        self._proof = 0
        return True

    def _later(self) -> list[int]:
        """Numbers of the segments behind the present one."""
        assert self._segment is not None
        return [number for number in self._numbers() if number > self._segment.number]

    def _more(self) -> bool:
        """True if something follows in the present segment, read anew."""
        assert self._reader is not None
        self._reader.forget()
        if self._next_group() is not None:
            return True
        try:
            self._frame(self._reader)
        except frames.CorruptFrameError:
            return False
        return True

    def _missing(self, proof: str) -> JournalDamagedError:
        assert self._segment is not None
        due = f"the rest of group {self._sequence}" if self.torn else f"group {self._sequence + 1}"
        return JournalDamagedError(
            self._storage, self._segment.name, self._position, f"{due} is damaged or missing; {proof}"
        )

    # -- damage -------------------------------------------------------------------------------------------------------

    def find_damage(self) -> None:
        """See whether something stands behind the place where nothing more could be read; a place is looked at once.

        That is a later group in this segment, or what was written into the next one, whose header is none.

        Raises:
            JournalDamagedError: it does.
        """
        segment, file = self._segment, self._file
        self._find_damaged_header(segment.number if segment is not None else 0)
        if segment is None or file is None or self._searched == (segment.number, self._position):
            return
        due = (
            self._sequence if self.torn else self._sequence + 1
        )  # behind a group that is not whole, the next one proves it
        later = later_group(file, segment, align_up(self._position, segment.alignment), due)
        if later is None:
            self._searched = (segment.number, self._position)
        elif not self._more():
            raise self._missing(f"group {later} stands behind it")

    def _find_damaged_header(self, read: int) -> None:
        """The same of the segment behind number ``read``. One that is made just now has zeros behind its header."""
        number = next((number for number in self._numbers() if number > read), 0)
        if not number or number == self._void:
            return
        name = segment_name(number)
        try:
            file = self._storage.open(name)
        except (FileNotFoundError, KeyError):
            return  # dropped since it was listed
        try:
            void = first_nonzero(file, SEGMENT_HEADER_BYTES, file.size) is None
            # Read anew: what stands behind it may have been written since the header was read.
            head = file.read(0, SEGMENT_HEADER_BYTES)
        finally:
            file.close()
        if void:
            self._void = number
        elif SegmentHeader.decode(head, f"journal {self._storage}: {name}") is None:
            raise JournalDamagedError(self._storage, name, 0, "the segment header is damaged")

    @property
    def torn(self) -> bool:
        """True if the last group that was begun is not whole: it is being written, or its broker died over it."""
        return self._position < self._group_end


def _end_of(file: File, segment: Segment, group: GroupHeader) -> int:
    """Where the frames of ``group`` end: before its stated end if a recovery has cut it."""
    step = segment.alignment
    for at in (align_up(group.end, step), *range(align_up(group.start, step), group.end, step)):
        following = GroupHeader.decode(file.read(at, GROUP_BYTES), segment.number, at, segment.salt)
        if following is not None and following.sequence == group.sequence + 1:
            return following.previous_end
    return group.end


def _proof_of(note: bytes) -> int:
    """Checksum of a group's note."""
    return int.from_bytes(note[_PROOF_AT:NOTE_HEADER_BYTES], "big")
