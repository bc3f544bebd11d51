"""The two ways in which a broker process ends at once: the disk failed (74), or we are wrong ourselves (70).

Neither unwinds anything. After a failed fsync nobody knows what is on the disk, and a core that has raised in the middle of a
step is in no state to be flushed: every further step could answer for something that is not so. So whether it can be said why
changes nothing: the log is often on the disk that has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from typing import Any, Final, NoReturn

import structlog

from understudy.broker.log.journal_state import JournalFailedError
from understudy.broker.log.segment import JournalDamagedError
from understudy.broker.server.process.exit_codes import ExitCode
from understudy.broker.server.sockets.stranger_log import StrangerLog

_log: Final = structlog.get_logger()


def crashed(event: str, error: BaseException) -> NoReturn:
    """An exception came out of the core: say at which event, and end with code 70; with 74 if it is the disk's.

    The core does no I/O but through its ports, and what these let through is a disk that does not give back a body.
    """
    disk = isinstance(error, OSError | JournalDamagedError | JournalFailedError)
    code = ExitCode.DISK if disk else ExitCode.INTERNAL
    what = "the disk failed, the broker stops" if disk else "internal error, the broker stops"
    try:
        report = "".join(traceback.format_exception(error))
        _log.critical(what, exit_code=int(code), during=event, traceback=report)
    finally:
        _end(code)


def disk_failed(directory: object, error: BaseException) -> NoReturn:
    """A write or an fsync failed: end with code 74. It is never tried again."""
    try:
        _log.critical(
            "the disk failed, the broker stops",
            exit_code=int(ExitCode.DISK),
            directory=str(directory),
            error=f"{type(error).__name__}: {error}",
        )
    finally:
        _end(ExitCode.DISK)


def _end(code: ExitCode) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whoever read it is gone, its disk is full, or there never was one
            stream.flush()
    os._exit(code)


def watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Treat an exception that no callback caught as our mistake, unless it is the network's."""
    strangers = StrangerLog(_log)
    loop.set_exception_handler(lambda _, context: _loop_exception(strangers, context))


def _loop_exception(strangers: StrangerLog, context: dict[str, Any]) -> None:
    error = context.get("exception")
    message = str(context.get("message", "in a callback"))
    if error is None or isinstance(error, OSError | EOFError):  # ssl.SSLError is an OSError: a peer's broken handshake
        strangers.warning(
            "a connection failed", where=message, error=f"{type(error).__name__}: {error}" if error else ""
        )
        return
    crashed(message, error)
