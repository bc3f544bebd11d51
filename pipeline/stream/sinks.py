"""Sinks: where tables go. A batch that is written again replaces itself, so a batch that was killed is there once.

DIR/throughput/batch=0/part-....parquet      Parquet: a folder a batch, which is written anew as a whole
DIR/throughput/_delta_log/...                Delta: the table keeps the number of the last batch, and passes over older ones
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame

from understudy.pipeline.stream.wishes import Format

CONSOLE_ROWS: Final = 50


class Sink(Protocol):
    """Takes the rows of a table that one batch has."""

    def write(self, table: str, batch: int, rows: DataFrame) -> None:
        """Write all rows, or replace what an earlier try of the same batch has written. ``rows`` may be empty."""


class ParquetSink:
    """One file a batch and table. Readers see the column ``batch``.

    Args:
        directory: of the tables.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, table: str, batch: int, rows: DataFrame) -> None:
        if not rows.isEmpty():
            rows.coalesce(1).write.mode("overwrite").parquet(str(self._directory / table / f"batch={batch}"))


class DeltaSink:
    """A Delta table each.

    Args:
        directory: of the tables.
        stream: id of the stream: Delta keeps the last batch by it.
    """

    def __init__(self, directory: Path, stream: str) -> None:
        self._directory = directory
        self._stream = stream

    def write(self, table: str, batch: int, rows: DataFrame) -> None:
        if not rows.isEmpty():
            writer = rows.coalesce(1).write.format("delta").mode("append")
            writer = writer.option("txnAppId", f"{self._stream}-{table}").option("txnVersion", batch)
            writer.save(str(self._directory / table))


class ConsoleSink:
    """Prints at most `CONSOLE_ROWS` rows of a table and batch; a batch that runs again is printed again."""

    def write(self, table: str, batch: int, rows: DataFrame) -> None:
        if not rows.isEmpty():
            print(f"{table}, batch {batch}", flush=True)  # noqa: T201  # that is its purpose
            rows.show(CONSOLE_ROWS, truncate=False)


def make_sink(kind: Format, directory: Path | None, stream: str) -> Sink:
    """The sink of that format.

    Args:
        kind: the format.
        directory: of the tables; the console has none.
        stream: id of the stream.
    """
    if kind is Format.CONSOLE:
        return ConsoleSink()
    assert directory is not None, "the command asks for --out"
    return DeltaSink(directory, stream) if kind is Format.DELTA else ParquetSink(directory)
