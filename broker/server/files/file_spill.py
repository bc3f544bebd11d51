"""FileSpill: bodies of large transactions in files without a name, beside the journal.

A transaction of a gigabyte must not be a gigabyte of memory on every broker (`tx.memory_bytes`). Its records are in the
journal, but to read a body back from there one would have to know where in which segment it stands, and a segment would have to
stay for it; transient records are not there at all. So bodies beyond the limit are written a second time, here, and never synced:
after a crash the journal brings them back (decision 0016).

What the kernel could not write back is then missing from the file, or wrong in it, and nobody is told: the error of a write-back is
for who syncs. So a body comes with its checksum, and one that does not match is a disk that failed (74).

The files have no name from their first moment on, so nothing is left of them when the process ends. One is given up when all its
bodies have ended; they come and go together, as transactions do.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import structlog

from understudy.broker.message import Message
from understudy.broker.octets.checksum import crc32

FILE_BYTES: Final = 64 << 20
"""A file that is longer gets no more bodies."""

_log: Final = structlog.get_logger()


class _SpillFile:
    """One file. ``live``: bytes of bodies that somebody still refers to."""

    __slots__ = ("_file", "end", "live", "owner", "retired")

    def __init__(self, owner: FileSpill, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # lives as long as its bodies
        self.owner = owner
        self.end = 0
        self.live = 0
        self.retired = False

    def append(self, body: bytes) -> int:
        """Write ``body``; where it begins."""
        at, fd, left = self.end, self._file.fileno(), memoryview(body)
        position = at
        while left:
            written = os.pwrite(fd, left, position)
            position += written
            left = left[written:]
        self.end = position
        self.live += len(body)
        self.owner.live_bytes += len(body)
        return at

    def read(self, at: int, size: int) -> bytes:
        fd, pieces = self._file.fileno(), []
        while size:
            piece = os.pread(fd, size, at)
            if not piece:
                raise OSError(f"spilled bodies: {size} bytes at {at} are missing from a file of {self.end}")
            pieces.append(piece)
            at += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self, size: int) -> None:
        self.live -= size
        self.owner.live_bytes -= size
        self._end_if_done()

    def retire(self) -> None:
        """No more bodies come."""
        self.retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self.retired and not self.live:
            self._file.close()


class FileBody:
    """A body in a file (``SpilledBody``)."""

    __slots__ = ("_at", "_crc", "_file", "_size")

    def __init__(self, file: _SpillFile, at: int, size: int, crc: int) -> None:
        self._file = file
        self._at = at
        self._size = size
        self._crc = crc

    def read(self, _: Message) -> bytes:
        """Read it.

        Raises:
            OSError: the disk does not give it back, or gives something else.
        """
        body = self._file.read(self._at, self._size)
        if crc32(body) != self._crc:
            where = f"{self._size} bytes at {self._at} of a file of {self._file.end}"
            raise OSError(f"spilled bodies: the {where} are not those that were written")
        return body

    def __del__(self) -> None:
        self._file.release(self._size)


class FileSpill:
    """Implements ``Spill``.

    Args:
        directory: the broker's data directory.
        file_bytes: length of a file from which on another is begun.

    Attributes:
        live_bytes: of all bodies that are here.
    """

    def __init__(self, directory: Path, file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._file: _SpillFile | None = None
        self._refused = False
        self.live_bytes = 0

    def put(self, body: bytes) -> FileBody | None:
        """Write ``body``, which is not empty; None if the disk does not take it, which is logged once for as long as it lasts."""
        assert body, "an empty body keeps no file open, and could not be read when that is closed"
        try:
            file = self._file
            if file is None or file.end >= self._file_bytes:
                self.close()
                file = self._file = _SpillFile(self, self._directory)
            at = file.append(body)
        except OSError as error:
            if not self._refused:
                _log.warning(
                    "bodies of large transactions stay in memory: they cannot be spilled",
                    directory=str(self._directory),
                    error=str(error),
                )
            self._refused = True
            return None
        self._refused = False
        return FileBody(file, at, len(body), crc32(body))

    def close(self) -> None:
        """Begin no more: what is here can be read until it ends."""
        if self._file is not None:
            self._file.retire()
            self._file = None
