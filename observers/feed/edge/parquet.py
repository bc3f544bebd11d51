"""Parquet: one table for all events, through pyarrow, which the extra ``feed`` installs.

A column for each field of `events_schema`, after ``event``, the event's name. A column is null in rows of events that do not have
the field; a field that has its default has that value. pyarrow makes the columns out of JSON lines: that takes a third of the
time of making them row by row, and the lines are a compact way to keep events until their file is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.observers.events_schema import EVENT_TYPES, Event, event_name

BLOCK_BYTES: Final = 16 * 1024 * 1024
"""A line, an event, must be shorter."""

_NAMES: Final = {each: event_name(each.__name__) for each in EVENT_TYPES}


class ParquetMissingError(UnderstudyError):
    """pyarrow is not installed."""


def columns() -> dict[str, type]:
    """Name and type of each column, in order."""
    found: dict[str, type] = {"event": str}
    for each in EVENT_TYPES:
        for field in msgspec.structs.fields(each):
            known = found.setdefault(field.name, field.type)
            assert known is field.type, f"{each.__name__}.{field.name} has another type than elsewhere"
    return found


class Parquet:
    """Implements `feed.edge.sink_files.FileFormat`.

    Raises:
        ParquetMissingError: pyarrow is not installed.
    """

    suffix = "parquet"

    def __init__(self) -> None:
        try:
            self._schema = _schema()
        except ImportError as error:
            raise ParquetMissingError(f"--format parquet needs the extra 'feed': {error}") from error
        self._encode = msgspec.json.Encoder().encode_lines

    def encode(self, events: list[Event]) -> bytes:
        names = _NAMES
        asdict = msgspec.structs.asdict
        return self._encode([{"event": names[type(each)], **asdict(each)} for each in events])

    def content(self, parts: Sequence[bytes]) -> Sequence[bytes | memoryview]:
        import pyarrow as pa  # noqa: PLC0415  # what does not write Parquet need not have it
        from pyarrow import json, parquet  # noqa: PLC0415

        table = json.read_json(
            pa.BufferReader(b"".join(parts)),
            read_options=json.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="error"),
        )
        out = pa.BufferOutputStream()
        parquet.write_table(table, out, compression="zstd")
        return [memoryview(out.getvalue())]


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, as mappings without what their kind of event does not have.

    Raises:
        ParquetMissingError: pyarrow is not installed.
        ValueError: it is no such file.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ParquetMissingError(f"{path}: to read Parquet needs the extra 'feed': {error}") from error
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}


@cache
def _schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415  # see above

    types = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns().items()])
