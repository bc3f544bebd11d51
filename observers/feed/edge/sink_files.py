"""RollingFiles: the feed as a directory of files, each of which is whole from the moment it is there.

    000000000001.jsonl  000000000002.jsonl  ...  .state

Events are gathered in memory until a file is due by size or by age. Then, and only then, something is written:

1. the file, under its name with a dot before it, and fsynced;
2. ``.state``, which is replaced in one step, and fsynced: how many files there are, and the cursors that stand behind the last;
3. the file gets its name.

Step 2 is the commit. A feed that is killed before it has never written that file: it goes on at the older cursors, makes the same
events with the same numbers, and removes what lies about. One that is killed after it finds the file under its dotted name when
it starts again, and does step 3. So nothing is lost and nothing is there twice, wherever it was killed.

**A directory that cannot be written to** (full, read-only, gone) stops the feed and nothing else: the step is tried again every
`RETRY_S`, and nothing more is read before it is done. It can be tried again because the events are still in memory, and because a
file that is complete is not written anew.

Appending to the file as events come was refused: what a write that failed midway has left there cannot be told from what was
meant to be there, and a Parquet file cannot be appended to at all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.private_files import DIRECTORY_MODE, FILE_MODE
from understudy.observers.events_schema import Event
from understudy.observers.feed.complaint import Complaint
from understudy.observers.feed.reader import CursorError

STATE_VERSION: Final = 1
STATE_NAME: Final = ".state"
NEW_STATE_NAME: Final = ".state.new"
RETRY_S: Final = 2.0


class FeedFilesError(UnderstudyError):
    """The directory cannot take a feed: it cannot be made, or another feed writes to it."""


class FileFormat(Protocol):
    """How events become a file."""

    suffix: str

    def encode(self, events: list[Event]) -> bytes:
        """Some events as they are kept in memory; its size is what counts for ``roll_bytes``."""

    def content(self, parts: Sequence[bytes]) -> Sequence[bytes | memoryview]:
        """The whole file, in pieces, of all that was encoded."""


class JsonLines:
    """An event a line."""

    suffix = "jsonl"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode_lines

    def encode(self, events: list[Event]) -> bytes:
        return self._encode(events)

    def content(self, parts: Sequence[bytes]) -> Sequence[bytes | memoryview]:
        return parts


class _State(msgspec.Struct):
    """``.state``.

    Attributes:
        files: how many there are.
        last: name of the last one; "" if there is none.
        cursors: they stand behind all events of these files.
    """

    version: int
    files: int
    last: str
    cursors: dict[str, str]


class RollingFiles:
    """Implements `feed.FeedSink` and `feed.FeedCursors`.

    Args:
        directory: is made if it is not there.
        file_format: of the files that are made now; those that are there already may have another.
        roll_bytes: a file is due when so much is gathered. It may get somewhat larger: the feed asks after each of its rounds.
        roll_s: a file is due when its first event is so old.

    Raises:
        FeedFilesError: the directory cannot be used.
        CursorError: ``.state`` is of another program version.
    """

    with_events = True

    def __init__(self, directory: Path, file_format: FileFormat, roll_bytes: int, roll_s: float) -> None:
        self._directory = directory
        self._format = file_format
        self._roll_bytes = roll_bytes
        self._roll_s = roll_s
        self._parts: list[bytes] = []
        self._bytes = 0
        self._first_s = 0.0
        self._saved_s = time.monotonic()
        self._failed_s = 0.0
        self._owed = False
        self._complete = False
        self._complaint = Complaint(str(directory), "the feed waits", "it can be written to again")
        try:
            directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FeedFilesError(f"{directory}: {error.strerror}") from error
        try:
            self._state = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> _State:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FeedFilesError(f"{self._directory}: another feed writes to it") from None
        path = self._directory / STATE_NAME
        state = _State(STATE_VERSION, 0, "", {})
        try:
            if path.exists():
                state = _decode(path)
            self._finish(state)
        except OSError as error:
            raise FeedFilesError(f"{self._directory}: {error.strerror}") from error
        return state

    def _finish(self, state: _State) -> None:
        """Give the last file its name, if it has not got it, and remove what was never committed."""
        directory = self._directory
        if state.last:
            self._publish(state.last)
        for path in (directory / NEW_STATE_NAME, *directory.glob(".[0-9]*")):
            path.unlink(missing_ok=True)

    # -- FeedSink -------------------------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        assert not self._owed, "what was given before is not kept yet"
        if not self._parts:
            self._first_s = time.monotonic()
        part = self._format.encode(events)
        self._parts.append(part)
        self._bytes += len(part)

    def flush(self) -> None:
        """Nothing: what is taken is kept with the cursors that stand behind it (`save`)."""

    def close(self) -> None:
        """Let go of the directory. What was not saved is told again by the next feed."""
        os.close(self._lock)

    # -- FeedCursors ----------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, str]:
        return dict(self._state.cursors)

    def hurry(self) -> None:
        """Nothing: a file is written at once, or not."""

    def due(self, now_s: float) -> bool:
        if self._owed:
            return now_s - self._failed_s >= RETRY_S
        if not self._parts:  # events that are not wanted were read: then the cursors go on alone
            return now_s - self._saved_s >= self._roll_s
        return self._bytes >= self._roll_bytes or now_s - self._first_s >= self._roll_s

    def save(self, cursors: dict[str, str]) -> bool:
        """Write what was taken as one file, with ``cursors``."""
        if not self._parts and cursors == self._state.cursors:
            self._saved_s = time.monotonic()
            return True
        state = _State(STATE_VERSION, self._state.files, self._state.last, cursors)
        if self._parts:
            state.files += 1
            state.last = f"{state.files:012}.{self._format.suffix}"
        try:
            if self._parts and not self._complete:
                self._write(f".{state.last}", self._format.content(self._parts))
                self._complete = True
            self._write(NEW_STATE_NAME, [msgspec.json.encode(state)])
            self._rename(NEW_STATE_NAME, STATE_NAME)
            if self._parts:
                self._publish(state.last)
        except OSError as error:
            self._failed(error)
            return False
        self._kept(state)
        return True

    def _kept(self, state: _State) -> None:
        self._state = state
        self._parts.clear()
        self._bytes = 0
        self._owed = self._complete = False
        self._saved_s = time.monotonic()
        self._complaint.end()

    def _failed(self, error: OSError) -> None:
        self._owed = True
        self._failed_s = time.monotonic()
        self._complaint.say(error)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _write(self, name: str, content: Sequence[bytes | memoryview]) -> None:
        """Make a file that is complete and fsynced, or none. It does not take the last room of a disk to find that out."""
        path = self._directory / name
        needed = sum(map(len, content))
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            for piece in content:
                _write_all(file, piece)
            os.fsync(file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def _rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)
        os.fsync(self._lock)

    def _publish(self, name: str) -> None:
        if (self._directory / f".{name}").exists():
            self._rename(f".{name}", name)
        os.fsync(self._lock)  # if it had the name already, this may be what has failed


def _write_all(file: int, piece: bytes | memoryview) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(file, rest) :]


def _decode(path: Path) -> _State:
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except msgspec.MsgspecError as error:
        raise CursorError(f"{path} is no state of a feed's files: {error}") from error
    if state.version != STATE_VERSION:
        raise CursorError(f"{path} is of version {state.version}; this program goes on from version {STATE_VERSION}")
    return state
