"""Parts that all programs share: the broker's address, the book of executions, and lines for `scripts/compatibility`.

A program prints a JSON object a line: ``{"kill": N}`` asks for the death of the primary,
which a line on stdin answers; ``{"result": ...}`` ends the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

URL = os.environ["PROGRAM_URL"]
"""The one address that the program knows."""
FOLDER = Path(os.environ["PROGRAM_FOLDER"])
"""For files of the program."""
BOOK = FOLDER / "book"
LIMIT_S = 90.0
"""So long the program waits for its work to be done."""


def note(identity: str) -> None:
    """Write one execution down; many processes may do so at once."""
    descriptor = os.open(BOOK, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{identity}\n".encode())
    finally:
        os.close(descriptor)


def executions() -> list[str]:
    """All executions so far, in the order of their notes."""
    return BOOK.read_text(encoding="utf-8").split() if BOOK.exists() else []


def kill(number: int) -> None:
    """Have the primary killed, and return when it is dead: what follows meets the failover."""
    print(json.dumps({"kill": number}), flush=True)
    sys.stdin.readline()


def progress(text: str) -> None:
    """Say what the program is at."""
    print(json.dumps({"progress": text}), flush=True)


def wait_for(what: str, probe: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """True as soon as ``probe`` is; False, and told, if that takes longer than ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not probe():
        if time.monotonic() > deadline:
            progress(f"not within {limit_s:g} s: {what}")
            return False
        time.sleep(0.05)
    return True


def wait_until_done(sent: Iterable[str]) -> bool:
    """Wait until each of ``sent`` stands in the book."""
    wanted = set(sent)
    return wait_for("all work is done", lambda: wanted <= set(executions()))


def finish(sent: Sequence[str], **facts: bool) -> None:
    """Tell what was sent, what was executed how often, and which ``facts`` of the program hold."""
    print(json.dumps({"result": {"sent": sent, "done": Counter(executions()), "facts": facts}}), flush=True)


class Worker:
    """A process of the program, for the time of a ``with``; its log is ``NAME.log``."""

    def __init__(self, name: str, *arguments: str) -> None:
        """Start Python with ``arguments``."""
        self.log = FOLDER / f"{name}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def has_said(self, text: str) -> bool:
        """Wait until ``text`` stands in the log."""
        return wait_for(f"a worker says {text!r}", lambda: text in self.log.read_text(encoding="utf-8"))

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, with SIGKILL if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
