"""``understudy feed``: what happens in a broker or a cluster, read from the journals in its directory.

A process of its own that only reads: the brokers may run, be killed or have been dead for long. It is an entry point of
``understudy.commands``, since the broker may not import this room.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, NoReturn

import attrs
import msgspec
import typer

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.journal_gate import NoteFormatError, UnknownNoteError
from understudy.broker.log.record import UnknownKindError
from understudy.broker.log.segment import JournalFormatError, NoJournalError, segment_number
from understudy.broker.server.file_storage import FileStorage
from understudy.observers.events_schema import Event
from understudy.observers.feed import FeedSink, Selection, merged
from understudy.observers.feed_reader import CursorError, FeedReader
from understudy.observers.feed_sink import JsonSink, TextSink

POLL_S: Final = 0.05
LOOK_S: Final = 1.0
"""So often it looks for journals of brokers that were not there before, and for damage where nothing more comes."""
ROUND_EVENTS: Final = 20_000
"""Of one broker, before the others have their turn."""
CURSOR_S: Final = 1.0
UNUSABLE: Final = 2
_RELATIVE: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def feed(
    data: Annotated[Path, typer.Option(help="The directory of a cluster, or of one broker.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    tx: Annotated[str, typer.Option(help="The story of one transaction, over all brokers.")] = "",
    queue: Annotated[str, typer.Option(help="Only what concerns this queue: name, or vhost/name.")] = "",
    since: Annotated[
        str, typer.Option(help="Not what is older: 30s, 10m, 2h, 1d, or a time as 2026-01-31T12:00.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; docs/feed.md has the fields.")] = False,
    cursor: Annotated[
        Path | None,
        typer.Option(help="Go on where this file says, and keep it: nothing is told twice.", show_default=False),
    ] = None,
) -> None:
    """Print what happens in a cluster, or in one broker: every step of every transaction, a line each.

    Reads the journals only: brokers need not run, and do not notice it. Exit codes: 0 done; 1 a journal is damaged; 2 there is no
    journal, or one of a newer program.
    """
    stream = sys.stdout.buffer
    sink: FeedSink = JsonSink(stream) if as_json else TextSink(stream)
    selection = Selection(tx=tx, queue=queue, since_ms=_since_ms(since))
    try:
        feeds = Feeds(data, cursor)
        try:
            if follow:
                feeds.follow(sink, selection)
            else:
                feeds.read(sink, selection)
        finally:
            feeds.close()
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):
            sink.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains of it when it ends
    except (
        NoJournalError,
        JournalFormatError,
        UnknownKindError,
        UnknownNoteError,
        NoteFormatError,
        CursorError,
    ) as error:
        _fail(sink, error, UNUSABLE)
    except UnderstudyError as error:
        _fail(sink, error, 1)


def _fail(sink: FeedSink, error: UnderstudyError, code: int) -> NoReturn:
    with suppress(BrokenPipeError):
        sink.flush()
    print(f"understudy: {error}", file=sys.stderr)  # noqa: T201  # a command prints
    raise typer.Exit(code)


def _since_ms(text: str) -> int:
    if not text:
        return 0
    found = _RELATIVE.fullmatch(text)
    if found is not None:
        return int((time.time() - int(found[1]) * _SECONDS[found[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither like 10m nor a time", param_hint="--since") from None


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
    """A journal that is read."""

    storage: FileStorage
    reader: FeedReader


class Feeds:
    """All journals of a directory.

    Args:
        directory: of a cluster, or of one broker.
        cursor: file of cursors by directory name; None: begin at the beginning, keep nothing.
    """

    def __init__(self, directory: Path, cursor: Path | None = None) -> None:
        self._directory = directory
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
                self._open[path.name] = _Open(storage, FeedReader(storage, kept.encode() if kept else None))

    def read(self, sink: FeedSink, selection: Selection) -> None:
        """Up to the end of each journal, in one order."""
        for events in merged(each.reader.events() for each in self._open.values()):
            self._give(sink, selection, events)
        sink.flush()
        self._save(now=True)
        for each in self._open.values():
            each.reader.find_damage()

    def follow(self, sink: FeedSink, selection: Selection) -> None:
        """For ever. Each round takes what every journal has, and puts that in one order."""
        looked_at = time.monotonic()
        while True:
            rounds = [_round(each.reader) for each in self._open.values()]
            for events in merged(rounds):
                self._give(sink, selection, events)
            sink.flush()
            self._save()
            if not any(rounds):
                if time.monotonic() - looked_at >= LOOK_S:
                    self._look()
                    for each in self._open.values():
                        each.reader.find_damage()
                    looked_at = time.monotonic()
                time.sleep(POLL_S)

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
        temporary = self._cursor.with_name(f"{self._cursor.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(self._kept))
        temporary.replace(self._cursor)

    def close(self) -> None:
        """Close all files."""
        for each in self._open.values():
            each.reader.close()
            each.storage.close()


def _round(reader: FeedReader) -> list[list[Event]]:
    """What one journal has now, up to a bound."""
    found: list[list[Event]] = []
    count = 0
    for events in reader.events():
        found.append(events)
        count += len(events)
        if count >= ROUND_EVENTS:
            break
    return found
