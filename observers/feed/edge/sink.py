"""Sinks of a terminal, or of whatever stdout leads to: readable lines, or JSON lines.

What a full disk behind stdout does not take is kept and tried again, to the octet: the feed says so, waits, and goes on when
there is room. Nothing more is read meanwhile.
"""

from __future__ import annotations

import time
from typing import Any, BinaryIO, Final

import msgspec

from understudy.observers.events_schema import End, Event
from understudy.observers.feed.complaint import PASSING, Complaint
from understudy.observers.feed.text import event_line

GATHERED_BYTES: Final = 64 << 10
"""So much is gathered before it is written."""
RETRY_S: Final = 1.0


class _Output:
    """Writes to ``stream``, past its buffer: what that has tried to write in vain cannot be told."""

    def __init__(self, stream: BinaryIO) -> None:
        stream.flush()
        self._stream = stream  # it would close the raw one with its own end
        self._raw: Any = getattr(stream, "raw", stream)
        self._left = bytearray()
        self._complaint = Complaint("stdout", "the feed waits", "there is room again")

    def write(self, data: bytes) -> None:
        self._left += data
        if len(self._left) >= GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Return when all of it is written."""
        left = self._left
        while left:
            try:
                written = self._raw.write(left)
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                self._complaint.say(error)
                self._wait()
            else:
                del left[: written or 0]
        self._complaint.end()
        self._raw.flush()

    def _wait(self) -> None:
        try:
            time.sleep(RETRY_S)
        except KeyboardInterrupt:
            self._left.clear()  # no cursor stands behind it
            raise


class TextSink:
    """One readable line an event.

    Args:
        stream: where the lines go; it is not closed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._out = _Output(stream)

    def take(self, events: list[Event]) -> None:
        lines = [event_line(each) for each in events if not isinstance(each, End)]  # of use to programs alone
        if lines:
            self._out.write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.flush()


class JsonSink:
    """JSON lines.

    Args:
        stream: where the lines go; it is not closed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._out = _Output(stream)
        self._encode = msgspec.json.Encoder().encode_lines

    def take(self, events: list[Event]) -> None:
        self._out.write(self._encode(events))

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.flush()
