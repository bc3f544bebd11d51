"""SpareSegment: the next segment, made ahead of time in the background, so that a roll does not wait for its blocks.

It is made as fast as the journal grows, and no faster: filling 64 MiB at once, even gently, made every commit beside it wait two
to four times as long, for half a second to one. An idle broker fills nothing.
"""

from __future__ import annotations

import sys
from typing import Final

from understudy.broker.log.segment import Segment
from understudy.broker.log.storage import SPARE_PIECE_BYTES, SpareJob, Storage, StorageFullError

SPARE_FRACTION: Final = 8
"""It is begun when the newest segment is full to one part in so many."""
FILLED_PER_USED: Final = 2
"""Bytes of it that are filled for each byte that the newest segment grows by from then on: complete when that is 5/8 full."""
_NEVER: Final = sys.maxsize


class SpareSegment:
    """At most one.

    Args:
        storage: the directory.
        size_bytes: of an ordinary segment.

    Attributes:
        ready: it is there.
        due_at: `begin` has something to do when so many bytes of the newest segment are used.
    """

    __slots__ = ("_begin_at", "_job", "_size_bytes", "_storage", "due_at", "ready")

    def __init__(self, storage: Storage, size_bytes: int) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self._begin_at = size_bytes // SPARE_FRACTION
        self._job: SpareJob | None = None
        self.due_at = self._begin_at
        self.ready = False

    def take(self, size_bytes: int) -> bool:
        """There is a roll: use it for a segment of that size; False if it is not there, or of another size."""
        taken = self.ready and size_bytes == self._size_bytes
        self.ready = self.ready and not taken
        if not self.ready and self._job is None:
            self.due_at = self._begin_at
        return taken

    def begin(self, newest: Segment) -> SpareJob | None:
        """The job that makes the next slice of it; None if there is no need yet, or making it has failed since the last roll."""
        used = newest.durable_end - newest.data_start
        if used < self.due_at:
            return None
        if self._job is None:
            self._job = SpareJob(self._storage, self._size_bytes)
        job = self._job
        wanted = FILLED_PER_USED * (used - self._begin_at) + SPARE_PIECE_BYTES
        job.allow(min(self._size_bytes, max(wanted, job.filled + SPARE_PIECE_BYTES)))
        self.due_at = _NEVER
        return job

    def finish(self, job: SpareJob, error: BaseException | None) -> bool:
        """Note that `job` has run; returns whether the disk was full."""
        assert job is self._job, "a spare job of another journal"
        if error is None and not job.finished:
            self.due_at = self._begin_at + job.filled // FILLED_PER_USED
        else:
            self._job = None
            self.ready = error is None
        return isinstance(error, StorageFullError)
