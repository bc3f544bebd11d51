"""FeedFiles: the files that feeds have written (`feed.edge.sink_files`) as one feed again, long after the journals have let go.

    cluster/feed/b1/000000000001.jsonl ...      cluster/feed/b2/000000000001.parquet ...

A directory of files is one source: its events are in order. The sources are merged as those of journals are. Files are final, so
they are read to their end; what a running feed has not written yet is in the journals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Union

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.observers.events_schema import EVENT_TYPES, Event, Prepare, Rollback
from understudy.observers.feed.edge.parquet import rows
from understudy.observers.feed.feed import FeedSink, Selection, merged

SUFFIXES: Final = (".jsonl", ".parquet")
_ANY_EVENT: Final[Any] = Union[EVENT_TYPES]  # noqa: UP007  # a tuple, as it is made at run time


class FeedFileError(UnderstudyError):
    """A file of a feed cannot be read: it is damaged, or of a newer program."""


def file_directories(directory: Path) -> list[Path]:
    """The directories with files of feeds: ``directory`` itself, else those in it; empty if there are none."""
    if not directory.is_dir():
        return []
    if _files(directory):
        return [directory]
    try:
        return [each for each in sorted(directory.iterdir()) if each.is_dir() and _files(each)]
    except OSError:  # whoever looks for journals there says so
        return []


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("[0-9]*") if path.suffix in SUFFIXES)


class FileEvents:
    """The files of one directory; implements `feed.EventSource`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def events(self) -> Iterator[list[Event]]:
        """All of them, those of one moment at a time.

        Raises:
            FeedFileError: names the file.
            ParquetMissingError: a file is of that format, and pyarrow is not installed.
        """
        for path in _files(self._directory):
            for _, events in groupby(_events(path), key=lambda event: event.at_ms):
                yield list(events)


def _events(path: Path) -> Iterable[Event]:
    found: list[Event]
    try:
        if path.suffix == ".parquet":
            found = msgspec.convert(list(rows(path)), list[_ANY_EVENT])
        else:
            found = msgspec.json.Decoder(_ANY_EVENT).decode_lines(path.read_bytes())
    except (msgspec.MsgspecError, ValueError) as error:
        raise FeedFileError(f"{path} holds what is no event of this program: {error}") from error
    except OSError as error:
        raise FeedFileError(f"{path}: {error.strerror or error}") from error
    return found


class FeedFiles:
    """All files of ``directory``, or of the directories in it."""

    def __init__(self, directory: Path) -> None:
        self._sources = [FileEvents(each) for each in file_directories(directory)]

    def read(self, sink: FeedSink, selection: Selection) -> None:
        """To the end of each, in one order."""
        for events in merged(source.events() for source in self._sources):
            wanted = selection.of(events)
            if wanted:
                sink.take(wanted)
        sink.flush()

    def transactions_named(self, name: str) -> frozenset[str]:
        """The ``tx`` of each transaction that a client named ``name``."""
        return frozenset(
            each.tx
            for source in self._sources
            for events in source.events()
            for each in events
            if isinstance(each, Prepare | Rollback) and each.name == name
        )
