"""Target: where ``understudy feed`` brings events, from its options: the terminal, files, or Kafka."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import attrs
import typer

from understudy.broker.config.readers import MIB
from understudy.broker.errors import UnderstudyError
from understudy.observers.feed.edge.cursor_file import CursorFile
from understudy.observers.feed.edge.parquet import Parquet
from understudy.observers.feed.edge.sink import JsonSink, TextSink
from understudy.observers.feed.edge.sink_files import FileFormat, JsonLines, RollingFiles
from understudy.observers.feed.feed import FeedCursors, FeedSink

FILE_BYTES = 32 * MIB
FILE_S = 60.0


class KafkaMissingError(UnderstudyError):
    """The extra ``kafka`` is not installed."""


class Format(StrEnum):
    """Of the files in ``--out``."""

    JSONL = "jsonl"
    PARQUET = "parquet"


@attrs.frozen(kw_only=True)
class Target:
    """The options of the command that say where events go, as the command has them; None and "": not given."""

    stream: BinaryIO
    as_json: bool
    cursor: Path | None
    out: Path | None
    file_format: Format
    roll_bytes: int | None
    roll_s: float | None
    kafka: str
    topic: str
    kafka_options: Path | None

    @property
    def into_kafka(self) -> bool:
        return bool(self.kafka or self.topic or self.kafka_options is not None)

    @property
    def keeps(self) -> bool:
        """True if the sink keeps the cursors with the events."""
        return self.out is not None or self.into_kafka

    def check(self) -> None:
        """See whether the options go together. Raises: typer.BadParameter."""
        if self.out is not None and (self.as_json or self.cursor is not None):
            raise typer.BadParameter("files have a --format, and keep where they end by themselves", param_hint="--out")
        if not self.into_kafka:
            return
        if self.out is not None or self.as_json:
            raise typer.BadParameter("events go into Kafka, and not to --out or --json", param_hint="--kafka")
        if not self.topic:
            raise typer.BadParameter("say to which --topic", param_hint="--kafka")
        if not self.kafka and self.kafka_options is None:
            raise typer.BadParameter("say where Kafka is: --kafka or --kafka-options", param_hint="--topic")
        if self.cursor is None:
            raise typer.BadParameter("say in which file the feed keeps where it stands: --cursor", param_hint="--kafka")

    def open(self) -> tuple[FeedSink, FeedCursors]:
        """The sink, and what keeps the cursors.

        Raises:
            UnderstudyError: the target cannot be used.
        """
        if self.into_kafka:
            return self._open_kafka()
        if self.out is not None:
            files = RollingFiles(
                self.out, _format(self.file_format), self.roll_bytes or FILE_BYTES, self.roll_s or FILE_S
            )
            return files, files
        shown = JsonSink(self.stream) if self.as_json else TextSink(self.stream)
        return shown, CursorFile(self.cursor)

    def _open_kafka(self) -> tuple[FeedSink, FeedCursors]:
        try:
            from understudy.observers.edge.kafka_connection import kafka_config  # noqa: PLC0415  # an extra
            from understudy.observers.feed.edge.kafka.topic import ROLL_BYTES, ROLL_S, KafkaFeed  # noqa: PLC0415
        except ImportError as error:
            raise KafkaMissingError(f"--kafka needs the extra 'kafka': {error}") from error
        assert self.cursor is not None  # `check` has seen to it
        config = kafka_config(self.kafka, self.kafka_options, os.environ)
        feed = KafkaFeed(config, self.topic, self.cursor, self.roll_bytes or ROLL_BYTES, self.roll_s or ROLL_S)
        return feed, feed


def _format(name: Format) -> FileFormat:
    return Parquet() if name is Format.PARQUET else JsonLines()
