"""BodyReader: reads bodies back from the journal in a thread of its own, since a cold page takes as long as the disk does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue

from understudy.broker.log.body_read import ReadJob, WantedBody
from understudy.broker.log.journal import Journal

Told = Callable[[Mapping[int, bytes]], None]
"""Gets bodies, by the offset of their record."""


class BodyReader:
    """Of one journal. Everything but the thread's own work belongs to the loop's thread.

    Args:
        journal: recovered.
        loop: whose thread calls everything here and is called back on.
        on_failed: called once, with what is wrong: the process must end, and nobody is told of any body any more.
        on_room: called when a segment may be removed that was being read (`JournalDriver.look_after_space`).
    """

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[BaseException], None],
        on_room: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._on_failed = on_failed
        self._on_room = on_room
        self._over = False
        self._queue: SimpleQueue[tuple[ReadJob, Told] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, wanted: Iterable[WantedBody], told: Told) -> None:
        """Read them; ``told`` gets all of them later, unless this has failed or been stopped. Reads are done in order.

        Raises:
            JournalFailedError, OffsetNotKeptError: see `Journal.begin_read`.
        """
        assert not self._over, "bodies are wanted of a journal that has failed, or been closed"
        job = self._journal.begin_read(wanted)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="journal-read", daemon=True)
            self._thread.start()
        self._queue.put((job, told))

    async def stop(self) -> None:
        """End the thread, when it has done what it was asked for. The journal is closed after this."""
        self._over = True
        self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _completed(self, job: ReadJob, told: Told, error: BaseException | None) -> None:
        room = self._journal.finish_read(job)
        if self._over:
            return
        if error is not None:
            self._over = True
            self._on_failed(error)
            return
        if room:
            self._on_room()
        told(job.bodies)

    def _work(self) -> None:
        take = self._queue.get
        while (asked := take()) is not None:
            job, told = asked
            error: BaseException | None = None
            try:
                job.run()
            except BaseException as caught:  # noqa: BLE001  # whatever it is, the loop must hear of it
                error = caught
            try:
                self._loop.call_soon_threadsafe(self._completed, job, told, error)
            except RuntimeError:  # the loop was closed: nobody is left to be told
                return
            del asked, job, told  # the bodies are their reader's now
