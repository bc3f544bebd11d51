"""The identity of a data directory: a random number that is drawn once, kept in a file, and goes with the directory.

A broker without a group tells it to clients, which record it: a transaction that is prepared here is completed here, and not in
another broker that has come to the same address. A group has the number of its founding for that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from understudy.broker.server.files.private_files import FILE_MODE

IDENTITY_NAME: Final = "IDENTITY"
_OCTETS: Final = 16
_FORM: Final = re.compile(rf"[0-9a-f]{{{2 * _OCTETS}}}")
_log = structlog.get_logger()


def directory_id(directory: Path, random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """The identity of a data directory, which is drawn if the directory has none.

    Args:
        directory: of the broker's data; its lock is held.
        random_bytes: the source of a new one.

    Returns:
        32 hexadecimal digits; "" if the file cannot be read or written, or holds something else. The broker starts all the same.
    """
    path = directory / IDENTITY_NAME
    try:
        if path.exists():
            found = path.read_text(encoding="ascii").strip()
            if not _FORM.fullmatch(found):
                raise ValueError(f"{found[:80]!r} is not {2 * _OCTETS} hexadecimal digits")
            return found
        return _drawn(path, random_bytes(_OCTETS).hex())
    except (OSError, ValueError) as error:
        _log.warning("the data directory has no identity: transaction managers cannot tell it from another one",
                     file=str(path), error=str(error))  # fmt: skip
        return ""


def _drawn(path: Path, made: str) -> str:
    """Keep a new identity: on the disk before anybody hears of it."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        os.write(descriptor, f"{made}\n".encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return made
