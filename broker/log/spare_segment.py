"""SpareSegment: the next segment, made ahead of time in the background, so that a roll does not wait for its blocks."""

from __future__ import annotations

from understudy.broker.log.segment import Segment
from understudy.broker.log.storage import SpareJob, Storage, StorageFullError

SPARE_FRACTION = 8
"""It is made when the newest segment is full to one part in so many."""


class SpareSegment:
    """At most one.

    Args:
        storage: the directory.
        size_bytes: of an ordinary segment.

    Attributes:
        ready: it is there.
    """

    __slots__ = ("_failed_at", "_job", "_size_bytes", "_storage", "ready")

    def __init__(self, storage: Storage, size_bytes: int) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self._job: SpareJob | None = None
        self._failed_at = -1
        self.ready = False

    def take(self, size_bytes: int) -> bool:
        """Use it for a segment of that size; False if it is not there, or of another size."""
        taken = self.ready and size_bytes == self._size_bytes
        self.ready = self.ready and not taken
        return taken

    def begin(self, newest: Segment, number: int) -> SpareJob | None:
        """The job that makes it, to be segment `number`; None if there is no need yet, or making that one has failed."""
        if self.ready or self._job is not None or self._failed_at == number:
            return None
        if newest.durable_end - newest.data_start < newest.size_bytes // SPARE_FRACTION:
            return None
        self._job = SpareJob(self._storage, self._size_bytes)
        return self._job

    def finish(self, job: SpareJob, error: BaseException | None, number: int) -> bool:
        """Note that `job` has run, when `number` is the next segment; returns whether the disk was full."""
        assert job is self._job, "a spare job of another journal"
        self._job = None
        self.ready = error is None
        if error is not None:
            self._failed_at = number
        return isinstance(error, StorageFullError)
