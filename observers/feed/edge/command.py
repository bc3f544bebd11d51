"""``understudy feed``: what happens in a broker or a cluster, read from the journals in its directory.

A process of its own that only reads: the brokers may run, be killed or have been dead for long. It is an entry point of
``understudy.commands``, since the broker may not import this room.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NoReturn

import typer

from understudy.broker.config import ConfigError
from understudy.broker.config.readers import GIB, KIB, Place, size
from understudy.broker.errors import UnderstudyError
from understudy.broker.log.journal_gate import NoteFormatError, UnknownNoteError
from understudy.broker.log.record import UnknownKindError
from understudy.broker.log.segment import JournalFormatError, NoJournalError
from understudy.broker.transactions.outcome_query import is_own_id
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.fact_reader import UnknownFactError
from understudy.observers.feed.edge.files_reader import FeedFileError, FeedFiles, file_directories
from understudy.observers.feed.edge.journals import UnreadableError, has_journals
from understudy.observers.feed.edge.pace import FeedPace
from understudy.observers.feed.edge.parquet import ParquetMissingError
from understudy.observers.feed.edge.sink import JsonSink, TextSink
from understudy.observers.feed.edge.sink_files import FeedFilesError
from understudy.observers.feed.edge.target import Format, KafkaMissingError, Target
from understudy.observers.feed.feed import Selection
from understudy.observers.feed.reader import CursorError, NewerJournalError
from understudy.observers.kafka_refused import KafkaRefusedError

DAMAGED: Final = 1
UNUSABLE: Final = 2
UNUSABLE_ERRORS: Final = (
    NoJournalError,
    JournalFormatError,
    UnknownKindError,
    UnknownNoteError,
    NoteFormatError,
    NewerJournalError,
    UnreadableError,
    CursorError,
    UnknownFactError,
    FeedFilesError,
    FeedFileError,
    ParquetMissingError,
    ConfigError,
    KafkaMissingError,
    KafkaRefusedError,
)
_NAME: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
_RELATIVE: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def feed(
    data: Annotated[
        Path,
        typer.Option(
            help="The directory of a cluster, of one broker, or of files that --out wrote.", show_default=False
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    tx: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The story of one transaction, over all brokers: its id, or the client's name."
        ),
    ] = "",
    queue: Annotated[str, typer.Option(help="Only what concerns this queue: name, or vhost/name.")] = "",
    since: Annotated[
        str, typer.Option(help="Not what is older: 30s, 10m, 2h, 1d, or a time as 2026-01-31T12:00.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; docs/feed.md has the fields.")] = False,
    cursor: Annotated[
        Path | None,
        typer.Option(help="Go on where this file says, and keep it up to date.", show_default=False),
    ] = None,
    hold: Annotated[
        str, typer.Option(metavar="NAME", help="Brokers keep what this reader has not read, up to feed.hold_bytes.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write files into this directory, and go on where they end.", show_default=False
        ),
    ] = None,
    file_format: Annotated[
        Format, typer.Option("--format", help="Of the files; parquet needs the extra 'feed'.")
    ] = Format.JSONL,
    roll_bytes: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="A file is written when so much is gathered (32MiB); a transaction of Kafka (1MiB).",
            show_default=False,
        ),
    ] = "",
    roll_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="The same when its first event is so old (60; into Kafka 0.2).", show_default=False
        ),
    ] = None,
    kafka: Annotated[
        str,
        typer.Option(metavar="HOSTS", help="Send the events to a Kafka at host:port,...; needs --topic and --cursor."),
    ] = "",
    topic: Annotated[str, typer.Option(help="The topic in Kafka; it must be there.")] = "",
    kafka_options: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A configuration with a section [kafka]: hosts, TLS, SASL.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what happens in a cluster, or in one broker: every step of every transaction, a line each.

    Reads the journals only: brokers need not run, and do not notice it. Exit codes: 0 done; 1 a journal is damaged; 2 there is no
    journal, one of a newer program, or the files or Kafka cannot be written to.
    """
    stream = sys.stdout.buffer
    target = Target(
        stream=stream,
        as_json=as_json,
        cursor=cursor,
        out=out,
        file_format=file_format,
        roll_bytes=_size(roll_bytes) if roll_bytes else None,
        roll_s=roll_seconds,
        kafka=kafka,
        topic=topic,
        kafka_options=kafka_options,
    )
    target.check()
    if hold and not _NAME.fullmatch(hold):
        raise typer.BadParameter(f"{hold!r} is no name: letters, digits, - and _", param_hint="--hold")
    since_ms = _since_ms(since)
    with ending_cleanly(stream):
        files = FeedFiles(data) if file_directories(data) and not has_journals(data) else None
        if files is not None:
            if follow or hold or target.keeps or cursor is not None:
                raise typer.BadParameter(
                    "files are read to their end: no --follow, --hold, --cursor, --out, --kafka", param_hint="--data"
                )
            with closing(JsonSink(stream) if as_json else TextSink(stream)) as shown:
                files.read(shown, Selection(txs=_transactions(files, tx), queue=queue, since_ms=since_ms))
            return
        sink, cursors = target.open()
        pace = FeedPace() if follow and target.keeps else None  # a person at a terminal does not want to wait
        with closing(sink), closing(FeedDirectory(data, cursors, hold, pace)) as feeds:
            selection = Selection(txs=_transactions(feeds, tx), queue=queue, since_ms=since_ms)
            if follow:
                _stop_when_asked(feeds)
                feeds.follow(sink, selection)
            elif target.keeps:
                _stop_when_asked(feeds)
                feeds.read_in_rounds(sink, selection)
            else:
                feeds.read(sink, selection)


def _size(text: str) -> int:
    try:
        return int(size(KIB, GIB).read(int(text) if text.isdigit() else text, Place("", Path())))
    except ConfigError as error:
        raise typer.BadParameter(error.problem, param_hint="--roll-bytes") from error


def _stop_when_asked(feeds: FeedDirectory) -> None:
    """SIGINT and SIGTERM let the round end and the cursors be kept; a second one ends the program at once."""

    def stop(number: int, _: object) -> None:
        feeds.stop()
        signal.signal(number, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


@contextmanager
def ending_cleanly(stream: BinaryIO) -> Iterator[None]:
    """End as `feed` says, whatever a journal holds and whoever stops reading ``stream`` or presses Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        _flush(stream)
    except BrokenPipeError:
        _to_nowhere(stream)
    except UNUSABLE_ERRORS as error:
        _fail(stream, error, UNUSABLE)
    except UnderstudyError as error:
        _fail(stream, error, DAMAGED)


def _flush(stream: BinaryIO) -> None:
    try:
        stream.flush()
    except BrokenPipeError:
        _to_nowhere(stream)


def _to_nowhere(stream: BinaryIO) -> None:
    """Point the stream to nowhere: its reader has gone, and Python would complain when it flushes the stream at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(stream: BinaryIO, error: UnderstudyError, code: int) -> NoReturn:
    _flush(stream)
    print(f"understudy: {error}", file=sys.stderr)  # noqa: T201  # a command prints
    raise typer.Exit(code)


def _transactions(feeds: FeedDirectory | FeedFiles, tx: str) -> frozenset[str] | None:
    """The transaction of that id; else those of that name, as far as they are in the journals already."""
    if not tx:
        return None
    return frozenset((tx,)) if is_own_id(tx.rpartition("/")[2]) else feeds.transactions_named(tx)


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
