"""The log of a broker process: structlog to stderr, for people or as JSON, a line per event of the broker and none per message.

Much of what stands in a line was said by a peer: a user's name, a reason, a client's text. Here, where lines are made, and nowhere
else in a broker, it is made harmless: in the text log no character of an event or of a value is one that a terminal obeys, or that
begins a new line; JSON escapes them anyway. (Commands do so for what they print.)
"""

from __future__ import annotations

import io
import logging
import sys
from contextlib import suppress
from typing import Any, BinaryIO, Final, Literal, TextIO, cast

import structlog

from understudy.broker.printable import escaped

LogFormat = Literal["text", "json"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_REPORT_KEYS: Final = ("traceback", "event_input")


class _Stderr:
    """Standard error. A line that it does not take is lost: a full disk, or a reader that is gone, must not end the broker.

    Lines are written from the middle of what the broker does, and what raises there is taken for a failed journal.
    """

    @staticmethod
    def write(text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    @staticmethod
    def flush() -> None:
        with suppress(OSError):
            sys.stderr.flush()


def configure_logging(log_format: LogFormat, level: str, **always: Any) -> None:
    """Send everything at ``level`` and above to stderr.

    Args:
        log_format: text for people, json for machines: one object a line.
        level: a key of ``LEVELS``.
        always: stands in every line, such as the broker's id.
    """
    _unbuffer()
    as_json = structlog.processors.JSONRenderer(default=str)
    renderer: structlog.typing.Processor = as_json if log_format == "json" else _render_text
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**always)


def _unbuffer() -> None:
    """Text that standard error does not take is lost at once. In a buffer, it would end Python with 120, not its exit code."""
    stream = sys.stderr
    if isinstance(getattr(stream, "buffer", None), io.BufferedWriter):
        raw = cast("BinaryIO", io.FileIO(stream.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)


def _render_text(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    """``time level event key=value ...``; what has several lines follows. structlog's own renderer looks for a terminal."""
    blocks = [_lines(str(event.pop(key)).rstrip()) for key in _REPORT_KEYS if key in event]
    head = f"{event.pop('timestamp')} {event.pop('level'):7} {escaped(str(event.pop('event')))}"
    values = [f"{key}={_shown(value)}" for key, value in event.items()]
    return "\n".join([" ".join([head, *values]), *blocks])


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if " " in text or not text or not text.isprintable() else text


def _lines(text: str) -> str:
    """A text of several lines, each indented, so that none of them can be taken for another line of the log."""
    return "\n".join([f"    {escaped(line)}" for line in text.split("\n")])
