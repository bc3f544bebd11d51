"""FactLog: writes a broker's facts (`core.watching.facts`) to files in its data directory, for the event feed.

    facts-0000000001.log  facts-0000000002.log  ...

A file is lines of JSON: a head that names group, broker and incarnation, then a fact a line. Each process begins a new file, and
one that has grown is followed by the next; the oldest go. Facts are numbered from 1 in an incarnation, which is one life of the
process; those that could not be kept have numbers too, and ``dropped`` says how many they were.

One write a turn in which something happened, without fsync: a fact is worth nothing that a transaction would have to wait for. What
the disk does not take is dropped, and tried again after `RETRY_S`. An fsync in a thread was refused: after a power failure the
journal says what counts.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from understudy.broker.core.watching.facts import Fact, Facts
from understudy.broker.server.files.private_files import FILE_MODE

VERSION: Final = 1
FILE_BYTES: Final = 4 << 20
FILES: Final = 16
RETRY_S: Final = 1.0
_NAME: Final = re.compile(r"facts-(\d{10})\.log", re.ASCII)

_log: Final = structlog.get_logger()


def fact_file_name(number: int) -> str:
    return f"facts-{number:010}.log"


def fact_files(directory: Path) -> list[int]:
    """Numbers of the files of facts that are there, the oldest first."""
    return sorted(int(found[1]) for name in os.listdir(directory) if (found := _NAME.fullmatch(name)))  # noqa: PTH208  # names are all


class FactLog:
    """Of one process.

    Args:
        directory: of the broker's data.
        group, broker: whose facts they are.
        facts: where they gather.
        now_s: a monotonic clock.
        incarnation: names this process among all that wrote facts of this broker; "": by its start and its id.
    """

    def __init__(
        self,
        directory: Path,
        group: str,
        broker: str,
        facts: Facts,
        now_s: Callable[[], float] = time.monotonic,
        incarnation: str = "",
    ) -> None:
        self._directory = directory
        self._head = {
            "facts": VERSION,
            "group": group,
            "broker": broker,
            "incarnation": incarnation or f"p{time.time_ns() // 1_000_000}-{os.getpid()}",
        }
        self._facts = facts
        self._now_s = now_s
        self._encode = msgspec.json.Encoder().encode
        self._file = -1
        self._number = self._size = 0
        self._seq = self._missing = 0
        self._retry_s = 0.0
        self._told = False

    def write(self) -> None:
        """Write what has gathered."""
        if not self._facts.waiting or self._now_s() < self._retry_s:
            return
        facts, dropped = self._facts.take()
        first = self._seq + 1
        lines = []
        if self._missing:  # their numbers are spent already
            self._seq += 1
            lines.append(self._line(Fact("dropped", {"count": self._missing}, *_place(facts)), self._seq))
        for fact in facts:
            self._seq += 1
            lines.append(self._line(fact, self._seq))
        missing, self._missing = self._missing, 0
        if dropped:
            self._seq += dropped + 1
            lines.append(self._line(Fact("dropped", {"count": dropped}, *_place(facts)), self._seq))
        try:
            self._append(b"".join(lines))
        except OSError as error:
            self._missing = (
                missing + self._seq - first + 1
            )  # the events that would have said so are missing now as well
            self._failed(error)
        else:
            self._told = False

    def _line(self, fact: Fact, seq: int) -> bytes:
        head: dict[str, Any] = {
            "event": fact.name,
            "founding": fact.founding,
            "seq": seq,
            "epoch": fact.epoch,
            "offset": fact.offset,
            "at_ms": fact.at_ms,
        }
        return self._encode(head | fact.fields) + b"\n"

    def _append(self, data: bytes) -> None:
        if self._file < 0 or self._size >= FILE_BYTES:
            self._begin_file()
        written = os.write(self._file, data)
        if written != len(data):
            self._leave_file()  # the next one begins on a line of its own
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _begin_file(self) -> None:
        self._leave_file()
        there = fact_files(self._directory)
        number = max([self._number, *there]) + 1
        path = self._directory / fact_file_name(number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        head = self._encode(self._head) + b"\n"
        if os.write(file, head) != len(head):
            os.close(file)
            path.unlink()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file, self._number, self._size = file, number, len(head)
        for old in there[: max(0, len(there) + 1 - FILES)]:
            (self._directory / fact_file_name(old)).unlink(missing_ok=True)

    def _leave_file(self) -> None:
        file, self._file, self._size = self._file, -1, 0
        if file >= 0:
            os.close(file)

    def _failed(self, error: OSError) -> None:
        self._retry_s = self._now_s() + RETRY_S
        if not self._told:
            self._told = True
            _log.warning("event feed: facts cannot be written", reason=error.strerror, missing=self._missing)

    def close(self) -> None:
        """Write the last ones, and close the file."""
        self._retry_s = 0.0
        self.write()
        self._leave_file()


def _place(facts: list[Fact]) -> tuple[int, str, int, int]:
    last = facts[-1]
    return last.at_ms, last.founding, last.epoch, last.offset
