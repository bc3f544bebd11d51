"""The journal: append frames, make them durable a group at a time, read them again, forget the dead ones.

Its owner appends whole frames, once a turn or so, and a driver runs the disk:

    journal.append(frame)               buffers; never touches the disk
    job = journal.begin_sync()          all that is buffered becomes one group; None: nothing to do, or one is in flight
    job.run()                           in a thread: write, fdatasync
    journal.finish_sync(job, error)     on the loop again: now `durable` and `durable_offset` say what is kept

At most one job is in flight; what is appended meanwhile is the next group. That is all there is to group commit, and
it is also what recovery's argument rests on (`journal_recovery`).

**Frames get their place when they are appended**, not when the group is closed. So a roll happens inside `append`, at
a definite point of the owner's own history: the checkpoint that the owner is asked for describes exactly what was
appended before. Had `begin_sync` decided, the checkpoint would stand before frames whose effects it already contains.

**Roll.** A frame never spans segments. When one does not fit, the segment is sealed (its footer goes out with the
same job) and the next one begins with the owner's checkpoint, so that all notes in older segments may be forgotten. A
frame larger than a segment gets a segment of its own size. A segment that lost its first group in a crash, and its
checkpoint with it, gets a new one when it is next written to.

**Failure.** After a failed write or sync the journal is dead for this process: every call raises
`JournalFailedError`. A failed fsync is never retried, since the kernel drops the pages and reports success the second
time; the broker exits then.

**Log offsets** are the log's own: they count from 1, are contiguous and inclusive, and 0 is "before everything". A CUT
note (`frame.encode_cut`) kills the offsets after it; the next batch then goes on from the cut, or, after a cut to 0,
begins anywhere.

**Dropping** has two steps, because a missing file must never be taken for a dropped one: `request_drop` lets the next
group carry the new floor, and only when that is durable does `begin_drop` hand out the removal.

Refused: writing from `append` when the buffer grows (the group's length stands at its head); a thread in here (the core
has none, and the simulator must own the order of events); mmap (a full or failing disk then kills the process with a
signal). Whether a write goes through the page cache is the storage's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Final

from understudy.broker.log import frame as frames
from understudy.broker.log.body_place import frame_place
from understudy.broker.log.body_read import (
    ReadableSegment,
    ReadJob,
    WantedBody,
    readable_notes,
    readable_segments,
    wanted_by_log,
)
from understudy.broker.log.frame import KIND_CUT, FrameTooLargeError
from understudy.broker.log.journal_reader import BATCH_BYTE, BATCH_SPAN, BATCH_SPAN_AT, JournalReader
from understudy.broker.log.journal_state import (
    BodyNotKeptError,
    CheckpointSource,
    CutMark,
    EndedLog,
    Hold,
    JournalFailedError,
    JournalOptions,
    JournalOrderError,
    JournalState,
    JournalStatistics,
    Occupancy,
    OffsetNotKeptError,
    Piece,
    SealedSegment,
    WallClock,
    no_clock,
)
from understudy.broker.log.segment import (
    GROUP_BYTES,
    MIN_SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    Segment,
    align_up,
    encode_group,
    footer_bytes_for,
)
from understudy.broker.log.segment_floor import SegmentFloor
from understudy.broker.log.spare_segment import SpareSegment
from understudy.broker.log.storage import (
    DropJob,
    NewSegment,
    Reserve,
    ReserveState,
    SpareJob,
    Storage,
    SyncJob,
)
from understudy.broker.octets.chunks import as_chunks, flat

__all__ = [
    "BodyNotKeptError",
    "CheckpointSource",
    "CutMark",
    "Hold",
    "Journal",
    "JournalFailedError",
    "JournalOptions",
    "JournalOrderError",
    "JournalState",
    "JournalStatistics",
    "OffsetNotKeptError",
]

CHECKPOINT_FRACTION: Final = 4
"""A checkpoint, which begins a segment, takes up no more than one part in so many of it; else the segment is made larger."""
_KIND_AT = 5


class Journal:
    """An append-only sequence of frames in segment files. Made by `journal_recovery.recover`.

    Args:
        storage: the directory; locked by whoever made it.
        identity: whose journal it is.
        options: sizes.
        checkpoint: asked, inside `append`, for the NOTE frame that begins a new segment: everything the owner must
            still know when all frames before it are gone. None if there is nothing. It must not call the journal.
        state: from recovery.
        wall_ms: tells the wall clock, which each group states; None: none is known.

    Attributes:
        checkpoint: as above; may be set later, before the first roll.
        appended: how many frames were ever appended by this process, checkpoints included. After `append` it is
            that frame's ticket.
        durable: the highest ticket that is synced.
        last_offset: of the log as appended here.
        durable_offset: the last offset that is synced here and has not been cut.
        space_due: after a sync, whether `begin_spare` or `begin_drop` may have work; so that nobody asks after each sync.
        reserve: the preallocated file, and what is known of free space.

    Invariant: `durable <= appended`, `durable_offset <= last_offset`; at most one SyncJob is unfinished.
    """

    def __init__(
        self,
        storage: Storage,
        identity: JournalIdentity,
        options: JournalOptions,
        *,
        checkpoint: CheckpointSource | None = None,
        state: JournalState | None = None,
        wall_ms: WallClock | None = None,
    ) -> None:
        self._wall_ms = wall_ms or no_clock
        self.identity = identity
        self.options = options
        self.checkpoint = checkpoint
        self._storage = storage
        self._segment_bytes = align_up(options.segment_bytes, options.alignment_bytes)
        self._max_frame_bytes = options.max_frame_bytes
        self._index_interval_bytes = options.index_interval_bytes
        self._lock = storage.lock()
        state = state or JournalState()
        self._segments = state.segments
        self._cuts = state.cuts
        self._ended_logs = state.ended_logs
        self._next_segment = state.next_segment
        self._sequence = state.sequence
        self._previous_end = state.previous_end
        self._floor = SegmentFloor(storage, self._segments, self._cuts, state.floor, state.bound_segment)
        self._proven = state.proven
        self.last_offset = self.durable_offset = state.last_offset
        self.appended = self.durable = 0
        self.space_due = True
        self._piece: Piece | None = None
        self._pieces: list[Piece] = []
        self._flying: list[Piece] = []
        self._job: SyncJob | None = None
        self._spare = SpareSegment(storage, self._segment_bytes)
        self._failure: BaseException | None = None
        self._closed = False
        newest = self._segments[-1].size_bytes if self._segments else 0
        self.reserve = Reserve(storage, options.reserve_bytes, max(self._segment_bytes, newest))
        self._reads: list[ReadJob] = []
        self._reader = JournalReader(storage, self._segments, self._cuts, lambda: [*self._flying, *self._pieces])
        self._buffered_bytes = 0
        self._sync_jobs = self._fsyncs = self._written_bytes = self._largest_group = self._rolls = 0

    # -- append -------------------------------------------------------------------------------------------------------

    def take_checkpoints(self, checkpoint: CheckpointSource) -> None:
        """Begin segments with what ``checkpoint`` states: another core goes on with this journal."""
        self.checkpoint = checkpoint

    @property
    def dirty(self) -> bool:
        """True if `begin_sync` would have something to do once no job is in flight."""
        floor = self._floor
        return bool(self._pieces) or floor.wanted > floor.durable

    def append(self, frame: bytes) -> int:
        """Buffer one whole frame. It is durable when `durable` has reached the value that `appended` has now.

        Args:
            frame: as the functions of `frame` encode them; not checked again. A BATCH continues the log: it begins
                at or before `last_offset + 1` and ends there or later. After a cut to 0, or in an empty journal, it
                may begin anywhere.

        Returns:
            The place of the frame (`body_place.frame_place`).

        Raises:
            JournalFailedError: an earlier write failed.
            JournalOrderError: a batch that does not continue the log.
            FrameTooLargeError: longer than `options.max_frame_bytes`.
        """
        if self._failure is not None or self._closed:
            raise self._failed()
        length = len(frame)
        if length > self._max_frame_bytes:
            raise FrameTooLargeError(length, self._max_frame_bytes)
        if frame[3] != BATCH_BYTE:
            return self._append_note(frame, length)
        chunks = as_chunks(frame)
        first, count = BATCH_SPAN.unpack_from(frame if chunks is None else chunks.head, BATCH_SPAN_AT)
        last = first + count - 1
        if (last <= self.last_offset or first > self.last_offset + 1) and (self.last_offset or not count):
            raise JournalOrderError(
                f"batch {first}..{last} does not continue the log, which ends at {self.last_offset}"
            )
        piece = self._piece
        if piece is None or piece.end + length > piece.limit:
            piece = self._place(length)
        position = piece.end
        self._add(piece, frame, length)
        self.last_offset = last
        piece.segment.add_batch(first, last, position, self._index_interval_bytes)
        return frame_place(piece.segment.number, position)

    def _append_note(self, frame: bytes, length: int) -> int:
        kind = frame[_KIND_AT]
        assert kind >= frames.FIRST_OWNER_KIND or kind == KIND_CUT, f"note kind {kind} belongs to the journal"
        piece = self._piece
        if piece is None or piece.end + length > piece.limit:
            piece = self._place(length)
        position = piece.end
        self._add(piece, frame, length)
        if kind == KIND_CUT:
            self._cut(frame, piece.segment.number, position)
        elif kind >= frames.FIRST_BOUND_KIND:
            self._floor.bound_in(piece.segment.number)
        return frame_place(piece.segment.number, position)

    def _add(self, piece: Piece, frame: bytes, length: int) -> None:
        piece.segment.add_frame(piece.add(frame, length))
        self._buffered_bytes += length
        self.appended += 1

    def _cut(self, frame: bytes, segment: int, position: int) -> None:
        offset, _ = frames.decode_cut(frame[frames.NOTE_HEADER_BYTES :])
        if not offset:
            self._ended_logs.append(EndedLog.at(self._segments, self._cuts, segment, position))
        self._cuts.append(CutMark(segment, position, offset))
        self._cut_after(offset)

    def _cut_after(self, offset: int) -> None:
        for each in self._segments:
            each.cut(offset)
        self.last_offset = min(self.last_offset, offset)
        self.durable_offset = min(self.durable_offset, offset)
        if self._job is not None:  # what it makes durable of the part that was cut is not what will stand there
            self._job.last_offset = min(self._job.last_offset, offset)

    def _place(self, length: int) -> Piece:
        """A new piece for `length` bytes that do not go to the current one."""
        checkpoint = None
        if self._segments and self._piece is None:
            segment = self._segments[-1]
            if segment.frame_count == 0 and segment.number > 1:  # its first group was lost in a crash
                checkpoint = self._take_checkpoint()
            position = -(-segment.end // segment.alignment) * segment.alignment
            room = segment.data_limit - position - GROUP_BYTES - length
            if room >= (0 if checkpoint is None else len(checkpoint)):
                return self._begin_piece(segment, position, checkpoint, is_new=False)
        return self._roll(length, checkpoint)

    def _roll(self, length: int, checkpoint: bytes | None, least_bytes: int | None = None) -> Piece:
        first_sequence = self._sequence + 1 + sum(piece.grouped for piece in self._pieces)
        if self._segments:
            checkpoint = checkpoint or self._take_checkpoint()
            self._seal(self._segments[-1])
        align, interval = self.options.alignment_bytes, self.options.index_interval_bytes
        need = align_up(SEGMENT_HEADER_BYTES, align) + GROUP_BYTES + len(checkpoint or b"") + length + align
        least_bytes = self._segment_bytes if least_bytes is None else least_bytes
        size = max(least_bytes, align_up(CHECKPOINT_FRACTION * len(checkpoint or b""), align))
        while size - footer_bytes_for(size, align, interval) < need:
            size = align_up(need + footer_bytes_for(size, align, interval), align)
        footer_bytes = footer_bytes_for(size, align, interval)
        segment = Segment(self._next_segment, size, align, footer_bytes, first_sequence, self.options.salt)
        self._next_segment += 1
        self._segments.append(segment)
        self.reserve.begin_segment(size)
        return self._begin_piece(segment, segment.next_group, checkpoint, is_new=True)

    def _seal(self, segment: Segment) -> None:
        """Lay out the footer of `segment` behind whatever of it is buffered."""
        if self._piece is None:
            self._pieces.append(Piece(segment, segment.end, segment.data_limit, False, False))
        self._pieces[-1].end_with(segment.footer().encode())
        self._piece = None
        self._rolls += 1

    def _begin_piece(self, segment: Segment, position: int, checkpoint: bytes | None, *, is_new: bool) -> Piece:
        piece = self._piece = Piece(segment, position, segment.data_limit, True, is_new)
        self._pieces.append(piece)
        segment.begin_group(piece.end)
        if checkpoint is not None:
            self._add(piece, checkpoint, len(checkpoint))
        return piece

    def _take_checkpoint(self) -> bytes | None:
        checkpoint = self.checkpoint() if self.checkpoint is not None else None
        assert checkpoint is None or (
            checkpoint.startswith(frames.NOTE_MAGIC) and checkpoint[_KIND_AT] >= frames.FIRST_OWNER_KIND
        ), "a checkpoint is a note of the owner's"
        return checkpoint

    # -- sync ---------------------------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """Close everything buffered into a group and return the job that makes it durable.

        Returns:
            None if a job is in flight, or there is nothing to do.

        Raises:
            JournalFailedError: an earlier job failed.
        """
        if self._failure is not None or self._closed:
            raise self._failed()
        if self._job is not None:
            return None
        if not self._pieces:
            if self._floor.wanted == self._floor.durable:
                return None
            self._place(0)  # an empty group, for the floor it carries
        return self._begin_job()

    def _begin_job(self) -> SyncJob:
        pieces = self._flying = self._pieces
        self._floor.fly()
        self._pieces = []
        self._piece = None
        self._buffered_bytes = 0
        size = 0
        for piece in pieces:
            size += self._lay_out(piece)
        job = self._job = SyncJob(
            self._storage,
            self._lock,
            pieces,
            last_offset=self.last_offset,
            appended=self.appended,
            bytes_=size,
            can_release=self.reserve.state is ReserveState.HELD,
        )
        return job

    def _new_segment(self, segment: Segment) -> NewSegment:
        from_spare = self._spare.take(segment.size_bytes)
        return NewSegment(
            segment.header(self.identity).encode(),
            segment.size_bytes,
            from_spare=from_spare,
            zeroed=segment.size_bytes <= self._segment_bytes,
        )

    def _lay_out(self, piece: Piece) -> int:
        """Say what is to be written for `piece`; returns how many bytes that is."""
        segment = piece.segment
        writes = piece.lay_out(self._new_segment(segment) if piece.is_new else None)
        size = 0
        if piece.grouped:
            self._sequence = sequence = self._sequence + 1
            start, end = piece.start, piece.end
            position = start - GROUP_BYTES
            note = encode_group(
                segment.format,
                sequence,
                segment.number,
                position,
                end - start,
                0 if sequence == segment.first_sequence else self._previous_end,
                self._floor.wanted,
                segment.salt,
                self._wall_ms(),
            )
            padding = -end % segment.alignment
            writes.append((position, [note, *flat(piece.frames), bytes(padding)]))
            size = end + padding - position
            self._previous_end = end
            self._proven = not piece.frames
        if piece.footer is not None:
            writes.append((segment.footer_at, [piece.footer]))
            size += len(piece.footer)
        return size

    def finish_sync(self, job: SyncJob, error: BaseException | None = None) -> None:
        """Note that `job` has run. Finishing a job twice changes nothing.

        Args:
            job: the one that `begin_sync` returned last.
            error: what `job.run` raised. The journal is then failed for good; this call itself raises nothing,
                since its caller knows.
        """
        if job.finished:
            return
        assert job is self._job, "a job of another journal"
        error = error or job.error
        assert job.ran or error is not None, "the job has not run"
        job.finish()
        self._job = None
        pieces, self._flying = self._flying, []
        self._fsyncs += job.syncs
        if job.released_reserve:
            self.reserve.note_released()
        if error is not None:
            self._failure = error
            return
        for piece in pieces:
            segment = piece.segment
            segment.synced(piece.file, piece.end)
            if piece.footer is not None:
                self._close(segment)
        self._sync_jobs += 1
        self._written_bytes += job.bytes
        if job.bytes > self._largest_group:
            self._largest_group = job.bytes
        self.durable = job.appended
        self.durable_offset = job.last_offset
        floor = self._floor
        floor.landed()
        newest = self._segments[-1]
        used = newest.durable_end - newest.data_start
        self.space_due = self._segments[0].number < floor.durable or used >= self._spare.due_at

    @staticmethod
    def _close(segment: Segment) -> None:
        """All of `segment` is on the disk, its footer too."""
        segment.release()
        segment.settle(index_in_footer=True)

    def sync_now(self) -> None:
        """Return when everything appended is durable, waiting for the disk: for rare notes (an epoch seen, a cut).

        A job in flight is run here if nobody has begun it, waited for if somebody has; the driver that finishes it
        later finds it finished.

        Raises:
            JournalFailedError: it could not be done.
        """
        if self._failure is not None or self._closed:
            raise self._failed()
        while (job := self._job or self.begin_sync()) is not None:
            self._complete(job)

    def _complete(self, job: SyncJob) -> None:
        try:
            job.run()
        except Exception as error:
            self.finish_sync(job, error)
            raise self._failed() from error
        self.finish_sync(job)

    def _failed(self) -> JournalFailedError:
        if self._failure is None:
            return JournalFailedError(f"journal {self._storage} is closed")
        return JournalFailedError(f"journal {self._storage} failed and was not retried: {self._failure!r}")

    @property
    def failure(self) -> BaseException | None:
        """The disk's error when the journal failed; None while it works."""
        return self._failure

    def close(self) -> None:
        """Sync what is buffered and close the files; a failed journal only closes them.

        The last group then is an empty one: it proves that all others were synced, so that recovery takes no damage
        to them for a torn tail.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.sync_now()
                if not self._proven:
                    segment = self._segments[-1]
                    self._pieces.append(Piece(segment, segment.next_group, segment.footer_at, True, False))
                    self._complete(self._begin_job())
        finally:
            self._closed = True
            for segment in self._segments:
                segment.release()

    # -- space ---------------------------------------------------------------------------------------------------------

    def begin_spare(self) -> SpareJob | None:
        """The job that makes the next segment ahead of time, for a background thread; None if there is no need."""
        if self._failure is not None or self._closed or not self._segments or self.reserve.low_space:
            return None
        return self._spare.begin(self._segments[-1])

    def finish_spare(self, job: SpareJob, error: BaseException | None = None) -> None:
        """Note that `job` has run. If it failed, no other is tried before the next roll."""
        if self._spare.finish(job, error):
            self.reserve.run_short()

    def low_space(self) -> bool:
        """True if new work should be refused. Costs nothing; `reserve.check_space()` brings it up to date."""
        return self.reserve.low_space

    # -- drop ---------------------------------------------------------------------------------------------------------

    def request_drop(self, offset: int, hold: Hold | None = None) -> bool:
        """Let go of the leading sealed segments all of whose live batches end at or below log offset `offset`.

        Nothing is removed yet: the next group carries the new floor, and then `begin_drop` has work. Returns
        whether there will be any. The owner sees to it that notes in those segments are repeated by the checkpoint of
        a later one, which is always asked for. ``hold`` keeps some for a reader. See `SegmentFloor.request`.
        """
        return self._floor.request(offset, hold)

    def begin_drop(self) -> DropJob | None:
        """The job that removes segments below the durable floor; None if there are none, or one is in flight.

        None too while one of them is being read: `finish_read` then says that there is work.
        """
        if self._failure is not None or self._closed or self._reads_below(self._floor.durable):
            return None
        return self._floor.begin()

    def finish_drop(self, job: DropJob, error: BaseException | None = None) -> None:
        """Note that `job` has run. An error fails the journal: the directory could not be synced."""
        self._floor.finish(job)
        first = self.first_segment
        self._ended_logs[:] = [log for log in self._ended_logs if log.segments and log.segments[-1][0].number >= first]
        if error is not None:
            self._failure = error

    def drop_before(self, offset: int) -> int:
        """`request_drop` and everything that follows, waiting for the disk. Returns how many segments were removed.

        Raises:
            JournalFailedError: a write or a sync failed.
        """
        self.request_drop(offset)
        self.sync_now()
        job = self.begin_drop()
        if job is None:
            return 0
        try:
            job.run()
        except Exception as error:
            self.finish_drop(job, error)
            raise self._failed() from error
        self.finish_drop(job)
        return len(job.numbers)

    def begin_anew(self, checkpoint: bytes) -> None:
        """Let go of everything that was appended: the journal begins with the note `checkpoint`, durably on return.

        The segment of that note is as small as it can be, since this is asked for where there is little room. The files of
        the others are removed by `begin_drop`, or by the next recovery. A crash before the return leaves either the whole
        old journal or the new one: recovery reads no segment below the durable floor.

        Raises:
            JournalFailedError: a write or a sync failed.
        """
        if self._failure is not None or self._closed:
            raise self._failed()
        if not self._segments:
            return
        self._roll(0, checkpoint, MIN_SEGMENT_BYTES)  # first, for the footer states what the frames say
        self._cut_after(0)
        self._ended_logs.clear()
        self._floor.begin_anew()
        self.sync_now()

    def room_if_begun_anew(self) -> int:
        """How many bytes of new segments there would be room for after `begin_anew`; negative if there would be too little.

        Beside them there would be the free space that `reserve` wants, the newest segment and the spare. One system call.
        """
        held = sum(segment.size_bytes for segment in self._segments)
        return self._storage.free_bytes() + held - self.reserve.enough_bytes - 2 * self._segment_bytes

    @property
    def first_segment(self) -> int:
        """Number of the oldest segment that is kept; 0 if there is none."""
        return self._segments[0].number if self._segments else 0

    def occupancy(self) -> Occupancy:
        """The space that the journal takes up: one step a segment."""
        needed = [each for each in self._segments if each.number >= self._floor.wanted]
        sealed = list(takewhile(lambda each: each.closed, needed))
        return Occupancy(
            [SealedSegment(each.number, each.last_offset, each.size_bytes) for each in sealed],
            sum(each.end - each.data_start for each in needed[len(sealed) :]),
            self._segment_bytes,
            self._floor.bound_segment,
        )

    # -- read ---------------------------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int | None:
        """The first offset of the first live batch that is kept; None if there is none."""
        return self._reader.first_offset

    def read_batches(self, from_offset: int) -> Iterator[bytes]:
        """The live BATCH frames that hold offset `from_offset` and all that follows; see `JournalReader.batches`.

        Raises:
            OffsetNotKeptError: at once, if `from_offset` lies before what is kept; while iterating, if the rest has
                been dropped.
            JournalDamagedError: while iterating: what stands on the disk is not what was written.
        """
        return self._reader.batches(from_offset, self.last_offset)

    def begin_read(self, wanted: Iterable[WantedBody]) -> ReadJob:
        """The job that reads bodies, for any thread. Its segments stay until `finish_read`.

        Args:
            wanted: one at least, in any order, each in a record that is durable here.

        Raises:
            JournalFailedError: an earlier job failed.
            OffsetNotKeptError: one of them stands before what is kept.
            BodyNotKeptError: one of them has a place that is not kept.
        """
        if self._failure is not None or self._closed:
            raise self._failed()
        at_offset: list[WantedBody] = []
        in_note: list[WantedBody] = []
        before: list[WantedBody] = []
        for each in set(wanted):
            (at_offset if not each.place else in_note if each.place & 1 else before).append(each)
        assert at_offset or in_note or before, "no body is wanted"
        segments = self._of_ended_logs(before) if before else []
        if at_offset:
            at_offset.sort()
            segments += self._of_log(at_offset)
        try:
            notes = readable_notes(self._segments, in_note)
        except KeyError as error:
            raise BodyNotKeptError(
                f"segment {error} is not in the journal; a body in a note there is wanted"
            ) from error
        job = ReadJob(self._storage, segments, notes)
        self._reads.append(job)
        return job

    def _of_log(self, ascending: list[WantedBody]) -> list[ReadableSegment]:
        """The segments to be read for bodies in records of the log that goes on."""
        assert ascending[-1].offset <= self.durable_offset, (
            f"the body at offset {ascending[-1].offset} is wanted; offset {self.durable_offset} is durable"
        )
        first = self.first_offset
        if first is None or ascending[0].offset < first:
            raise OffsetNotKeptError(ascending[0].offset, first)
        return readable_segments(((each, each.last_offset) for each in self._segments), ascending, self._cuts)

    def _of_ended_logs(self, wanted: list[WantedBody]) -> list[ReadableSegment]:
        """The same for bodies in logs that have ended."""
        first = self.first_segment
        result = []
        for cut, bodies in wanted_by_log(wanted).items():
            log = next((each for each in self._ended_logs if each.cut == cut), None)
            bodies.sort()
            kept = [each for each in log.segments if each[0].number >= first] if log is not None else []
            if log is None or not kept or bodies[0].offset < kept[0][1]:
                offset = bodies[0].offset
                raise BodyNotKeptError(
                    f"the body at offset {offset} of a log that has ended is no longer in the journal"
                )
            result += readable_segments([(each, last) for each, _, last in kept], bodies, log.cuts, log.cut)
        return result

    def finish_read(self, job: ReadJob) -> bool:
        """Note that `job` has run, or will not. Returns whether `begin_drop` may have work that waited for it."""
        self._reads.remove(job)
        durable = self._floor.durable
        return job.first_segment < durable and not self._reads_below(durable)

    def _reads_below(self, number: int) -> bool:
        return any(job.first_segment < number for job in self._reads)

    # -- statistics ---------------------------------------------------------------------------------------------------

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            segments=len(self._segments),
            bytes=sum(segment.size_bytes for segment in self._segments),
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            durable_offset=self.durable_offset,
            appended_frames=self.appended,
            durable_frames=self.durable,
            buffered_bytes=self._buffered_bytes,
            in_flight_bytes=self._job.bytes if self._job is not None else 0,
            sync_jobs=self._sync_jobs,
            fsyncs=self._fsyncs,
            written_bytes=self._written_bytes,
            largest_group_bytes=self._largest_group,
            rolls=self._rolls,
            dropped_segments=self._floor.dropped,
            spare_ready=self._spare.ready,
            reserve=self.reserve.state,
            low_space=self.reserve.low_space,
            failed=self._failure is not None,
        )
