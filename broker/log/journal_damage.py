"""The survey of a damaged journal: where it can be cut, and what stands behind the cut.

**A cut is safe only where a crash could have been.** The frames before the damage are a journal that a crash has ended there,
if no segment is missing that they need. The floor of the last good group names the oldest segment that they need. Older segments
may have gone since, on the strength of groups behind the damage: a later record took their last messages, or an AGAIN note wrote
them again. Then the frames before the damage are no state, and nothing of the journal can be kept.

**A segment begins with a checkpoint.** So a segment of which not even the first frame is good is not cut but set aside whole.

What stands behind the cut is counted as far as it can be read. Nothing of it is kept: it may need what the damage has taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate, record
from understudy.broker.log.frame import KIND_CUT, KIND_GROUP, KIND_TIMED_GROUP, NOTE_HEADER_BYTES, NOTE_MAGIC
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import JournalScan, scan
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.log.segment import (
    GROUP_BYTES,
    MIN_SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameReader,
    GroupHeader,
    JournalDamagedError,
    JournalError,
    SegmentHeader,
    align_up,
    segment_name,
    segment_number,
)
from understudy.broker.log.storage import REPAIR_NAME, Storage

_U32_BYTES: Final = 4
_FLAGS: Final = ~record.TRANSIENT
_MESSAGES: Final = frozenset((record.ENQUEUE, record.TX_ENQUEUE, record.TX_ENQUEUE_TIMED, record.TX_ENQUEUE_PARTED))
_TRANSACTIONAL: Final = frozenset(
    (
        *(record.TX_ENQUEUE, record.TX_ENQUEUE_TIMED, record.TX_ENQUEUE_PARTED, record.TX_DEQUEUE),
        *(record.TX_BODY_PART, record.PREPARE, record.COMMIT, record.ROLLBACK),
        *(record.DTX_PREPARE, record.DTX_ROLLBACK),
    )
)
"""Kinds whose payload begins with the id of a transaction."""
EpochOf = Callable[[int, bytes], int]
"""The highest epoch that a plugin's note, of this kind and payload, says to have been seen; 0 if the note is about none."""


def of_no_plugin(_kind: int, _payload: bytes) -> int:
    """An `EpochOf` for a reader that asks for no epochs."""
    return 0


class Count:
    """Counts the frames that it is shown.

    Attributes:
        records: how many of each kind, by name.
        messages: records that bring a message.
        transactions: ids of the transactions with a record.
        epoch: the highest of a batch or note.
        last_offset: the highest of a batch.
        of_group: notes of a plugin were among them, or a note of an earlier repair that says so.
        unreadable_frames: frames that were passed over by their length.
    """

    def __init__(self, epoch_of: EpochOf = of_no_plugin) -> None:
        self._epoch_of = epoch_of
        self.records: Counter[str] = Counter()
        self.messages = 0
        self.transactions: set[int] = set()
        self.epoch = 0
        self.last_offset = 0
        self.of_group = False
        self.unreadable_frames = 0

    def on_batch(self, header: frames.BatchHeader, frame: bytes) -> None:
        """Count the records of a BATCH frame."""
        self.epoch = max(self.epoch, header.epoch)
        self.last_offset = max(self.last_offset, header.last_offset)
        at = frames.BATCH_HEADER_BYTES
        while at + record.HEAD.size <= len(frame):
            byte, length = record.HEAD.unpack_from(frame, at)
            kind = byte & _FLAGS
            at += record.HEAD.size
            if kind == record.HOLE:
                self.records[record.KIND_NAMES[kind]] += int.from_bytes(frame[at : at + _U32_BYTES], "big")
            else:
                self.records[record.KIND_NAMES.get(kind, f"unknown kind {kind}")] += 1
                self.messages += kind in _MESSAGES
                if kind in _TRANSACTIONAL:
                    self.transactions.add(int.from_bytes(frame[at : at + 8], "big"))
            at += length

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        """See if a plugin has written the note, which epoch it says, and what an earlier repair has said.

        Raises:
            NoteFormatError: a newer program has repaired this journal.
        """
        if kind == journal_gate.CHECKPOINT:
            self.of_group = self.of_group or payload[:_U32_BYTES] > bytes(_U32_BYTES)
        elif kind == KIND_CUT:
            self.of_group = self.of_group or journal_gate.JournalGate.restarted_at(payload[8:]) is not None
        elif kind == journal_gate.REPAIRED:
            note = RepairedNote.decode(payload)
            self.epoch = max(self.epoch, note.epoch)
            self.of_group = self.of_group or note.of_group
        elif kind >= frames.FIRST_OWNER_KIND and kind not in journal_gate.OWN_KINDS:
            self.of_group = True
            self.epoch = max(self.epoch, self._epoch_of(kind, payload))


@attrs.frozen(kw_only=True)
class Cut:
    """The place where a damaged journal can be cut.

    Attributes:
        segment: the last segment that is kept in part or whole; 0: no state stands before the damage, and nothing is kept.
        position: byte in it after the last frame that is kept.
        sequence: of the last group that is kept.
        floor: segments below this number are not needed.
        offset: the last log offset that is kept.
    """

    segment: int
    position: int = 0
    sequence: int = 0
    floor: int = 1
    offset: int = 0


@attrs.frozen(kw_only=True)
class Survey:
    """A damaged journal.

    Attributes:
        damage: as a start finds it.
        cut: the place where the journal can be cut.
        before: what stands before the damage.
        lost: what can be read behind the cut; with nothing kept, all that can be read.
        aside: numbers of the segments that a repair sets aside.
    """

    damage: JournalDamagedError
    cut: Cut
    before: Count
    lost: Count
    aside: list[int]

    def __str__(self) -> str:
        lost, cut = self.lost, self.cut
        what = "nothing that can be read"
        if lost.last_offset:
            records = f"{sum(lost.records.values()):,} readable records up to offset {lost.last_offset:,}"
            what = f"{records}, with {lost.messages:,} messages and of {len(lost.transactions):,} transactions"
        if not cut.segment:
            return f"what stands before the damage is no state, so a repair keeps nothing; lost with it: {what}"
        return f"the log can be kept up to offset {cut.offset:,}; lost behind it: {what}, and what cannot be read"

    @property
    def error(self) -> JournalDamagedError:
        """The damage with what a repair would lose."""
        return self.damage.with_loss(str(self))


def survey(
    storage: Storage, damage: JournalDamagedError | None = None, epoch_of: EpochOf = of_no_plugin
) -> Survey | None:
    """Look at a journal as a start would; None if a start would take it.

    Nothing is changed. The directory should be locked: what a broker writes meanwhile may look like damage.

    Args:
        storage: the directory.
        damage: as a scan has found it; None: not known.
        epoch_of: of notes of plugins; without it their epochs are not counted.

    Raises:
        JournalDamagedError: an earlier repair has not been finished, and says where to cut.
        NoteFormatError: a newer program has repaired this journal.
        JournalFormatError, WrongIdentityError: as for ``journal_recovery.scan``.
    """
    damage = damage or _damage(storage)
    if damage is None:
        return None
    if damage.file == REPAIR_NAME:
        raise damage
    before, lost = Count(epoch_of), Count(epoch_of)
    cut = _Prefix(storage, before).cut()
    numbers = segment_numbers(storage)
    aside = [number for number in numbers if number >= cut.segment]
    for number in aside:
        _Behind(storage, number, numbers, lost).read(cut.position if number == cut.segment else 0)
    return Survey(damage=damage, cut=cut, before=before, lost=lost, aside=aside)


def _damage(storage: Storage) -> JournalDamagedError | None:
    try:
        scan(storage, Count())
    except JournalDamagedError as error:
        return error
    return None


def with_loss(storage: Storage, error: JournalDamagedError) -> JournalDamagedError:
    """The error of a start, with what a repair would keep and lose as far as that can be read."""
    try:
        found = survey(storage, error)
    except (JournalError, journal_gate.NoteFormatError, OSError):
        return error
    return found.error if found is not None else error


def segment_numbers(storage: Storage) -> list[int]:
    """The numbers of the segment files in a directory, ascending."""
    return sorted(number for name in storage.names() if (number := segment_number(name)) is not None)


class _Prefix(JournalScan):
    """A scan that ends where the damage begins, and then says where to cut."""

    def __init__(self, storage: Storage, visitor: Count) -> None:
        super().__init__(storage, visitor, None, JournalOptions().index_interval_bytes)

    def cut(self) -> Cut:
        """Read up to the damage."""
        numbers = segment_numbers(self._storage)
        headers = self._good_headers(numbers)
        if not headers:
            return Cut(segment=0)
        floor = max(self._floor_in(header) for header in headers[-2:]) if len(headers) > 1 else 0
        kept = [header for header in headers if header.number >= floor]
        try:
            for at, header in enumerate(kept):
                following = kept[at + 1].first_sequence if at + 1 < len(kept) else None
                self._segment(header, following, newest=header.number == numbers[-1])
        except JournalDamagedError:
            pass  # the segments and groups that were read are in the state
        return self._cut_at_end(kept)

    def _good_headers(self, numbers: list[int]) -> list[SegmentHeader]:
        """The headers of the first segments, up to a file that is missing or has none."""
        headers: list[SegmentHeader] = []
        follows = [True, *(one + 1 == other for one, other in pairwise(numbers))]
        for number, is_next in zip(numbers, follows, strict=True):
            if not is_next:
                break
            try:
                header = self._header(number, newest=number == numbers[-1], first=number == numbers[0])
            except JournalDamagedError:
                header = self._header_of_wrong_length(number)
                headers += [header] if header is not None else []
                break
            if header is None:
                break
            headers.append(header)
        return headers

    def _header_of_wrong_length(self, number: int) -> SegmentHeader | None:
        """The header of a file that is too short or too long; None if it is not that."""
        name = segment_name(number)
        file = self._storage.open(name)
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
        finally:
            file.close()
        if header is None or header.number != number:
            return None
        self._check_identity(header, name)
        return header

    def _cut_at_end(self, headers: list[SegmentHeader]) -> Cut:
        """The cut behind the last frame that was read."""
        state = self.state
        segments = list(state.segments)
        sequence, floor = state.sequence, state.floor
        if segments and not segments[-1].frame_count:
            sequence = segments.pop().first_sequence - 1
            if segments:
                floor = self._floor_in(headers[len(segments) - 1])
        if not segments or not segments[0].number <= floor <= segments[-1].number:
            return Cut(segment=0)
        last = segments[-1]
        return Cut(segment=last.number, position=last.end, sequence=sequence, floor=floor, offset=state.last_offset)


class _Behind:
    """Shows a count the frames of one segment file that can be read, whatever stands between them."""

    def __init__(self, storage: Storage, number: int, numbers: list[int], count: Count) -> None:
        self._storage = storage
        self._number = number
        self._numbers = numbers
        self._count = count

    def read(self, position: int) -> None:
        """Read from byte ``position`` on, 0: from the first group."""
        try:
            file = self._storage.open(segment_name(self._number))
        except FileNotFoundError:
            return  # a link that leads nowhere
        try:
            header, own = self._layout()
            alignment = header.alignment if header is not None else MIN_SEGMENT_BYTES
            limit = file.size - (header.footer_bytes if header is not None else 0)
            reader = FrameReader(file, segment_name(self._number))
            at = position or align_up(SEGMENT_HEADER_BYTES, alignment)
            if position:
                at = align_up(self._frames(reader, at, limit), alignment)
            salt = header.salt if header is not None and own else None
            while at < limit:
                group = GroupHeader.decode(reader.bytes_at(at, GROUP_BYTES, limit), self._number, at, salt)
                end = self._frames(reader, group.start, min(group.end, limit)) if group is not None else at
                at = align_up(max(end, at + 1), alignment)
        finally:
            file.close()

    def _layout(self) -> tuple[SegmentHeader | None, bool]:
        """The segment's header, or that of a neighbour, which has the same layout; and if it is its own."""
        for number in sorted(self._numbers, key=lambda each: abs(each - self._number)):
            try:
                file = self._storage.open(segment_name(number))
            except FileNotFoundError:
                continue
            try:
                header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), segment_name(number))
            finally:
                file.close()
            if header is not None:
                return header, number == self._number
        return None, False

    def _frames(self, reader: FrameReader, at: int, limit: int) -> int:
        """Show the frames from ``at`` on; returns where they end. A bad frame is passed over if another stands where it says."""
        while at < limit:
            try:
                frame = reader.frame_at(at, limit)
            except frames.FrameVersionError:
                return at
            except frames.CorruptFrameError:
                following = self._stated_end(reader, at, limit)
                if not following:
                    return at
                self._count.unreadable_frames += 1
                at = following
                continue
            if frame.startswith(NOTE_MAGIC):
                if frame[5] in (KIND_GROUP, KIND_TIMED_GROUP):
                    return at
                self._count.on_note(frame[5], frame[NOTE_HEADER_BYTES:])
            else:
                self._count.on_batch(frames.header_of_verified(frame), frame)
            at += len(frame)
        return at

    def _stated_end(self, reader: FrameReader, at: int, limit: int) -> int:
        """Where the bad frame at ``at`` says that it ends, if a good frame stands there; else 0."""
        try:
            end = at + frames.frame_length(reader.bytes_at(at, frames.BATCH_HEADER_BYTES, limit))
            reader.frame_at(end, limit)
        except frames.FrameError:
            return 0
        return end
