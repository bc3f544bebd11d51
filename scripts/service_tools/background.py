"""Servers in the background: a process that outlives its terminal, and a file by which ``scripts/services stop`` finds it.

The file ``SERVICE.pid`` of the data folder holds the process id, and the process holds a lock on it: where the lock is free, the
process has ended, however it did, and its id may be another one's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from understudy.ha.trial.edge.java_servers import ServersError

END_S: Final = 60.0
_LOOK_S: Final = 0.05


def in_background(run: Callable[[Callable[[str], None]], int]) -> int:
    """Call ``run`` in a process of a session of its own, and print what it tells.

    Args:
        run: is given a function that takes the text, to be called once. Until then its errors go to the terminal.

    Returns:
        0 once it has told the text; its exit code if it has ended before.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        os._exit(_run_in_child(run, write))
    os.close(write)
    try:
        with os.fdopen(read, encoding="utf-8") as pipe:
            text = pipe.read()
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        raise
    if not text:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(text, flush=True)
    return 0


def _run_in_child(run: Callable[[Callable[[str], None]], int], pipe: int) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)

    def tell(text: str) -> None:
        os.dup2(nothing, 2)
        with os.fdopen(pipe, "w", encoding="utf-8") as file:
            file.write(text)

    try:
        return run(tell)
    except BaseException as error:  # noqa: BLE001  # the copy of a process must not go on with what its original has to do
        print(f"scripts/services: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1


@contextlib.contextmanager
def registered(data: Path, service: str) -> Iterator[None]:
    """Say in ``data`` that this process runs the service, until it ends.

    Raises:
        ServersError: another process runs it there.
        OSError: the folder cannot be used.
    """
    data.mkdir(parents=True, exist_ok=True)
    path = data / f"{service}.pid"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServersError(f"{service} of {data} runs already, as process {file.read().strip()}") from error
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def stop(data: Path, services: tuple[str, ...]) -> list[str]:
    """End those of ``services`` that run in ``data``; a text about each.

    Raises:
        ServersError: one of them does not end.
    """
    return [f"{service} (process {pid}) is stopped" for service in services if (pid := _stopped(data, service))]


def _stopped(data: Path, service: str) -> int:
    """The process id of a service that ran and has ended now; 0 if none ran."""
    try:
        file = (data / f"{service}.pid").open(encoding="ascii")
    except FileNotFoundError:
        return 0
    with file:
        pid, deadline = 0, time.monotonic() + END_S
        while not _is_free(file):
            if not pid and (text := file.read()):  # empty: the process is about to write it
                pid = int(text)
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise ServersError(f"{service} of {data} (process {pid}) has not ended within {END_S:g} s")
            time.sleep(_LOOK_S)
        return pid


def _is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
