"""FeedDirectory: all journals of a directory as one feed, from their beginning or from where an earlier one stopped.

It owns what the command needs of the file system: which directories hold a journal, the file of cursors, and the holds that ask
brokers to keep what was not read yet (``broker/server/feed_hold.py``).

A cursor is kept after the events before it have left (`FeedSink.flush`). A feed that is killed between the two tells some events
again when it goes on; they have the same incarnation and number.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import msgspec

from understudy.broker.log.segment import NoJournalError, segment_number
from understudy.broker.server.feed_hold import HOLD_SUFFIX
from understudy.broker.server.file_storage import FileStorage
from understudy.observers.events_schema import Event, Prepare, Rollback
from understudy.observers.feed import EventSource, FeedSink, Selection, merged
from understudy.observers.feed_reader import CursorError, FeedReader

POLL_S: Final = 0.05
LOOK_S: Final = 1.0
"""So often it looks for journals of brokers that were not there before, and for damage where nothing more comes."""
ROUND_EVENTS: Final = 20_000
"""Of one broker, before the others have their turn."""
CURSOR_S: Final = 1.0
HOLD_S: Final = 5.0


def journals_in(directory: Path) -> list[Path]:
    """The directories with a journal: ``directory`` itself, else those in it.

    Raises:
        NoJournalError: there is none.
    """
    if not directory.is_dir():
        raise NoJournalError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    if _has_journal(directory):
        return [directory]
    found = [each for each in sorted(directory.iterdir()) if each.is_dir() and _has_journal(each)]
    if not found:
        raise NoJournalError(f"there is no journal in {directory}, nor in a directory in it")
    return found


def _has_journal(directory: Path) -> bool:
    return any(segment_number(path.name) is not None for path in directory.iterdir())


@attrs.define
class _Open:
    """A journal that is read.

    Attributes:
        sources: of its broker's events: the journal, and whatever else tells facts of that broker.
        held, held_at: the segment that its broker was asked to keep, and when.
    """

    path: Path
    storage: FileStorage
    reader: FeedReader
    sources: list[EventSource]
    held: int = 0
    held_at: float = 0.0


class FeedDirectory:
    """All journals of a directory.

    Args:
        directory: of a cluster, or of one broker.
        cursor: file of cursors by directory name; None: begin at the beginning, keep nothing.
        hold: name under which brokers are asked to keep what was not read; "": they are not.

    Attributes:
        stopping: `follow` ends after this round, with its cursors kept.
    """

    def __init__(self, directory: Path, cursor: Path | None = None, hold: str = "") -> None:
        self._directory = directory
        self._hold = hold
        self.stopping = False
        self._cursor = cursor
        self._kept: dict[str, str] = {}
        if cursor is not None and cursor.exists():
            try:
                self._kept = msgspec.json.decode(cursor.read_bytes(), type=dict[str, str])
            except msgspec.MsgspecError as error:
                raise CursorError(f"{cursor} is no file of cursors: {error}") from error
        self._saved_at = 0.0
        self._open: dict[str, _Open] = {}
        self._look()

    def _look(self) -> None:
        for path in journals_in(self._directory):
            if path.name not in self._open:
                storage = FileStorage(path, read_only=True)
                kept = self._kept.get(path.name)
                reader = FeedReader(storage, kept.encode() if kept else None)
                self._open[path.name] = _Open(path, storage, reader, [reader])

    def _sources(self) -> list[EventSource]:
        return [source for each in self._open.values() for source in each.sources]

    def read(self, sink: FeedSink, selection: Selection) -> None:
        """Up to the end of each journal, in one order."""
        for events in merged(source.events() for source in self._sources()):
            self._give(sink, selection, events)
        sink.flush()
        self._save(now=True)
        for each in self._open.values():
            each.reader.find_damage()

    def follow(self, sink: FeedSink, selection: Selection) -> None:
        """Until `stopping` is set. Each round takes what every journal has, and puts that in one order."""
        looked_at = time.monotonic()
        while not self.stopping:
            rounds = [_round(source) for source in self._sources()]
            for events in merged(rounds):
                self._give(sink, selection, events)
            sink.flush()
            self._save()
            if self._hold:
                self._ask_to_keep()
            if not any(rounds):
                if time.monotonic() - looked_at >= LOOK_S:
                    self._look()
                    for each in self._open.values():
                        each.reader.find_damage()
                    looked_at = time.monotonic()
                time.sleep(POLL_S)
        self._save(now=True)

    @staticmethod
    def _give(sink: FeedSink, selection: Selection, events: list[Event]) -> None:
        wanted = selection.of(events)
        if wanted:
            sink.take(wanted)

    def _save(self, *, now: bool = False) -> None:
        """Keep the cursors; what they stand behind has been flushed."""
        if self._cursor is None or (not now and time.monotonic() - self._saved_at < CURSOR_S):
            return
        self._saved_at = time.monotonic()
        for name, each in self._open.items():
            found = each.reader.cursor()
            if found is not None:
                self._kept[name] = found.decode()
        _replace(self._cursor, msgspec.json.encode(self._kept))

    def _ask_to_keep(self) -> None:
        """Write into each data directory which segment is being read."""
        now = time.monotonic()
        for each in self._open.values():
            segment = each.reader.segment
            if segment and (segment != each.held or now - each.held_at >= HOLD_S):
                each.held, each.held_at = segment, now
                try:
                    _replace(each.path / f"{self._hold}{HOLD_SUFFIX}", json.dumps({"segment": segment}).encode())
                except OSError as error:
                    print(f"understudy: {each.path} is not held: {error}", file=sys.stderr)  # noqa: T201  # a command prints

    def transactions_named(self, name: str) -> frozenset[str]:
        """What events call the transactions that a client named ``name``; reads all journals once."""
        found: set[str] = set()
        for path in journals_in(self._directory):
            storage = FileStorage(path, read_only=True)
            reader = FeedReader(storage)
            try:
                for events in reader.events():
                    found.update(
                        each.tx for each in events if isinstance(each, Prepare | Rollback) and each.name == name
                    )
            finally:
                reader.close()
                storage.close()
        return frozenset(found)

    def close(self) -> None:
        """Close all files."""
        for each in self._open.values():
            each.reader.close()
            each.storage.close()


def _round(source: EventSource) -> list[list[Event]]:
    """What one source has now, up to a bound."""
    found: list[list[Event]] = []
    count = 0
    for events in source.events():
        found.append(events)
        count += len(events)
        if count >= ROUND_EVENTS:
            break
    return found


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
