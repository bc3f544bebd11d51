"""CursorFile: a file that says where a feed stands, beside whatever its events go to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from understudy.broker.server.files.private_files import FILE_MODE
from understudy.observers.feed.complaint import PASSING, Complaint
from understudy.observers.feed.reader import CursorError

CURSOR_S: Final = 1.0
"""So often it is written."""


class CursorFile:
    """Implements `feed.FeedCursors` with a file.

    It is written after the events before it have left. A feed that is killed between the two tells some events again when it
    goes on; they have the same incarnation and number.

    Args:
        path: of the file; None: the feed begins at the beginning, and nothing is kept.
    """

    with_events = False

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._saved_s = 0.0
        self._complaint = (
            Complaint(str(path), "the feed waits", "it can be written again") if path is not None else None
        )

    def load(self) -> dict[str, str]:
        """Cursors in the file; empty if there is no file.

        Raises:
            CursorError: it is no such file.
        """
        if self._path is None or not self._path.exists():
            return {}
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise CursorError(f"{self._path} is no file of cursors: {error}") from error

    def hurry(self) -> None:
        """Nothing: a file is written at once, or not."""

    def due(self, now_s: float) -> bool:
        if now_s - self._saved_s < CURSOR_S:
            return False
        self._saved_s = now_s
        return True

    def save(self, cursors: dict[str, str]) -> bool:
        """False: there is no room for the file, which is said once. The feed waits: what follows would be told again.

        Raises:
            CursorError: the file cannot be written for another reason.
        """
        if self._path is None or self._complaint is None:
            return True
        try:
            replace_file(self._path, msgspec.json.encode(cursors))
        except OSError as error:
            if error.errno not in PASSING:
                raise CursorError(f"{self._path}: {error.strerror or error}") from error
            self._complaint.say(error)
            return False
        self._complaint.end()
        return True


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file of this user's alone, so that a reader sees the old or the new one.

    Args:
        path: the file.
        content: all of it.
        durable: a reader sees the new one even after a power failure.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
