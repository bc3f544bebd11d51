"""Known bugs of the store, each of which the cuts, the flips or the faults must find. Their form is that of the simulator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.power_cuts.faults import FaultyFile
from tests.simulator.mutations.mutation import Bug, Mutation, mutation
from understudy.broker.core.life.compaction import Compaction
from understudy.broker.core.queues.messages_again import MessagesAgain, Unsettled
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_reader, journal_recovery, journal_tail, segment
from understudy.broker.log.again_note import AgainNote, SettledNote
from understudy.broker.log.journal import Journal
from understudy.broker.log.journal_reader import JournalReader
from understudy.broker.log.journal_recovery import JournalScan
from understudy.broker.log.journal_tail import JournalTail
from understudy.broker.log.segment import FrameReader, GroupHeader, JournalDamagedError, Segment, align_up
from understudy.broker.log.segment_floor import SegmentFloor
from understudy.broker.log.spare_segment import SpareSegment
from understudy.broker.log.storage import SPARE_NAME, DropJob, File, NewSegment, Storage, SyncJob

CUT, TAIL, FLIP, READ, FAULT, BROKER = "cut", "tail", "flip", "read", "fault", "broker"
"""Found by: short lives, tails over power cuts, starts and reads with a flipped bit, errors of the disk, a broker that compacts."""


# -- writing ----------------------------------------------------------------------------------------------------------


@mutation(CUT)
def groups_are_not_synced(bug: Bug) -> None:
    """A group counts as durable when it is written."""

    def run(self: SyncJob) -> None:
        self.ran = True
        for step in self.steps:
            step.file = file = step.file or self._make(step.name, step.new)
            for at, chunks in step.writes:
                file.write(chunks, at)
            bug.strike()

    bug.replace(SyncJob, "run", run)


@mutation(CUT)
def segments_are_synced_at_the_end_of_a_job(bug: Bug) -> None:
    """A job writes a sealed segment and the one behind it before it syncs either."""

    def run(self: SyncJob) -> None:
        self.ran = True
        for step in self.steps:
            step.file = file = step.file or self._make(step.name, step.new)
            for at, chunks in step.writes:
                file.write(chunks, at)
        if len(self.steps) > 1:
            bug.strike()
        for step in self.steps:
            assert step.file is not None
            step.file.sync()

    bug.replace(SyncJob, "run", run)


def _make_without(bug: Bug, *, header: bool = True, sync: bool = True, directory: bool = True) -> None:
    def make(self: SyncJob, name: str, new: NewSegment | None) -> File:
        assert new is not None
        storage = self._storage
        bug.strike()
        if new.from_spare:
            storage.rename(SPARE_NAME, name)
            file = storage.open(name)
        else:
            file = self._create(name, new.size_bytes, zeroed=new.zeroed)
        if header:
            file.write([new.header], 0)
        if sync:
            file.sync()
        if directory:
            storage.sync_directory()
        if not header:
            file.write([new.header], 0)
        return file

    bug.replace(SyncJob, "_make", make)


@mutation(CUT)
def the_name_of_a_segment_is_not_synced(bug: Bug) -> None:
    """Groups are written to a segment whose name may go."""
    _make_without(bug, directory=False)


@mutation(CUT)
def a_header_is_synced_with_the_first_group(bug: Bug) -> None:
    """The header of a segment is written when its name is durable, and synced with its first group."""
    _make_without(bug, header=False)


@mutation(CUT)
def a_spare_of_another_process_is_used(bug: Bug) -> None:
    """A start keeps the spare segment that it finds, though it may have been made in part only."""
    real_remove, real_init = journal_recovery._remove, SpareSegment.__init__

    def remove(storage: Storage, leftovers: Any) -> None:
        real_remove(storage, [name for name in leftovers if name != SPARE_NAME])

    def init(self: SpareSegment, storage: Storage, size_bytes: int) -> None:
        real_init(self, storage, size_bytes)
        self.ready = SPARE_NAME in storage.names()
        if self.ready:
            bug.strike()

    bug.replace(journal_recovery, "_remove", remove)
    bug.replace(SpareSegment, "__init__", init)


@mutation(CUT)
def a_closing_group_stands_in_a_block_of_frames(bug: Bug) -> None:
    """The closing group of a start is written over the end of the torn group, which is not wiped."""

    def blank(file: File, torn: Segment) -> None:
        bug.strike()

    bug.replace(journal_recovery, "_blank", blank)


# -- dropping ---------------------------------------------------------------------------------------------------------


@mutation(CUT)
def segments_go_before_their_floor_is_durable(bug: Bug) -> None:
    """Segments are removed as soon as they are not needed, before a group has said so."""
    real = SegmentFloor.begin

    def begin(self: SegmentFloor) -> DropJob | None:
        if self.wanted > self.durable:
            bug.strike()
        self.durable = self.wanted
        return real(self)

    real_request = Journal.request_drop

    def request_drop(self: Journal, offset: int, hold: Any = None) -> bool:
        due = real_request(self, offset, hold)
        job = self.begin_drop()
        if job is not None:
            job.run()
            self.finish_drop(job)
        return due

    bug.replace(SegmentFloor, "begin", begin)
    bug.replace(Journal, "request_drop", request_drop)


@mutation(CUT)
def removals_are_synced_together(bug: Bug) -> None:
    """Of several segments that go, a newer one may be gone and an older one be there."""

    def run(self: DropJob) -> None:
        if len(self._names) > 1:
            bug.strike()
        for name in self._names:
            self._storage.remove(name)
        self._storage.sync_directory()

    bug.replace(DropJob, "run", run)


@mutation(CUT)
def the_newest_dead_segment_goes_first(bug: Bug) -> None:
    """Dead segments are removed from the newest on."""

    def run(self: DropJob) -> None:
        if len(self._names) > 1:
            bug.strike()
        for name in reversed(self._names):
            self._storage.remove(name)
            self._storage.sync_directory()

    bug.replace(DropJob, "run", run)


@mutation(CUT)
def a_torn_group_lets_go_of_segments(bug: Bug) -> None:
    """A start believes the floor of a group whose frames are torn away: a journal that begins anew is lost with its checkpoint."""
    real = JournalScan._group

    def whole(reader: FrameReader, group: GroupHeader) -> bool:
        return True

    def read(
        self: JournalScan, file: File, reader: FrameReader, at: Segment, group: GroupHeader, *, newest: bool
    ) -> None:
        before = self.state.floor
        real(self, file, reader, at, group, newest=newest)
        if self.torn is not None and group.floor > before:
            bug.strike()
            self.state.floor = group.floor

    bug.replace(journal_recovery, "_is_whole", whole)
    bug.replace(JournalScan, "_group", read)


# -- starting ---------------------------------------------------------------------------------------------------------


def _repair_with(
    bug: Bug, *, wipe: bool = True, again: bool = True, sync: bool = True, closing: bool = True, first: bool = False
) -> None:
    """Put a repair of the tail that leaves out something, or writes the closing group ``first``."""

    def repair(storage: Storage, state: Any, found: JournalScan, wall_ms: Any) -> None:
        torn = state.segments[-1]
        file = torn.file = storage.open(torn.name)
        bug.strike()
        note = GroupHeader(
            sequence=state.sequence + 1,
            segment=torn.number,
            position=torn.next_group,
            length=0,
            previous_end=state.previous_end,
            floor=state.floor,
            salt=torn.salt,
        )
        due = closing and (not state.proven or found.torn is not None)
        block = note.encode(torn.format).ljust(torn.alignment, b"\0")
        if due and first:
            file.write([block], note.position)
        if wipe and found.torn is not None and first:
            file.fill(note.position + torn.alignment, torn.size_bytes - note.position - torn.alignment)
        elif wipe and found.torn is not None:
            journal_recovery._blank(file, torn)
        elif wipe:
            journal_recovery._wipe(file, torn.end, torn.size_bytes)
        if again:
            journal_recovery._write_again(file, found.tail_group or 0, torn.end)
        if sync:
            file.sync()
        if due:
            state.next_sequence()
            if not first:
                file.write([block], note.position)
            if sync:
                file.sync()
            torn.end_at(note.end)
            state.group_ends(note.end, empty=True)

    bug.replace(journal_recovery, "_repair", repair)


@mutation(CUT)
def what_was_read_is_not_written_again(bug: Bug) -> None:
    """A start believes what it reads though only the cache may hold it."""
    _repair_with(bug, again=False)


@mutation(CUT)
def a_repair_is_not_synced(bug: Bug) -> None:
    """A start syncs nothing of what it repairs."""
    _repair_with(bug, sync=False)


@mutation(CUT)
def a_torn_tail_has_no_closing_group(bug: Bug) -> None:
    """A start wipes a torn tail, and nothing says where the group was cut."""
    _repair_with(bug, closing=False)


@mutation(CUT)
def a_closing_group_is_written_before_the_tail_is_wiped(bug: Bug) -> None:
    """The closing group and the zeros behind it are synced together."""
    _repair_with(bug, first=True)


@mutation(CUT)
def a_good_frame_behind_a_bad_one_is_damage(bug: Bug) -> None:
    """A start looks for a good frame behind a bad one, and takes a hole in a torn group for damage."""
    real = JournalScan._bad_frame

    def bad_frame(
        self: JournalScan,
        file: File,
        reader: FrameReader,
        at: Segment,
        group: GroupHeader,
        reason: str,
        *,
        newest: bool,
    ) -> None:
        for position in range(at.end + 1, group.end):
            data = file.read(position, group.end - position)
            if frames.sound_frame_end(data, memoryview(data), 0):
                bug.strike()
                raise self._damaged(at.name, at.end, "a good frame stands behind it")
        real(self, file, reader, at, group, reason, newest=newest)

    bug.replace(JournalScan, "_bad_frame", bad_frame)


@mutation(CUT)
def dropped_segments_go_before_the_tail_is_repaired(bug: Bug) -> None:
    """A start removes what a group lets go before that group is durable for certain."""
    real = journal_recovery._repair

    def repair(storage: Storage, state: Any, found: JournalScan, wall_ms: Any) -> None:
        if found.dropped:
            bug.strike()
        journal_recovery._remove(storage, found.dropped)
        found.dropped = []
        real(storage, state, found, wall_ms)

    bug.replace(journal_recovery, "_repair", repair)


class _FirstSyncLeftOut:
    """A disk that does nothing when the directory is to be synced for the first time."""

    def __init__(self, storage: Storage, bug: Bug) -> None:
        self._storage = storage
        self._bug: Bug | None = bug

    def sync_directory(self) -> None:
        if self._bug is None:
            self._storage.sync_directory()
        else:
            self._bug.strike()
        self._bug = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


@mutation(CUT)
def names_are_not_synced_by_a_start(bug: Bug) -> None:
    """A void segment that a dead process has removed is back behind the footer that a start has wiped."""
    real = journal_recovery.recover

    def recover(storage: Storage, *args: Any, **named: Any) -> Any:
        return real(_FirstSyncLeftOut(storage, bug), *args, **named)

    bug.replace(journal_recovery, "recover", recover)


# -- reading ----------------------------------------------------------------------------------------------------------


@mutation(FLIP)
def no_later_group_is_looked_for(bug: Bug) -> None:
    """A start takes damage before good groups for a torn tail."""

    def later_group(file: File, at: Segment, start: int, sequence: int) -> int | None:
        if segment.later_group(file, at, start, sequence) is not None:
            bug.strike()
        return None

    def nonzero(file: File, start: int, end: int) -> int | None:
        bug.strike()
        return None

    bug.replace(journal_recovery, "later_group", later_group)
    bug.replace(journal_recovery, "first_nonzero", nonzero)


@mutation(FLIP)
def checksums_of_frames_are_not_compared(bug: Bug) -> None:
    """A frame whose length and magic number are right is believed."""

    def sound_frame_end(buf: bytes, view: memoryview, at: int) -> int:
        try:
            end = at + frames.frame_length(buf, at)
        except frames.CorruptFrameError:
            return 0
        bug.strike()
        return end if end <= len(buf) else 0

    bug.replace(frames, "sound_frame_end", sound_frame_end)


@mutation(READ)
def what_is_no_frame_is_passed_over(bug: Bug) -> None:
    """A read goes on with the next block where no frame begins, whatever stands there."""

    def read_frames(storage: Storage, at: segment.Readable, position: int, limit: int) -> Iterator[tuple[bytes, int]]:
        file = storage.open(at.name)
        reader = FrameReader(file, at.name)
        while position < limit:
            if reader.bytes_at(position, 3, limit) != b"USL":
                position = align_up(position + 1, at.alignment)
                bug.strike()
                if position >= limit:
                    return
            try:
                frame = reader.frame_at(position, limit)
            except frames.FrameError as error:
                raise JournalDamagedError(storage, at.name, position, str(error)) from error
            yield frame, position
            position += len(frame)

    real = JournalReader._batches

    def batches(self: JournalReader, from_offset: int) -> Iterator[bytes]:
        try:
            yield from real(self, from_offset)
        except JournalDamagedError as error:
            if "is not before this one" not in error.reason:
                raise

    bug.replace(journal_reader, "read_frames", read_frames)
    bug.replace(JournalReader, "_batches", batches)


@mutation(READ)
def a_body_is_not_verified(bug: Bug) -> None:
    """A body is read from a frame whose checksum is not looked at."""

    def frame_at(self: FrameReader, position: int, limit: int) -> bytes:
        length = frames.frame_length(self.bytes_at(position, frames.BATCH_HEADER_BYTES, limit))
        bug.strike()
        return self.bytes_at(position, length, limit)

    bug.replace(FrameReader, "frame_at", frame_at)


@mutation(FAULT)
def an_error_of_a_read_is_the_end(bug: Bug) -> None:
    """Octets that cannot be read count as zeros: a torn tail."""
    real = FaultyFile.read

    def read(self: FaultyFile, at: int, length: int) -> bytes:
        try:
            return real(self, at, length)
        except OSError:
            bug.strike()
            return bytes(max(min(length, self.size - at), 0))

    bug.replace(FaultyFile, "read", read)


@mutation(FAULT)
def an_error_of_a_sync_is_tried_again(bug: Bug) -> None:
    """A failed fsync is repeated, and its second answer is believed."""
    real = SyncJob.run

    def run(self: SyncJob) -> None:
        try:
            real(self)
        except OSError:
            if self.makes_segment:
                raise
            bug.strike()
            self.error = None
            for step in self.steps:
                assert step.file is not None
                step.file.sync()

    bug.replace(SyncJob, "run", run)


@mutation(FAULT)
def a_write_that_stops_short_is_enough(bug: Bug) -> None:
    """A write that fails behind its first part counts as done."""
    real = FaultyFile.write

    def write(self: FaultyFile, chunks: Any, at: int) -> None:
        try:
            real(self, chunks, at)
        except OSError:
            bug.strike()

    bug.replace(FaultyFile, "write", write)


@mutation(FLIP)
def a_clean_end_has_no_closing_group(bug: Bug) -> None:
    """A journal that was closed ends with its last frames: damage to them looks like a torn tail."""
    real = Journal.close

    def close(self: Journal) -> None:
        if not self._proven:
            bug.strike()
            self.sync_now()
            self._proven = True
        real(self)

    bug.replace(Journal, "close", close)


@mutation(TAIL)
def a_tail_goes_on_behind_what_was_cut(bug: Bug) -> None:
    """A tail believes its place though the group that it has read was cut before that place."""

    def end_of(file: File, at: Segment, group: GroupHeader) -> int:
        bug.strike()
        return group.end

    bug.replace(journal_tail, "_end_of", end_of)


@mutation(TAIL)
def a_closing_group_is_a_frame_to_a_tail(bug: Bug) -> None:
    """A tail yields the note of a closing group, which stands where the next frame of a torn group would."""

    def frame(self: JournalTail, reader: FrameReader) -> bytes:
        bug.strike()
        return reader.frame_at(self._position, self._group_end)

    bug.replace(JournalTail, "_frame", frame)


@mutation(TAIL)
def a_place_has_no_proof(bug: Bug) -> None:
    """A tail compares the salt of a segment alone, and no checksum of the group that it has read."""

    def proof_of(note: bytes) -> int:
        bug.strike()
        return 0

    bug.replace(journal_tail, "_proof_of", proof_of)


# -- compaction -------------------------------------------------------------------------------------------------------


@mutation(BROKER)
def settled_notes_name_nothing(bug: Bug) -> None:
    """A SETTLED note says neither which messages have left nor which have come back."""
    real = MessagesAgain.end_of

    def end_of(unsettled: Unsettled, queues: Mapping[int, Queue], applied: int) -> SettledNote:
        settled = real(unsettled, queues, applied)
        bug.strike()
        return settled._replace(known=[], gone=[])

    bug.replace(MessagesAgain, "end_of", staticmethod(end_of))


@mutation(BROKER)
def the_last_message_of_a_note_is_left_out(bug: Bug) -> None:
    """A note of several messages written again lacks one of them."""
    real = AgainNote.encode

    def encode(self: AgainNote) -> bytes:
        if len(self.messages) > 1:
            bug.strike()
            return real(self._replace(messages=self.messages[:-1]))
        return real(self)

    bug.replace(AgainNote, "encode", encode)


@mutation(BROKER)
def a_note_is_no_bound(bug: Bug) -> None:
    """Segments before a note of messages written again go while records there may still take back what it says."""
    real = MessagesAgain.oldest_needed

    def oldest_needed(self: MessagesAgain, end: int) -> int:
        if real(self, end) != end:
            bug.strike()
        return end

    bug.replace(MessagesAgain, "oldest_needed", oldest_needed)
    bug.replace(Compaction, "_settle", _settle_at_once(bug))


def _settle_at_once(bug: Bug) -> Callable[[Compaction], bool]:
    real = Compaction._settle

    def settle(self: Compaction) -> bool:
        first = self._state.first_unresolved()
        for unsettled in self._state.again.unsettled.values():
            if unsettled.settled_after >= first:
                bug.strike()
                unsettled.settled_after = 0
        return real(self)

    return settle


STORE_MUTATIONS: dict[str, Mutation] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Mutation)
}
