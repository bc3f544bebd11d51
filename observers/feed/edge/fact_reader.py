"""FactReader: the facts of one broker that are in no journal (`broker.server.files.fact_log`) as events, from any place on.

Facts are numbered by their broker, so a hole in the numbers of an incarnation is seen, and ``dropped`` says it. What the reader
itself misses, because files have gone before it read them or are not what they were, is a `Gap`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Union

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.fact_log import VERSION, fact_file_name, fact_files
from understudy.observers.events_schema import EVENT_TYPES, SCHEMA_VERSION, End, Event, Gap
from understudy.observers.feed.event_digest import digest_of
from understudy.observers.feed.reader import CursorError

CHUNK_BYTES: Final = 1 << 20
_HEAD: Final = ("group", "broker", "incarnation")
_ANY_EVENT: Final[Any] = Union[EVENT_TYPES]  # noqa: UP007  # a tuple, as it is made at run time


class UnknownFactError(UnderstudyError):
    """A file of facts is of a newer program."""


class FactCursor(msgspec.Struct):
    """Where a reader stands.

    Attributes:
        version: of this struct; raised with the files' version.
        file: number of the file.
        incarnation: of that file; a file of this number may be another one.
        position: the line behind the last event begins there.
        epoch, offset, at_ms, founding: of the last event.
        seq, event_digest: number of the last event of that incarnation, and the digest of its events; -1: not known.
    """

    version: int = VERSION
    file: int = 0
    incarnation: str = ""
    position: int = 0
    epoch: int = 0
    offset: int = 0
    at_ms: int = 0
    founding: str = ""
    seq: int = 0
    event_digest: int = -1


class FactReader:
    """Implements `feed.EventSource`.

    Args:
        directory: the broker's data directory; there need be no facts in it.
        cursor: of a reader of the same directory; None: from the first file that is kept.

    Raises:
        CursorError: ``cursor`` is of another program version.
    """

    def __init__(self, directory: Path, cursor: bytes | None = None) -> None:
        self._directory = directory
        self._at = FactCursor() if cursor is None else _decode(cursor)
        self._file: BinaryIO | None = None
        self._head: dict[str, Any] = {}

    def events(self) -> Iterator[list[Event]]:
        """Facts that the files hold now.

        Raises:
            UnknownFactError: a newer program has written it.
        """
        while True:
            later = [each for each in fact_files(self._directory) if each > self._at.file]
            if self._file is None and not self._resume():
                gap, end = self._gone(later), self.end()
                if not self._begin(later):
                    return
                yield from self._between(end, gap)
                continue
            yield from self._read()
            if not later:
                return
            self._leave()  # nothing is appended to a file when there is a later one
            gap = self._gap("facts_dropped", later[0]) if later[0] > self._at.file + 1 else None
            end = self.end()
            if not self._begin(later):
                return
            yield from self._between(end, gap)

    def _between(self, end: Event | None, gap: Event | None) -> Iterator[list[Event]]:
        """Events between two files: a gap, and the end of the first one's incarnation."""
        if end is not None and end.incarnation != self._at.incarnation:
            yield [end]
        elif gap is not None:  # what was between is not in the digest
            self._at.event_digest = -1
        if gap is not None:
            yield [gap]

    def end(self) -> End | None:
        """So far this reader has read the incarnation; None if it has read nothing of one."""
        at, head = self._at, self._head
        if not (at.seq and head):
            return None
        place = (head["group"], at.founding, head["broker"], at.incarnation, 0, at.epoch, at.offset, at.at_ms)
        return End(SCHEMA_VERSION, *place, at.seq, at.event_digest)

    def _gone(self, later: list[int]) -> Event | None:
        """The gap event, if the file to go on in is missing or is another one."""
        at = self._at
        if not at.file:
            return None
        if not later:  # files of a directory that was replaced begin with number 1 again
            later += fact_files(self._directory)
        if not later:
            return None
        return self._gap("facts_dropped" if later[0] > at.file else "facts_rewritten", later[0])

    def _resume(self) -> bool:
        """Open the file in which this reader stands."""
        at = self._at
        if not at.file or not self._open(at.file):
            return False
        file = self._file
        assert file is not None
        if self._head["incarnation"] != at.incarnation:
            self._leave()
            return False
        file.seek(at.position)
        return True

    def _begin(self, later: list[int]) -> bool:
        """Go on with the first of ``later`` that has a head; the last one may get its own in a moment."""
        for number in later:
            if self._open(number):
                assert self._file is not None
                self._at.file, self._at.position = number, self._file.tell()
                if self._at.incarnation != self._head["incarnation"]:
                    self._at.incarnation = self._head["incarnation"]
                    self._at.seq = self._at.event_digest = 0
                return True
        return False

    def _open(self, number: int) -> bool:
        path = self._directory / fact_file_name(number)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        line = file.readline()
        if not line.endswith(b"\n"):
            file.close()
            return False
        head = _parsed(line)
        problem = _problem_of(head)
        if problem:
            file.close()
            raise UnknownFactError(f"{path}, byte 0: {problem}")
        assert head is not None
        self._file, self._head = file, head
        return True

    def _read(self) -> Iterator[list[Event]]:
        """The whole lines from here on."""
        file, at = self._file, self._at
        assert file is not None
        while True:
            file.seek(at.position)
            data = file.read(CHUNK_BYTES)
            end = data.rfind(b"\n") + 1
            if not end:
                return
            found = [event for line in data[:end].splitlines() if (event := self._event(line)) is not None]
            at.position += end
            if found:
                last = found[-1]
                at.epoch, at.offset, at.at_ms, at.founding = last.epoch, last.offset, last.at_ms, last.founding
                at.seq = max(at.seq, last.seq)
                if at.event_digest >= 0:
                    at.event_digest = digest_of(found, at.event_digest)
                yield found

    def _event(self, line: bytes) -> Event | None:
        """None for what a power failure has left: the file was not fsynced."""
        fields = _parsed(line)
        if fields is None:
            return None
        head = self._head
        fields |= {"schema": SCHEMA_VERSION, "group": head["group"], "broker": head["broker"]}
        fields["incarnation"] = head["incarnation"]
        try:
            event: Event = msgspec.convert(fields, _ANY_EVENT)
        except msgspec.ValidationError as error:
            raise UnknownFactError(
                f"{self._directory / fact_file_name(self._at.file)}, behind byte {self._at.position}: "
                f"a fact that this program does not know: {error}"
            ) from error
        return event

    def _gap(self, reason: str, to: int) -> Event:
        at, head = self._at, self._head
        names = (head.get("group", ""), at.founding, head.get("broker", ""), "", 0)
        return Gap(SCHEMA_VERSION, *names, at.epoch, at.offset, at.at_ms, reason, at.epoch, at.offset, at.file, to)

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def cursor(self) -> bytes | None:
        """Where a reader can go on behind the last events that were yielded; None before the first file."""
        return msgspec.json.encode(self._at) if self._at.file else None

    def close(self) -> None:
        self._leave()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def _problem_of(head: dict[str, Any] | None) -> str:
    """Why a file that begins like this cannot be read; "" if it can."""
    version = head.get("facts") if head is not None else None
    if isinstance(version, int) and version != VERSION:
        return f"facts of version {version}; this program reads version {VERSION}"
    if head is None or version != VERSION or not all(isinstance(head.get(name), str) for name in _HEAD):
        return "this is no head of a file of facts"
    return ""


def _decode(cursor: bytes) -> FactCursor:
    try:
        found = msgspec.json.decode(cursor, type=FactCursor)
    except msgspec.MsgspecError as error:
        raise CursorError(f"that is no cursor of facts: {error}") from error
    if found.version != VERSION:
        raise CursorError(
            f"the cursor of facts is of version {found.version}; this program goes on from version {VERSION}"
        )
    return found
