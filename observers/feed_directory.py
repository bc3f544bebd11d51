"""FeedDirectory: all journals of a directory as one feed, from their beginning or from where an earlier one stopped.

It owns what the command needs of the file system: which directories hold a journal, and the holds that ask brokers to keep what was
not read yet (``broker/server/feed_hold.py``).

Cursors are kept (`FeedCursors`) after the events before them have left (`FeedSink.flush`). What a hold asks for is what stands
behind the cursors that are kept, since that is where the feed goes on if it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.segment import NoJournalError, segment_number
from understudy.broker.server.feed_hold import HOLD_SUFFIX
from understudy.broker.server.file_storage import DirectoryGoneError, FileStorage
from understudy.observers.events_schema import Event, Prepare, Rollback
from understudy.observers.fact_reader import FactReader
from understudy.observers.feed import EventSource, FeedCursors, FeedSink, Selection, merged
from understudy.observers.feed_complaint import Complaint
from understudy.observers.feed_cursor_file import CursorFile, replace_file
from understudy.observers.feed_reader import FeedReader

FACTS: Final = "/facts"
"""Behind a directory's name: the cursor of its facts."""
POLL_S: Final = 0.05
LOOK_S: Final = 1.0
"""So often it looks for journals of brokers that were not there before, and for damage where nothing more comes."""
ROUND_EVENTS: Final = 20_000
"""Of one broker, before the others have their turn."""
HOLD_S: Final = 5.0


class UnreadableError(UnderstudyError):
    """A directory, or a file in it, cannot be read."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{error.filename or path}: {error.strerror or error}")


def journals_in(directory: Path) -> list[Path]:
    """The directories with a journal: ``directory`` itself, else those in it.

    Raises:
        NoJournalError: there is none.
    """
    if not directory.is_dir():
        raise NoJournalError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    if _has_journal(directory):
        return [directory]
    found = [each for each in sorted(directory.iterdir()) if each.is_dir() and _may_have_journal(each)]
    if not found:
        raise NoJournalError(f"there is no journal in {directory}, nor in a directory in it")
    return found


def has_journals(directory: Path) -> bool:
    """Whether `journals_in` would find any."""
    try:
        return bool(journals_in(directory))
    except NoJournalError:
        return False


def _has_journal(directory: Path) -> bool:
    try:
        return any(segment_number(path.name) is not None for path in directory.iterdir())
    except OSError as error:
        raise UnreadableError(directory, error) from error


def _may_have_journal(directory: Path) -> bool:
    """Also what cannot be looked into: it is said when it is opened."""
    try:
        return _has_journal(directory)
    except UnreadableError:
        return True


@attrs.define
class _Open:
    """A journal that is read.

    Attributes:
        reader, facts: of its broker's journal, and of its facts that are in no journal.
        sources: what is still read of these.
        idle: it had nothing in the last round.
        error: why it cannot be read on.
        behind: the segment in which the kept cursor stands, or in which reading began; 0: nothing was read.
        held, held_at: the segment that its broker was asked to keep, and when.
    """

    path: Path
    storage: FileStorage
    reader: FeedReader
    facts: FactReader
    sources: list[EventSource]
    idle: bool = False
    error: UnderstudyError | None = None
    behind: int = 0
    held: int = 0
    held_at: float = 0.0

    def streams(self) -> list[Iterator[list[Event]]]:
        """What each source has now. A journal that cannot be read ends: others go on."""
        return [self._guarded(source) for source in self.sources]

    def _guarded(self, source: EventSource) -> Iterator[list[Event]]:
        try:
            yield from source.events()
        except UnderstudyError as error:
            self.error = self.error or error
        except OSError as error:
            self.error = self.error or UnreadableError(self.path, error)

    def find_damage(self) -> None:
        """See whether what looks like the end is damage."""
        try:
            self.reader.find_damage()
        except UnderstudyError as error:
            self.error = self.error or error
        except OSError as error:
            self.error = self.error or UnreadableError(self.path, error)

    @property
    def gone(self) -> bool:
        """Whether its directory was removed, or replaced by another."""
        try:
            self.storage.check_place()
        except DirectoryGoneError:
            return True
        return False

    def close(self) -> None:
        self.reader.close()
        self.facts.close()
        self.storage.close()


class FeedDirectory:
    """All journals of a directory.

    Args:
        directory: of a cluster, or of one broker.
        cursors: keeps cursors by directory name; without it the feed begins at the beginning.
        hold: name under which brokers are asked to keep what was not read; "": they are not.

    Attributes:
        stopping: `follow` ends after this round, with its cursors kept.
    """

    def __init__(self, directory: Path, cursors: FeedCursors | None = None, hold: str = "") -> None:
        self._directory = directory
        self._hold = hold
        self.stopping = False
        self._cursors: FeedCursors = cursors if cursors is not None else CursorFile(None)
        self._cursor_of = self._cursors.load()
        self._owed = False
        self._open: dict[str, _Open] = {}
        self._refused: dict[str, UnreadableError] = {}
        self._told: dict[str, str] = {}
        self._complaints: dict[Path, Complaint] = {}
        self._look()

    def _look(self) -> None:
        """Open journals that were not there before, and those of directories that were replaced."""
        for name, each in list(self._open.items()):
            if each.gone:
                self._note_cursor(name, each)
                each.close()
                del self._open[name]
        for path in journals_in(self._directory):
            if path.name not in self._open:
                self._open_journal(path)

    def _open_journal(self, path: Path) -> None:
        """What cannot be read is noted; it may be read at a later look."""
        name = path.name
        try:
            storage = FileStorage(path, read_only=True)
            _has_journal(path)
        except (OSError, UnreadableError) as error:
            self._refused[name] = error if isinstance(error, UnreadableError) else UnreadableError(path, error)
            return
        self._refused.pop(name, None)
        reader = FeedReader(storage, self._kept(name))
        facts = FactReader(path, self._kept(name + FACTS))
        self._open[name] = _Open(path, storage, reader, facts, [reader, facts])

    def _kept(self, name: str) -> bytes | None:
        kept = self._cursor_of.get(name)
        return kept.encode() if kept else None

    def read(self, sink: FeedSink, selection: Selection) -> None:
        """Up to the end of each journal, in one order.

        Raises:
            UnderstudyError: a journal could not be read to its end; all others have been.
        """
        for events in merged(stream for each in self._open.values() for stream in each.streams()):
            self._give(sink, selection, events)
        sink.flush()
        while not self._save(now=True):
            time.sleep(POLL_S)
        for each in self._open.values():
            each.find_damage()
        self._raise_first()

    def read_in_rounds(self, sink: FeedSink, selection: Selection) -> None:
        """The same for a sink that keeps the cursors, and asks for them in between. The order is that of `follow`.

        Raises:
            UnderstudyError: as `read`.
        """
        while not self.stopping and (self._round(sink, selection) or self._owed):
            if self._owed:
                time.sleep(POLL_S)
        while not (self._save(now=True) or self.stopping):
            time.sleep(POLL_S)
        for each in self._open.values():
            each.find_damage()
        self._raise_first()

    def follow(self, sink: FeedSink, selection: Selection) -> None:
        """Until `stopping` is set. Each round takes what every journal has, and puts that in one order.

        Raises:
            UnderstudyError: a journal could not be read on. That is said at once, and raised when the others have ended too.
        """
        looked_at = time.monotonic()
        while not self.stopping:
            if not self._round(sink, selection):
                time.sleep(POLL_S)
            if time.monotonic() - looked_at >= LOOK_S:
                self._look()
                for each in self._open.values():
                    if each.idle:
                        each.find_damage()
                self._tell_errors()
                looked_at = time.monotonic()
        self._save(now=True)
        self._raise_first()

    def _round(self, sink: FeedSink, selection: Selection) -> bool:
        """Returns whether there was anything. Nothing is read while what was read before is owed to the sink."""
        if self._owed:
            self._ask_to_keep()
            return self._save()
        rounds = []
        for each in self._open.values():
            found = [_taken(stream) for stream in each.streams()]
            each.idle = not any(found)
            rounds += found
        for events in merged(rounds):
            self._give(sink, selection, events)
        sink.flush()
        self._save()
        self._ask_to_keep()
        return any(rounds)

    def _tell_errors(self) -> None:
        for name, each in self._open.items():
            if each.error is not None and each.sources:
                _say(str(each.error))
                self._told[name] = str(each.error)
                each.sources.clear()
        for name, error in self._refused.items():
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                _say(f"{error}; the feed goes on without it, and looks again")
        if not any(each.sources for each in self._open.values()):
            self._raise_first()

    def _raise_first(self) -> None:
        errors = [each.error for each in self._open.values() if each.error is not None]
        for error in (*errors, *self._refused.values()):
            raise error

    @staticmethod
    def _give(sink: FeedSink, selection: Selection, events: list[Event]) -> None:
        wanted = selection.of(events)
        if wanted:
            sink.take(wanted)

    def _save(self, *, now: bool = False) -> bool:
        """Keep the cursors, if that is due; what they stand behind has been flushed. Returns whether nothing is owed."""
        due = self._cursors.due(time.monotonic())
        if not due and (self._owed or not now):
            return not self._owed
        for name, each in self._open.items():
            self._note_cursor(name, each)
        self._owed = not self._cursors.save(self._cursor_of)
        if not self._owed:
            for each in self._open.values():
                each.behind = each.reader.segment
        return not self._owed

    def _note_cursor(self, name: str, each: _Open) -> None:
        for key, found in ((name, each.reader.cursor()), (name + FACTS, each.facts.cursor())):
            if found is not None:
                self._cursor_of[key] = found.decode()

    def _ask_to_keep(self) -> None:
        """Write into each data directory from which segment on it has to be kept."""
        now = time.monotonic()
        for each in self._open.values() if self._hold else ():
            segment = each.behind = each.behind or each.reader.segment
            if segment and (segment != each.held or now - each.held_at >= HOLD_S):
                each.held, each.held_at = segment, now
                complaint = self._complaints.setdefault(
                    each.path, Complaint(f"{each.path}", "its broker keeps nothing")
                )
                try:
                    replace_file(each.path / f"{self._hold}{HOLD_SUFFIX}", json.dumps({"segment": segment}).encode())
                except OSError as error:
                    complaint.say(error)
                else:
                    complaint.end()

    def transactions_named(self, name: str) -> frozenset[str]:
        """What events call the transactions that a client named ``name``; reads all journals once."""
        found: set[str] = set()
        for path in journals_in(self._directory):
            if path.name not in self._refused:
                found |= _named_in(path, name)
        return frozenset(found)

    def close(self) -> None:
        """Close all files."""
        for each in self._open.values():
            each.close()


def _named_in(path: Path, name: str) -> set[str]:
    storage = FileStorage(path, read_only=True)
    reader = FeedReader(storage)
    found: set[str] = set()
    try:
        for events in reader.events():
            found.update(each.tx for each in events if isinstance(each, Prepare | Rollback) and each.name == name)
    except OSError as error:
        raise UnreadableError(path, error) from error
    finally:
        reader.close()
        storage.close()
    return found


def _say(text: str) -> None:
    print(f"understudy: {text}", file=sys.stderr)  # noqa: T201  # a command prints


def _taken(stream: Iterator[list[Event]]) -> list[list[Event]]:
    """What one source has now, up to a bound."""
    found: list[list[Event]] = []
    count = 0
    for events in stream:
        found.append(events)
        count += len(events)
        if count >= ROUND_EVENTS:
            break
    return found
