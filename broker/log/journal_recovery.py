"""Recovery: what is in the files after whatever happened, and whether it may be believed.

`recover` reads every frame of every segment in order, hands it to a visitor, repairs the tail, and returns the journal.
`scan` does the reading only: it is `understudy journal check`, works on a live directory, and changes nothing.

**What may be missing.** A power failure may lose any of the 512-byte sectors that were written and not yet synced,
keep any others, and tear one; an unsynced create, rename or remove may or may not have happened. So the tail of a
journal may have holes: of a group of frames that was in flight, the third may be there and the first not. What was
synced is there, or the disk has broken its word. The question at the first bad frame is therefore: was this ever
synced? If not, it is a *torn tail*: nobody was told, and it is cut. If so, it is *damage*: records that somebody was
told of are gone, and only a human may decide to go on (`JournalDamagedError`).

**The argument.** At most one SyncJob is in flight, a job writes its segments one after the other, and each group is
synced before the next one is begun. Hence:

1. Of all groups, only the last one that left a byte on the disk can be unsynced.
2. Any byte of a later group proves an earlier group synced. Since segments are full of zeros before they are written
   to, "any byte" means: any non-zero byte beyond the end of that group. (The footer is no such byte: it is written
   with the last group of its segment.)
3. The existence of a later segment's file proves everything in the segment before it synced, footer included, for
   the file is made only then.
4. A segment's header, and its name, are synced before its first group is written. A newest segment without a good
   header is therefore either all zeros behind it, a leftover of making it, or damaged.

So at a bad frame at byte p:

- inside group s, whose note told its end: if the next block holds the note of s+1 and says that s ends at p, a
  recovery has cut s here. Otherwise, if a later segment exists, or a note of a later group anywhere behind p, or
  anything but zeros between the end of s and the footer: damage. Otherwise: torn, cut at p.
- where the note of group s+1 should stand: if a later segment exists, its header tells whether s+1 should be here:
  damage if so, the end of the segment if not. In the newest segment, if all is zero up to the footer: the clean end.
  If a note of a group after s+1 stands behind p: damage to the note of s+1. Otherwise s+1 was being written, and its
  note is among what was lost: torn, cut at p.

The one case that cannot be told apart: damage to the last group *after* it was synced looks like a torn tail. It is
kept small: closing a journal, and recovery itself, end with an empty group, which proves the one before it; so this
concerns only the last group before a crash.

**The cut.** What is cut is overwritten with zeros, up to the end of the file, and synced. Otherwise its remains could
later stand right behind a new torn tail, at the place and with the checksum of a valid frame, and would come back to
life. Then an empty group is written where the next one is due. Its note says that the frames before it end at p:
whoever reads this again knows that the missing rest of group s was cut on purpose, and that everything up to p is
synced. For this note each segment keeps one block that ordinary groups may not use.

**What was read was perhaps not synced.** After the death of the process alone, or after a failed fsync, the page cache
holds what the disk may not, and may hold it as clean. So the last group is written again, byte for byte, before it is
synced, and so are the zeros behind a torn one: those that are read may be of a repair whose fsync failed. Until they are
synced the tail is to be seen as torn: the block that the closing group goes to is not overwritten before (`_blank`). Every
step of the repair may be interrupted and is then done again. The directory is synced before anything else: a void segment
that a dead process has removed could be back after a power failure, and would prove a footer that the repair has wiped.

**A floor counts when its group is whole.** A group that was torn was not synced, so no segment was removed on its strength.
A new segment that lets go of all others (`Journal.begin_anew`) may have lost its checkpoint, and then they are the journal.

Refused: looking for any valid frame behind the damage (takes the hole in an unsynced group for damage, and a frame
inside a message's body for a frame); the synced end in a separate file (a second sync for each group); truncating the
file (its blocks are then allocated anew under load, and the next sync pays for it).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log.body_place import frame_place
from understudy.broker.log.frame import FRAME_VERSION, KIND_CUT, KIND_GROUP, KIND_TIMED_GROUP, NOTE_MAGIC, BatchHeader
from understudy.broker.log.journal import (
    CheckpointSource,
    CutMark,
    Journal,
    JournalFailedError,
    JournalOptions,
    JournalState,
)
from understudy.broker.log.journal_state import EndedLog, WallClock, no_clock
from understudy.broker.log.segment import (
    CHECK_COMMAND,
    GROUP_BYTES,
    SEGMENT_HEADER_BYTES,
    Footer,
    FrameReader,
    GroupHeader,
    JournalDamagedError,
    JournalFormatError,
    JournalIdentity,
    Place,
    Segment,
    SegmentHeader,
    WrongIdentityError,
    align_up,
    first_nonzero,
    later_group,
    segment_name,
    segment_number,
)
from understudy.broker.log.storage import REPAIR_NAME, SPARE_NAME, File, Storage

_CHUNK_BYTES: Final = 1 << 20
_TORN: Final = b"TORN"
"""Stands where the closing group is due until a torn tail has been overwritten."""


class FrameVisitor(Protocol):
    """The receiver of the frames, each once, in the order in which they were appended."""

    def on_batch(self, header: BatchHeader, frame: bytes) -> None:
        """A BATCH frame. A later CUT note may say that it is dead."""

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        """A CUT note or one of the owner's own kinds, and its place (`body_place.frame_place`); 0 if that is not known."""


@attrs.frozen(kw_only=True)
class TornTail:
    """A tail that was, or by `scan` would be, cut.

    Args:
        file: the segment file.
        position: byte where the journal now ends.
        reason: what was wrong there.
    """

    file: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} ends with a torn group, cut at byte {self.position}: {self.reason}"


@attrs.frozen(kw_only=True)
class ScanReport:
    """The findings of a scan.

    Args:
        segments: how many segment files hold something.
        bytes: their total size.
        groups, batches, notes: how many of each; notes are without group notes.
        first_offset: of the first live batch; None if there is none.
        last_offset: of the last live batch, or of a cut behind it.
        torn: the tail that is no part of the journal; None if it ends cleanly.
        warnings: oddities that lost nothing, for the log.
        doubt: why files behind the last one may be missing, "" if that is not so. A power failure during a roll looks like that,
            too, so this is for operators, and nothing is decided by it.
    """

    segments: int
    bytes: int
    groups: int
    batches: int
    notes: int
    first_offset: int | None
    last_offset: int
    torn: TornTail | None
    warnings: tuple[str, ...]
    doubt: str = ""


class Recovered(NamedTuple):
    """A journal ready to be appended to, and what was found on the way."""

    journal: Journal
    report: ScanReport


def scan(storage: Storage, visitor: FrameVisitor, identity: JournalIdentity | None = None) -> ScanReport:
    """Read the whole journal and change nothing.

    On a directory in use by a live broker the tail is in motion: a torn tail then means little.

    Args:
        storage: the directory; may be open for reading only.
        visitor: shown every frame.
        identity: whose journal it should be; None: anybody's, but one and the same in all segments.

    Raises:
        JournalDamagedError, JournalFormatError, WrongIdentityError: as for `recover`.
    """
    found = JournalScan(storage, visitor, identity, JournalOptions().index_interval_bytes)
    found.run()
    return found.report()


def recover(
    storage: Storage,
    identity: JournalIdentity,
    options: JournalOptions,
    visitor: FrameVisitor,
    *,
    checkpoint: CheckpointSource | None = None,
    wall_ms: WallClock | None = None,
) -> Recovered:
    """Read the whole journal, repair its tail, and return it ready for appending. An empty directory is an empty journal.

    Everything that the visitor was shown is durable when this returns. If it raises, nothing has been changed, unless
    it was the disk that failed; what the visitor was shown must then be forgotten.

    Args:
        storage: the directory, locked by the caller.
        identity: whose journal it must be.
        options: for what will be written; what is there may have been written with others.
        visitor: shown every frame; memory stays bounded by the largest frame.
        checkpoint: see `Journal`.
        wall_ms: likewise.

    Raises:
        JournalDamagedError: something that was once synced is not there.
        JournalFormatError: a segment, or a frame, is of a newer format.
        WrongIdentityError: another group's or broker's journal.
        OSError: from the disk, while it was read.
        JournalFailedError: from the disk, while the tail was repaired.
    """
    found = JournalScan(storage, visitor, identity, options.index_interval_bytes)
    found.run()
    state = found.state
    try:
        storage.sync_directory()  # a process that died may have removed a file: its name must not come back behind the repair
        _remove(storage, [found.void, SPARE_NAME])
        if state.segments:
            _repair(storage, state, found, wall_ms or no_clock)
        _remove(storage, found.dropped)  # now the group that lets go of them is on the disk for certain
    except OSError as error:
        raise JournalFailedError(f"{storage}: the tail could not be repaired: {error}") from error
    journal = Journal(storage, identity, options, checkpoint=checkpoint, state=state, wall_ms=wall_ms)
    return Recovered(journal, found.report())


def sealed_octets(storage: Storage) -> int:
    """About how many octets a start will read: those of all segments but the newest, which is perhaps not full."""
    numbers = sorted(number for name in storage.names() if (number := segment_number(name)) is not None)
    octets = 0
    for number in numbers[:-1]:
        file = storage.open(segment_name(number))
        try:
            octets += file.size
        finally:
            file.close()
    return octets


class JournalScan:
    """One pass over the segments, for `scan`, `recover` and the survey of a damaged journal (`journal_damage`).

    Attributes:
        state: what a journal goes on from, growing.
        void: a newest segment file that holds nothing and must be removed.
        dropped: segment files below the durable floor, whose removal was cut short. They are not read: without those that
            are gone already, what they say may be half of a thing.
        torn: as in the report.
        tail_group: where the last group's note stands, in the last segment; None if that segment has no group.
    """

    def __init__(
        self, storage: Storage, visitor: FrameVisitor, identity: JournalIdentity | None, index_interval: int
    ) -> None:
        self._index_interval = index_interval
        self._storage = storage
        self._visitor = visitor
        self._identity = identity
        self.state = JournalState()
        self.void: str | None = None
        self.dropped: list[str] = []
        self.torn: TornTail | None = None
        self.tail_group: int | None = None
        self.doubt = ""
        self._warnings: list[str] = []
        self._groups = self._batches = self._notes = 0

    def run(self) -> None:
        names = self._storage.names()
        if REPAIR_NAME in names:
            again = f"`{CHECK_COMMAND} --repair {self._storage}` finishes it"
            raise self._damaged(REPAIR_NAME, 0, f"a repair of this journal was begun and is not finished: {again}")
        numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
        for number, following in pairwise(numbers):
            if following != number + 1:
                reason = f"the file is missing; {segment_name(following)} is there"
                raise self._damaged(segment_name(number + 1), 0, reason)
        headers = [self._header(number, newest=number == numbers[-1], first=number == numbers[0]) for number in numbers]
        good = [header for header in headers if header is not None]
        # A group lets go of segments before its own, so of the only one never.
        floor = max(self._floor_in(header) for header in good[-2:]) if len(good) > 1 else 0
        self.dropped = [segment_name(header.number) for header in good if header.number < floor]
        good = good[len(self.dropped) :]
        for at, header in enumerate(good):
            following_sequence = good[at + 1].first_sequence if at + 1 < len(good) else None
            self._segment(header, following_sequence, newest=header.number == numbers[-1])
        if good and good[0].number > self.state.floor:
            reason = f"the file is missing; segments from {self.state.floor} on are needed"
            raise self._damaged(segment_name(good[0].number - 1), 0, reason)
        self.state.go_on_behind(good[-1].number if good else 0)

    def report(self) -> ScanReport:
        segments = self.state.segments
        return ScanReport(
            segments=len(segments),
            bytes=sum(segment.size_bytes for segment in segments),
            groups=self._groups,
            batches=self._batches,
            notes=self._notes,
            first_offset=next((each.first_offset for each in segments if each.first_offset is not None), None),
            last_offset=self.state.last_offset,
            torn=self.torn,
            warnings=tuple(self._warnings),
            doubt=self.doubt,
        )

    def _damaged(self, name: str, position: int, reason: str) -> JournalDamagedError:
        return JournalDamagedError(self._storage, name, position, reason)

    # -- segment ------------------------------------------------------------------------------------------------------

    def _header(self, number: int, *, newest: bool, first: bool) -> SegmentHeader | None:
        """The header of segment `number`; None if that is the newest and was never written to."""
        name = segment_name(number)
        file = self._storage.open(name)
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), f"journal {self._storage}: {name}")
            size = file.size
            if header is None:
                # A journal's only segment with a number above 1 is never void: its predecessors were removed on the
                # strength of a group in it.
                if newest and (number == 1 or not first) and first_nonzero(file, SEGMENT_HEADER_BYTES, size) is None:
                    self.void = name
                    return None
                raise self._damaged(name, 0, "the segment header is damaged")
        finally:
            file.close()
        if header.number != number:
            raise self._damaged(name, 0, f"this is segment {header.number} under another name")
        if header.size_bytes != size:
            reason = f"the file has {size} bytes instead of {header.size_bytes}"
            raise self._damaged(name, min(size, header.size_bytes), reason)
        self._check_identity(header, name)
        return header

    def _check_identity(self, header: SegmentHeader, name: str) -> None:
        self._identity = expected = self._identity or header.identity
        place = f"journal {self._storage}: {name}"
        if header.identity.group_id != expected.group_id:
            raise WrongIdentityError(place, "the group", header.identity.group_id, expected.group_id)
        if header.identity.broker_id != expected.broker_id:
            raise WrongIdentityError(place, "the broker", header.identity.broker_id, expected.broker_id)

    def _segment(self, header: SegmentHeader, following_sequence: int | None, *, newest: bool) -> None:
        """Read one segment.

        Args:
            header: its header.
            following_sequence: sequence number with which the next segment begins; None if there is none, or a void one.
            newest: there is no file after it, not even a void one.
        """
        state = self.state
        segment = Segment.from_header(header)
        state.begin_segment(segment)
        self.tail_group = None
        file = self._storage.open(segment.name)
        try:
            reader = FrameReader(file, segment.name)
            while self.torn is None and (group := self._next_group(file, reader, segment, newest=newest)) is not None:
                self._group(file, reader, segment, group, newest=newest)
            segment.read_whole()
            if not newest:
                self._check_end(file, segment, following_sequence)
            if following_sequence is None and self.torn is None:
                self._look_for_successor(file, segment)
        finally:
            file.close()

    def _check_end(self, file: File, segment: Segment, following_sequence: int | None) -> None:
        """The end of a segment that another file follows: all its groups must be there."""
        sequence = self.state.sequence
        if following_sequence is not None and following_sequence != sequence + 1:
            raise self._damaged(
                segment.name,
                segment.next_group,
                f"group {sequence + 1} is missing; the next segment begins with group {following_sequence}",
            )
        footer = Footer.read(file, segment.footer_at)
        agrees = footer is not None and footer[:4] == segment.footer()[:4]
        if (
            following_sequence is None
        ):  # a void segment follows: its file proves the footer, and this one is active again
            if not agrees:
                raise self._damaged(segment.name, segment.footer_at, "the footer does not agree with the frames")
            return
        segment.settle(index_in_footer=agrees)
        if not agrees:
            self._warnings.append(f"{segment.name}: no good footer; its index stays in memory")

    def _look_for_successor(self, file: File, segment: Segment) -> None:
        """The last segment that holds something: a footer says that it is full, and that the next one was begun, or about to be."""
        footer = Footer.read(file, segment.footer_at)
        if footer is not None and footer[:4] == segment.footer()[:4]:
            there = "holds nothing" if self.void else "is not there"
            self.doubt = f"{segment.name} is sealed, and {segment_name(segment.number + 1)} {there}"

    # -- group --------------------------------------------------------------------------------------------------------

    def _floor_in(self, header: SegmentHeader) -> int:
        """The floor that the last whole group of a segment states; 0 if it has none. Hardly more than the groups' notes is read."""
        segment = Segment.from_header(header)
        file = self._storage.open(segment.name)
        try:
            reader = FrameReader(file, segment.name)
            floor = 0
            group = self._group_at(reader, segment, segment.next_group)
            while group is not None:
                following = self._group_after(reader, segment, group)
                if following is not None or group.floor == floor or _is_whole(reader, group):
                    floor = group.floor
                group = following
            return floor
        finally:
            file.close()

    def _group_after(self, reader: FrameReader, segment: Segment, group: GroupHeader) -> GroupHeader | None:
        """The group behind this one: where it ends, or before, if an earlier recovery cut it short."""
        step = segment.alignment
        for position in (align_up(group.end, step), *range(align_up(group.start, step), group.end, step)):
            following = self._group_at(reader, segment, position) if position < segment.footer_at else None
            if following is not None and following.sequence == group.sequence + 1:
                return following
        return None

    def _next_group(self, file: File, reader: FrameReader, segment: Segment, *, newest: bool) -> GroupHeader | None:
        """The group that follows what has been read of `segment`; None at its end, torn or clean."""
        state = self.state
        position = segment.next_group
        group = self._group_at(reader, segment, position)
        if group is not None:
            if group.sequence == state.sequence + 1 and group.previous_end == state.previous_end:
                return group
            raise self._damaged(
                segment.name,
                position,
                f"group {group.sequence} behind byte {group.previous_end}, where group {state.sequence + 1}"
                f" behind byte {state.previous_end} is due",
            )
        if not newest:
            return None  # _check_end sees whether there should have been one
        nonzero = first_nonzero(file, position, segment.footer_at)
        if nonzero is not None:
            later = later_group(file, segment, position, state.sequence + 1)
            if later is not None:
                raise self._damaged(
                    segment.name, position, f"the note of group {state.sequence + 1}; group {later} follows it"
                )
            self.torn = TornTail(
                file=segment.name,
                position=position,
                reason=f"the note of group {state.sequence + 1} was not written; other bytes of it were, from {nonzero} on",
            )
        return None

    def _group_at(self, reader: FrameReader, segment: Segment, position: int) -> GroupHeader | None:
        buf = reader.bytes_at(position, GROUP_BYTES, segment.footer_at)
        group = GroupHeader.decode(buf, segment.number, position, segment.salt)
        return group if group is not None and group.end <= segment.footer_at else None

    def _group(self, file: File, reader: FrameReader, segment: Segment, group: GroupHeader, *, newest: bool) -> None:
        state = self.state
        floor = state.floor
        state.group_read(group.sequence, group.floor)
        self.tail_group = group.position
        self._groups += 1
        position = group.start
        segment.begin_group(position)
        group_end = group.end
        while position < group_end:
            try:
                frame = reader.frame_at(position, group_end)
                is_note = frame.startswith(NOTE_MAGIC)
                if is_note and frame[5] in (KIND_GROUP, KIND_TIMED_GROUP):
                    raise frames.CorruptFrameError(Place(segment.name, position), "a group note inside a group")
            except frames.FrameVersionError as error:
                raise JournalFormatError(error.place, "frame version", error.version, FRAME_VERSION) from error
            except frames.CorruptFrameError as error:
                self._bad_frame(file, reader, segment, group, str(error), newest=newest)
                break
            if is_note:
                self._note(frame, segment, position)
            else:
                self._batch(frame, segment, position)
            position += len(frame)
            segment.add_frame(position)
        state.group_ends(position, empty=position == group.start)
        if self.torn is not None:
            state.floor_is(floor)  # no segment was removed on the strength of a group that was not synced

    def _bad_frame(
        self, file: File, reader: FrameReader, segment: Segment, group: GroupHeader, reason: str, *, newest: bool
    ) -> None:
        """The frame at `segment.end`, inside `group`, is bad: cut earlier on purpose, torn now, or damaged?"""
        position = segment.end
        following = self._group_at(reader, segment, segment.next_group)
        if following is not None and following.sequence == group.sequence + 1 and following.previous_end == position:
            return
        if not newest:
            raise self._damaged(segment.name, position, f"{reason}; a later segment exists")
        later = later_group(file, segment, segment.next_group, group.sequence)
        if later is not None:
            raise self._damaged(segment.name, position, f"{reason}; group {later} stands behind it")
        # The block after the good frames is left out: a recovery may have died while it wrote its closing note there.
        start = max(align_up(group.end, segment.alignment), segment.next_group + segment.alignment)
        beyond = first_nonzero(file, start, segment.footer_at)
        if beyond is not None:
            raise self._damaged(segment.name, position, f"{reason}; a later group has left bytes at {beyond}")
        self.torn = TornTail(file=segment.name, position=position, reason=reason)

    # -- frame --------------------------------------------------------------------------------------------------------

    def _note(self, frame: bytes, segment: Segment, position: int) -> None:
        kind, payload = frame[5], frame[frames.NOTE_HEADER_BYTES :]
        self._notes += 1
        if kind == KIND_CUT:
            self._cut(payload, segment, position)
        elif kind >= frames.FIRST_BOUND_KIND:
            self.state.bound_in(segment.number)
        self._visitor.on_note(kind, payload, frame_place(segment.number, position))

    def _batch(self, frame: bytes, segment: Segment, position: int) -> None:
        header = frames.header_of_verified(frame)
        self._batches += 1
        last_offset = header.last_offset
        segment.add_batch(header.first_offset, last_offset, position, self._index_interval)
        self.state.last_offset = last_offset
        self._visitor.on_batch(header, frame)

    def _cut(self, payload: bytes, segment: Segment, position: int) -> None:
        offset, _ = frames.decode_cut(payload)
        state = self.state
        if not offset:
            state.ended_logs.append(EndedLog.at(state.segments, state.cuts, segment.number, position))
        state.cuts.append(CutMark(segment.number, position, offset))
        for each in state.segments:
            each.cut(offset)
        state.last_offset = min(state.last_offset, offset)


def _is_whole(reader: FrameReader, group: GroupHeader) -> bool:
    """True unless a frame of ``group`` is bad: a group that lets go of segments counts when its frames are there."""
    position = group.start
    try:
        while position < group.end:
            position += len(reader.frame_at(position, group.end))
    except frames.CorruptFrameError:
        return False
    except frames.FrameVersionError:
        return True
    return True


# -- repair -----------------------------------------------------------------------------------------------------------


def _remove(storage: Storage, leftovers: Iterable[str | None]) -> None:
    """Remove a segment that was never written to, the spare (was it filled to its end?), or what a drop left behind.

    One after the other, as in a `DropJob`: of what was dropped, a missing file must never stand between others.
    """
    there = storage.names()
    for name in leftovers:
        if name is not None and name in there:
            storage.remove(name)
            storage.sync_directory()


def _repair(storage: Storage, state: JournalState, found: JournalScan, wall_ms: WallClock) -> None:
    """Make the last segment end where the scan ended, durably, and open it for appending."""
    segment = state.segments[-1]
    file = segment.file = storage.open(segment.name)
    if found.torn is not None:
        _blank(file, segment)
    else:
        _wipe(file, segment.end, segment.size_bytes)
    _write_again(file, found.tail_group if found.tail_group is not None else 0, segment.end)
    file.sync()
    if state.proven and found.torn is None:
        return
    closing = GroupHeader(
        sequence=state.next_sequence(),
        segment=segment.number,
        position=segment.next_group,
        length=0,
        previous_end=state.previous_end,
        floor=state.floor,
        salt=segment.salt,
        wall_ms=wall_ms(),
    )
    file.write([closing.encode(segment.format).ljust(segment.alignment, b"\0")], closing.position)
    file.sync()
    segment.end_at(closing.end)
    state.group_ends(closing.end, empty=True)


def _blank(file: File, segment: Segment) -> None:
    """Overwrite with zeros what follows the last good frame, even where zeros are read: they may be in the cache alone.

    But for the block that the closing group will fill: until that is written, something in it says that the tail is torn.
    """
    mark = segment.next_group
    behind = mark + segment.alignment
    if mark > segment.end:
        file.write([bytes(mark - segment.end)], segment.end)
    if first_nonzero(file, mark, behind) is None:
        file.write([_TORN], mark)
    file.fill(behind, segment.size_bytes - behind)


def _wipe(file: File, start: int, end: int) -> None:
    """Overwrite with zeros whatever is not zero in [start, end)."""
    while (at := first_nonzero(file, start, end)) is not None:
        start = min(at + _CHUNK_BYTES, end)
        file.write([bytes(start - at)], at)


def _write_again(file: File, start: int, end: int) -> None:
    """Write the same bytes where they are, so that the next sync means them: see the head of this file."""
    for at in range(start, end, _CHUNK_BYTES):
        file.write([file.read(at, min(_CHUNK_BYTES, end - at))], at)
