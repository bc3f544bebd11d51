"""Journals of a directory: which there are, and one that is open, with the facts beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.segment import NoJournalError, segment_number
from understudy.broker.server.files.file_storage import DirectoryGoneError, FileStorage
from understudy.observers.events_schema import Event, Prepare, Rollback
from understudy.observers.feed.edge.fact_reader import FactReader
from understudy.observers.feed.feed import EventSource
from understudy.observers.feed.reader import FeedReader


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
    if has_journal(directory):
        return [directory]
    found = [each for each in sorted(directory.iterdir()) if each.is_dir() and _may_have_journal(each)]
    if not found:
        raise NoJournalError(f"there is no journal in {directory}, nor in a directory in it")
    return found


def has_journals(directory: Path) -> bool:
    """True if `journals_in` would find any."""
    try:
        return bool(journals_in(directory))
    except NoJournalError:
        return False


def has_journal(directory: Path) -> bool:
    """True if the directory holds segments.

    Raises:
        UnreadableError: this user may not look into it.
    """
    try:
        return any(segment_number(path.name) is not None for path in directory.iterdir())
    except OSError as error:
        raise UnreadableError(directory, error) from error


def _may_have_journal(directory: Path) -> bool:
    """Also what cannot be looked into: it is said when it is opened."""
    try:
        return has_journal(directory)
    except UnreadableError:
        return True


@attrs.define
class OpenJournal:
    """A journal that is read.

    Attributes:
        reader, facts: of its broker's journal, and of its facts that are in no journal.
        sources: what is still read of these.
        idle: it had nothing in the last round.
        error: why it cannot be read on.
        behind: the segment in which the kept cursor stands, or in which reading began; 0: nothing was read.
        held, held_at: the segment that its broker was asked to keep, and when.
        ended: how many events each incarnation had when `ends` was asked last.
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
    ended: dict[str, int] = attrs.field(factory=dict)

    def note_round(self, *, idle: bool) -> None:
        """The journal had nothing in this round (``idle``), or something."""
        self.idle = idle

    def note_saved(self) -> None:
        """The cursor is kept as it is now."""
        self.behind = self.reader.segment

    def to_be_kept(self, now: float, every_s: float) -> int:
        """The segment from which on the broker is to be asked to keep its journal, now; 0: it was asked, or nothing was read."""
        segment = self.behind = self.behind or self.reader.segment
        if not segment or (segment == self.held and now - self.held_at < every_s):
            return 0
        self.held, self.held_at = segment, now
        return segment

    def ends(self) -> list[Event]:
        """Where each source ends now, if it has gone on since that was asked last."""
        found = [end for end in (self.reader.end(), self.facts.end()) if end is not None]
        new = [end for end in found if self.ended.get(end.incarnation) != end.events]
        self.ended = {end.incarnation: end.events for end in found}
        return list(new)

    def streams(self) -> list[Iterator[list[Event]]]:
        """Present events of each source. A journal that cannot be read ends: others go on."""
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
        """True if the journal's directory was removed, or replaced by another."""
        try:
            self.storage.check_place()
        except DirectoryGoneError:
            return True
        return False

    def close(self) -> None:
        self.reader.close()
        self.facts.close()
        self.storage.close()


def named_in(path: Path, name: str) -> set[str]:
    """The ``tx`` of each transaction of that journal that a client named ``name``."""
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
