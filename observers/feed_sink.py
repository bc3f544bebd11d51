"""Sinks of a terminal, or of whatever stdout leads to: readable lines, or JSON lines."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from understudy.observers.events_schema import Event
from understudy.observers.feed_text import event_line


class TextSink:
    """One readable line an event.

    Args:
        stream: where the lines go; it is not closed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def take(self, events: list[Event]) -> None:
        lines = "\n".join(map(event_line, events)) + "\n"
        self._stream.write(lines.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.flush()


class JsonSink:
    """JSON lines.

    Args:
        stream: where the lines go; it is not closed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._encode = msgspec.json.Encoder().encode_lines

    def take(self, events: list[Event]) -> None:
        self._stream.write(self._encode(events))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.flush()
