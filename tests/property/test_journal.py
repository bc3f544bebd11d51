"""The journal under random work and random power failures: what was promised is there, and nothing that was never written.

`JournalMachine` does what a broker may do, on a disk that loses, tears and reorders what was not synced, with the power going
off between any two operations of the disk, recovery's own included. After each recovery it checks:

- every frame whose sync was reported is there, unless a drop let go of it;
- the frames are, in order and without a hole, some of those that were appended since the last recovery or shown by it:
  so nothing is garbage, and nothing that was once cut comes back.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from understudy.broker.log import frame as frames
from understudy.broker.log.frame import BATCH_MAGIC, KIND_CUT, BatchHeader, decode_batch_header
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity, segment_name
from understudy.broker.log.storage import SyncJob
from understudy.testing.disk import MemoryStorage, PowerCutError

IDENTITY = JournalIdentity("g", "b")
OPTIONS = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0, salt=3)
NOTE_KIND = frames.FIRST_OWNER_KIND
CHECKPOINT_KIND = NOTE_KIND + 1

sizes = st.one_of(st.integers(0, 60), st.integers(100, 1500), st.integers(3000, 12000))
seeds = st.integers(0, 2**32 - 1)


class Recorder:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def on_batch(self, header: BatchHeader, frame: bytes) -> None:
        self.frames.append(frame)

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        self.frames.append(frames.encode_note(kind, payload))


class Model:
    """The journal as it should be: a plain list."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.durable = 0
        self.last_offset = 0

    def durable_offset(self) -> int:
        """The last offset of the frames that are durable, less what was cut later."""
        result = 0
        for at, frame in enumerate(self.frames):
            if frame.startswith(BATCH_MAGIC):
                if at < self.durable:
                    result = decode_batch_header(frame).last_offset
            elif frame[5] == KIND_CUT:
                result = min(result, frames.decode_cut(frame[frames.NOTE_HEADER_BYTES :])[0])
        return result

    def live(self) -> dict[bytes, int]:
        """The live batches and their last live offsets, by the definition of a cut."""
        result: dict[bytes, int] = {}
        for frame in self.frames:
            if frame.startswith(BATCH_MAGIC):
                result[frame] = decode_batch_header(frame).last_offset
            elif frame[5] == KIND_CUT:
                cut, _ = frames.decode_cut(frame[frames.NOTE_HEADER_BYTES :])
                result = {
                    each: min(last, cut)
                    for each, last in result.items()
                    if decode_batch_header(each).first_offset <= cut
                }
        return result


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.model = Model()
        self.job: SyncJob | None = None
        self.unique = 0
        self.base = 0
        self.dropped: set[bytes] = set()
        self.journal: Journal

    @initialize()
    def begin(self) -> None:
        self._recover(None)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> bytes:
        self.unique += 1
        frame = frames.encode_note(CHECKPOINT_KIND, b"checkpoint %d" % self.unique)
        self.model.frames.append(frame)
        return frame

    def _append(self, frame: bytes) -> None:
        self.journal.append(frame)
        self.model.frames.append(frame)
        assert self.journal.appended == len(self.model.frames) - self.base

    @rule(size=sizes, count=st.integers(1, 5))
    def append_batch(self, size: int, count: int) -> None:
        self.unique += 1
        payload = (b"%d." % self.unique).ljust(size, b"abcdefgh"[self.unique % 8 :][:1])
        frame = frames.encode_batch(1, self.model.last_offset + 1, count, 0, [payload])
        self._append(frame)
        self.model.last_offset += count

    @rule(size=sizes)
    def append_note(self, size: int) -> None:
        self.unique += 1
        self._append(frames.encode_note(NOTE_KIND, (b"%d." % self.unique).ljust(size, b"n")))

    @rule(back=st.integers(0, 8))
    def append_cut(self, back: int) -> None:
        offset = max(self.model.last_offset - back, 0)
        self.unique += 1
        self._append(frames.encode_cut(offset, b"%d" % self.unique))
        self.model.last_offset = offset

    @rule()
    def append_journal_like_payload(self) -> None:
        """A message body that is itself a piece of a journal."""
        name = max((name for name in self.storage.names() if name.endswith(".journal")), default=None)
        if name is not None:
            self.unique += 1
            body = [b"%d." % self.unique, self.storage.content(name)[512:3000]]
            self._append(frames.encode_batch(1, self.model.last_offset + 1, 1, 0, body))
            self.model.last_offset += 1

    @rule()
    def begin_sync(self) -> None:
        job = self.journal.begin_sync()
        if self.job is None:
            self.job = job
        else:
            assert job is None, "two jobs in flight"

    @precondition(lambda self: self.job is not None)
    @rule(cut_in=st.integers(0, 12), seed=seeds)
    def run_job(self, cut_in: int, seed: int) -> None:
        """Mostly runs to its end; sometimes the power goes off before."""
        job = self.job
        assert job is not None
        self.storage.power_cut_in = cut_in if cut_in < 6 else None
        try:
            job.run()
        except PowerCutError:
            self._power_failure(seed)
            return
        self.storage.power_cut_in = None
        self.journal.finish_sync(job)
        self.job = None
        self.model.durable = self.base + job.appended
        assert self.journal.durable == job.appended

    @rule()
    def sync_now(self) -> None:
        self.journal.sync_now()
        self.job = None
        self.model.durable = len(self.model.frames)
        assert self.journal.durable_offset == self.journal.last_offset == self.model.last_offset

    @rule(back=st.integers(0, 3), cut_in=st.integers(0, 16), seed=seeds)
    def drop(self, back: int, cut_in: int, seed: int) -> None:
        offset = self.journal.durable_offset - back
        if offset <= 0:
            return
        self.dropped |= {frame for frame, last in self.model.live().items() if last <= offset}
        self.storage.power_cut_in = cut_in if cut_in < 10 else None
        try:
            self.journal.drop_before(offset)
        except PowerCutError:
            self._power_failure(seed)
            return
        self.storage.power_cut_in = None
        self.job = None
        self.model.durable = len(self.model.frames)

    @rule()
    def make_spare(self) -> None:
        job = self.journal.begin_spare()
        if job is not None:
            job.run()
            self.journal.finish_spare(job)

    @rule()
    def read(self) -> None:
        first = self.journal.first_offset
        expected = self.model.live()
        if first is None:
            assert list(self.journal.read_batches(self.journal.last_offset + 1)) == []
            return
        for start in {first, self.journal.last_offset, (first + self.journal.last_offset) // 2}:
            if first <= start <= self.journal.last_offset:
                reachable = [each for each, last in expected.items() if last >= start]
                found = list(self.journal.read_batches(start))
                assert found == reachable[-len(found) :]
                assert decode_batch_header(found[0]).first_offset <= start

    # -- failures -----------------------------------------------------------------------------------------------------

    @rule(seed=seeds, cut_in=st.one_of(st.none(), st.integers(0, 15)))
    def power_failure(self, seed: int, cut_in: int | None) -> None:
        self._power_failure(seed, cut_in)

    def _power_failure(self, seed: int, cut_in: int | None = None) -> None:
        rng = Random(seed)
        self.storage.crash(rng)
        self._recover(cut_in)

    @rule(
        lengths=st.lists(st.integers(100, 1200), min_size=2, max_size=6),
        cut_in=st.sampled_from([1, 1, 1, 2, 3, 4, 5]),
        seed=seeds,
        recovery_cut_in=st.one_of(st.none(), st.integers(0, 8)),
    )
    def torn_group(self, lengths: list[int], cut_in: int, seed: int, recovery_cut_in: int | None) -> None:
        """A group of several frames is written, and the power goes off before its sync."""
        if self.job is not None:
            self.run_job(99, seed)
        for length in lengths:
            self.append_batch(length, 1)
        job = self.journal.begin_sync()
        assert job is not None
        self.storage.power_cut_in = cut_in
        try:
            job.run()
        except PowerCutError:
            self._power_failure(seed, recovery_cut_in)
            return
        self.storage.power_cut_in = None
        self.journal.finish_sync(job)
        self.model.durable = self.base + job.appended

    @precondition(lambda self: self.job is not None)
    @rule(cut_in=st.integers(0, 6), again=st.one_of(st.none(), seeds))
    def process_death(self, cut_in: int, again: int | None) -> None:
        """The process dies in the middle of a job; perhaps the machine right after the recovery."""
        assert self.job is not None
        self.storage.power_cut_in = cut_in
        with suppress(PowerCutError):
            self.job.run()
        self.storage.crash_soft()
        self._recover(None)
        if again is not None:
            self._power_failure(again)

    @precondition(lambda self: self.job is not None)
    @rule(seed=seeds, soft=st.booleans())
    def sync_error(self, seed: int, soft: bool) -> None:
        """An fsync fails, the journal is dead, the process exits; what the cache still shows may not be on the disk."""
        assert self.job is not None
        self.storage.failing_syncs = 1
        try:
            self.job.run()
        except OSError as error:
            self.journal.finish_sync(self.job, error)
        for call in (self.journal.begin_sync, self.journal.sync_now, lambda: self.journal.append(b"")):
            try:
                call()
            except JournalFailedError:
                continue
            raise AssertionError("a failed journal went on")
        self.storage.failing_syncs = 0
        if soft:
            self.storage.crash_soft()
            self._recover(None)
        self._power_failure(seed)

    @rule()
    def restart(self) -> None:
        self.journal.close()
        self.model.durable = len(self.model.frames)
        self.storage.crash_soft()
        self._recover(None)

    def _recover(self, cut_in: int | None) -> None:
        """Recover, the power going off after `cut_in` operations of it, and check what is left."""
        self.job = None
        if cut_in is not None:
            self.storage.power_cut_in = cut_in
            try:
                recover(self.storage, IDENTITY, OPTIONS, Recorder())
            except PowerCutError:
                self.storage.crash(Random(cut_in))
            else:
                self.storage.crash_soft()
        recorder = Recorder()
        recovered = recover(self.storage, IDENTITY, OPTIONS, recorder, checkpoint=self._checkpoint)
        self.journal = recovered.journal
        self._check(recorder.frames)
        model = self.model
        model.frames = list(recorder.frames)
        model.durable = self.base = len(model.frames)
        model.last_offset = self.journal.last_offset

    def _check(self, found: list[bytes]) -> None:
        model = self.model
        missing = len(model.frames) if not found else model.frames.index(found[0])
        assert found == model.frames[missing : missing + len(found)], "garbage, a hole, or something cut came back"
        assert missing + len(found) >= model.durable or not found, "something durable is missing at the end"
        live = model.live()
        first = min((name for name in self.storage.names() if name.endswith(".journal")), default=segment_name(1))
        assert first == segment_name(1) or not found or found[0][5] == CHECKPOINT_KIND, "it begins with no checkpoint"
        for frame in model.frames[: min(missing, model.durable)]:
            assert frame not in live or frame in self.dropped, "something was lost"

    @invariant()
    def statistics_agree(self) -> None:
        statistics = self.journal.statistics()
        assert statistics.durable_frames <= statistics.appended_frames
        assert (
            statistics.durable_offset == self.model.durable_offset() <= statistics.last_offset == self.model.last_offset
        )
        assert (
            statistics.segments == len([name for name in self.storage.names() if name.endswith(".journal")])
            or self.job
            or (self.journal.dirty)
        )


JournalMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestJournal = JournalMachine.TestCase
