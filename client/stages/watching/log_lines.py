"""Log lines of a worker: each names the delivery during which it was written, also those of the application itself."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, Literal

from understudy.client.stages.watching.watch import handling_here

LogFormat = Literal["text", "json"]
KEYS: Final = "understudy_ids"


class _Named(logging.Filter):
    """Puts the ids of the delivery into a record. In the thread, or the task, that writes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        here = handling_here.get()
        setattr(record, KEYS, here.ids() if here is not None else {})
        return True


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ids: dict[str, object] = getattr(record, KEYS, {})
        first, newline, rest = super().format(record).partition("\n")
        return " ".join([first, *(f"{key}={value}" for key, value in ids.items())]) + newline + rest


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, KEYS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def write_log_lines(kind: LogFormat) -> None:
    """Write all log lines of this process to standard error, from level INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Named())
    handler.setFormatter(_Json() if kind == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _quieten_libraries()


def write_warnings() -> None:
    """Write the warnings of a command to standard error, as text alone."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    _quieten_libraries()


def _quieten_libraries() -> None:
    for library in ("aiormq", "aio_pika"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # each loss is a traceback there, and a line of ours
