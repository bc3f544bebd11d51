"""JournalDriver: runs a journal's jobs, on the event loop while the disk is quick, else in threads.

Two threads. `journal-sync` does nothing but SyncJobs, since commits wait for them; `journal-space` makes spare
segments and removes dead ones, and is started when there is such work. The journal itself is touched by the loop's
thread alone. `LoopGuard` says which groups go to the thread.

When a job is done the next group is started *before* its owner hears of the first: the disk works while answers are written.

Measured here (from loop to thread and back without any I/O, CPU of both threads together): a thread with a SimpleQueue
and `call_soon_threadsafe` 36 us on uvloop and 41 on asyncio, `run_in_executor` 53 and 58; a raw lock in place of the
queue, or an eventfd in place of `call_soon_threadsafe`, gains 0 to 5 us, less than the runs differ. Syncing on the loop
itself saves those 36 us, and the time until a busy loop looks at what the thread has posted; it stops the loop for one sync.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Final

import attrs

from understudy.broker.log.journal import Hold, Journal, JournalFailedError
from understudy.broker.log.storage import DropJob, SpareJob, SyncJob
from understudy.broker.plugin_api.metrics import LATENCY_BOUNDS_US, Histogram
from understudy.broker.server.turn.loop_guard import LOOP_BYTES, LoopGuard

_SpaceJob = SpareJob | DropJob
_SECONDS_TO_US: Final = 1e6


@attrs.frozen(kw_only=True)
class SyncTimes:
    """How long the disk took, write and sync together. Times are in microseconds; `total_us / syncs` is the mean.

    `on_loop` of the `syncs` ran on the event loop, and held it for `longest_on_loop_us` at most.
    """

    syncs: int
    last_us: float
    longest_us: float
    total_us: float
    on_loop: int
    longest_on_loop_us: float


class JournalDriver:
    """Keeps one SyncJob of `journal` in flight while there is something to sync.

    Args:
        journal: recovered; from now on nobody else begins its jobs.
        loop: whose thread calls everything here and is called back on.
        on_durable: called after each finished job; `journal.durable` and `journal.durable_offset` say how far.
        on_failed: called once, with what the disk said; nothing will be durable any more: the process exits with code 74.
        loop_bytes: groups of at most that many bytes are synced on the loop while syncs are quick; 0: all in the thread.

    Attributes:
        sync_histogram: microseconds of each group's write and sync.
    """

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        loop_bytes: int = LOOP_BYTES,
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._guard = LoopGuard(loop_bytes)
        self._busy = False
        self._stopped = False
        self._failed = False
        self._idle: asyncio.Future[None] | None = None
        self._sync_queue: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._sync_thread = threading.Thread(target=self._sync_work, name="journal-sync", daemon=True)
        self._sync_thread.start()
        self._space_queue: SimpleQueue[_SpaceJob | None] = SimpleQueue()
        self._space_thread: threading.Thread | None = None
        self._spare_job: SpareJob | None = None
        self.sync_histogram = Histogram(LATENCY_BOUNDS_US)
        self._syncs = self._on_loop = 0
        self._last = self._longest = self._longest_on_loop = self._total = 0.0

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Start a group if there is one and none is in flight. Call it once a turn, after appending."""
        if self._busy or self._stopped or self._failed:
            return
        job = self._journal.begin_sync()
        if job is None:
            return
        self._busy = True
        now = perf_counter()
        if self._guard.allows(job, now):
            self._sync_on_loop(job, now)
        else:
            self._sync_queue.put(job)

    def _sync_on_loop(self, job: SyncJob, started: float) -> None:
        error = None
        try:
            job.run()
        except BaseException as caught:  # noqa: BLE001  # whatever it is, the owner must hear of it
            error = caught
        now = perf_counter()
        seconds = now - started
        self._on_loop += 1
        if seconds > self._longest_on_loop:
            self._longest_on_loop = seconds
        self._guard.held(seconds, now)
        self._finish(job, error, seconds)

    def sync_now(self) -> None:
        """Make everything appended durable before returning. Stops the loop for one or two syncs: rare notes only.

        `on_durable` is not called for it; look at the journal.

        Raises:
            JournalFailedError: it failed; `on_failed` has been called as well.
        """
        try:
            self._journal.sync_now()
        except JournalFailedError as error:
            self._fail(error)
            raise

    def begin_anew(self, checkpoint: bytes) -> None:
        """`Journal.begin_anew`. Stops the loop for two or three syncs.

        Raises:
            JournalFailedError: it failed; `on_failed` has been called as well.
        """
        try:
            self._journal.begin_anew(checkpoint)
        except JournalFailedError as error:
            self._fail(error)
            raise

    def drop_before(self, offset: int, hold: Hold | None = None) -> None:
        """Let the journal forget what ends at or below log offset `offset`; files are removed in the background."""
        if not self._failed and self._journal.request_drop(offset, hold):
            self.kick()
            self.look_after_space()

    def look_after_space(self) -> None:
        """Make the next segment, and remove those that are dead, in the background; whatever there is of that to do."""
        if self._stopped or self._failed:
            return
        spare, drop = self._journal.begin_spare(), self._journal.begin_drop()
        self._spare_job = spare or self._spare_job
        for job in (spare, drop):
            if job is not None:
                if self._space_thread is None:
                    self._space_thread = threading.Thread(target=self._space_work, name="journal-space", daemon=True)
                    self._space_thread.start()
                self._space_queue.put(job)

    async def drain(self) -> None:
        """Wait until nothing is in flight and nothing is buffered.

        Raises:
            JournalFailedError: the journal failed.
        """
        self.kick()
        while self._busy and not self._failed:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
            self.kick()
        if self._failed:
            raise JournalFailedError(f"the journal failed before it was drained: {self._journal.failure!r}")

    async def stop(self) -> None:
        """Sync what is buffered, end the threads, close the journal. After a failure: only end the threads and close it.

        Raises:
            JournalFailedError: it failed; `on_failed` has been called as well.
        """
        if self._stopped:
            return
        try:
            if not self._failed:
                await self.drain()
        finally:
            self._stopped = True
            if self._spare_job is not None:
                self._spare_job.cancel()
            self._sync_queue.put(None)
            self._space_queue.put(None)
            for thread in (self._sync_thread, self._space_thread):
                if thread is not None:
                    await asyncio.to_thread(thread.join)
            try:
                self._journal.close()
            except JournalFailedError as error:
                self._fail(error)
                raise

    def times(self) -> SyncTimes:
        return SyncTimes(
            syncs=self._syncs,
            last_us=self._last * _SECONDS_TO_US,
            longest_us=self._longest * _SECONDS_TO_US,
            total_us=self._total * _SECONDS_TO_US,
            on_loop=self._on_loop,
            longest_on_loop_us=self._longest_on_loop * _SECONDS_TO_US,
        )

    def _completed(self, job: SyncJob, error: BaseException | None, seconds: float) -> None:
        """The thread has run ``job``: before the owner hears of it, the disk is given the next."""
        self._guard.passed(job, seconds)
        self._finish(job, error, seconds, kick=True)

    def _finish(self, job: SyncJob, error: BaseException | None, seconds: float, *, kick: bool = False) -> None:
        self._busy = False
        self._syncs += 1
        self._last = seconds
        self._total += seconds
        self.sync_histogram.observe(int(seconds * _SECONDS_TO_US))
        if seconds > self._longest:
            self._longest = seconds
        self._journal.finish_sync(job, error)  # sync_now may have finished it already
        if error is not None:
            self._fail(error)
        if not self._failed:
            if kick:
                self.kick()
            if self._journal.space_due:
                self.look_after_space()
            self._on_durable()
        if self._idle is not None and not self._busy:  # whoever drains goes on
            self._idle.set_result(None)
            self._idle = None

    def _fail(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._on_failed(error)

    def _space_completed(self, job: _SpaceJob, error: BaseException | None) -> None:
        if isinstance(job, SpareJob):
            self._spare_job = None
            self._journal.finish_spare(job, error)
            return
        self._journal.finish_drop(job, error)
        if error is not None:
            self._fail(error)

    # -- the threads' side --------------------------------------------------------------------------------------------

    def _sync_work(self) -> None:
        take = self._sync_queue.get
        while (job := take()) is not None:
            error = None
            started = perf_counter()
            try:
                job.run()
            except BaseException as caught:  # noqa: BLE001  # whatever it is, the loop must hear of it
                error = caught
            if not self._post(self._completed, job, error, perf_counter() - started):
                return
            del job  # what it has written is not held until there is more to write

    def _space_work(self) -> None:
        take = self._space_queue.get
        while (job := take()) is not None:
            error: BaseException | None = None
            try:
                job.run()
            except BaseException as caught:  # noqa: BLE001  # as above
                error = caught
            if not self._post(self._space_completed, job, error):
                return
            del job  # as above

    def _post(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed: nobody is left to be told
            return False
        return True
