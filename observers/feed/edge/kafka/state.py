"""StateFile: where a feed into Kafka stands, in one file that is replaced in one step.

The file names two places: that behind the last transaction which is known to be in Kafka, and that behind the one which may be.
Each transaction has a *mark*, a random text. Kafka keeps the mark of the last committed one, so it says which place is true.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from understudy.broker.server.files.private_files import FILE_MODE
from understudy.observers.feed.edge.cursor_file import replace_file
from understudy.observers.feed.reader import CursorError

STATE_VERSION: Final = 1
LOCK_SUFFIX: Final = ".lock"


class FeedPlace(msgspec.Struct, frozen=True):
    """Behind one transaction.

    Attributes:
        mark: of that transaction; "" before the first.
        number: of that transaction, from 1.
        cursors: they stand behind all events of it and of those before it.
    """

    mark: str = ""
    number: int = 0
    cursors: dict[str, str] = {}

    def following(self, cursors: dict[str, str]) -> FeedPlace:
        """The place behind the next transaction."""
        return FeedPlace(secrets.token_hex(16), self.number + 1, dict(cursors))


class FeedState(msgspec.Struct, kw_only=True):
    """Content of the state file.

    Attributes:
        version: of this struct.
        feed: id of this feed: its transactional id and its group in Kafka.
        topic: where it writes.
        done: the place behind the last transaction that is known to be in Kafka.
        begun: that behind the one which may be; None if there is none.
    """

    version: int
    feed: str
    topic: str
    done: FeedPlace = FeedPlace()
    begun: FeedPlace | None = None

    def begin(self, cursors: dict[str, str]) -> None:
        """Begin the transaction that brings what is read up to ``cursors``."""
        self.begun = self.done.following(cursors)

    def settle(self) -> None:
        """The transaction that was begun, if one was, is in Kafka."""
        if self.begun is not None:
            self.done, self.begun = self.begun, None

    def give_up(self) -> None:
        """The transaction that was begun, if one was, is not in Kafka, and will not be."""
        self.begun = None


class StateFile:
    """The file, which this process has alone.

    Args:
        path: is made at the first write. Beside it lies a lock.
        topic: the topic to write to.
        prefix: of the id that a new feed gets.

    Raises:
        CursorError: the file cannot be used, is of another topic, or another feed uses it.
    """

    def __init__(self, path: Path, topic: str, prefix: str) -> None:
        self._path = path
        try:
            self._lock = os.open(f"{path}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise CursorError(f"{path}{LOCK_SUFFIX}: {error.strerror or error}") from error
        try:
            self._take_lock()
            self.state = self._load(topic, prefix)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CursorError(f"{self._path}: another feed uses it") from None

    def _load(self, topic: str, prefix: str) -> FeedState:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return FeedState(version=STATE_VERSION, feed=f"{prefix}{secrets.token_hex(6)}", topic=topic)
        except OSError as error:
            raise CursorError(f"{self._path}: {error.strerror or error}") from error
        try:
            state = msgspec.json.decode(raw, type=FeedState)
        except msgspec.MsgspecError as error:
            raise CursorError(f"{self._path} is no state of a feed into Kafka: {error}") from error
        if state.version != STATE_VERSION:
            raise CursorError(f"{self._path} is of version {state.version}; this program goes on from {STATE_VERSION}")
        if state.topic != topic:
            raise CursorError(f"{self._path} is of a feed into topic {state.topic!r}, and not into {topic!r}")
        return state

    def write(self) -> None:
        """Keep `state`, durably. Raises: OSError."""
        replace_file(self._path, msgspec.json.encode(self.state), durable=True)

    def close(self) -> None:
        """Let another feed use the file."""
        os.close(self._lock)
