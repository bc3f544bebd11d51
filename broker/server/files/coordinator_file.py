"""``coordinator.json``: which coordinator a data directory was last served under.

It is written before a core begins to serve, and only if the name has changed. A directory without the file was served under
group commit, the only coordinator there was. The file is no record of the log: the log of a group has several brokers, and
each of them may run its own coordinator.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from understudy.broker.coordinators import GROUP_COMMIT
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.private_files import FILE_MODE

NAME: Final = "coordinator.json"
FORMAT: Final = 1


class CoordinatorFileError(UnderstudyError):
    """The file cannot be read; nothing has been changed."""


def read_coordinator(directory: Path) -> str:
    """The name that the file states.

    Raises:
        CoordinatorFileError: it is there, and is not what this program writes.
        OSError: it cannot be read.
    """
    path = directory / NAME
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return GROUP_COMMIT
    except ValueError as error:
        raise CoordinatorFileError(f"{path} is no JSON: {error}; if nothing is undecided, remove it") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("coordinator"), str):
        raise CoordinatorFileError(f"{path} is not of format {FORMAT}; run the program that wrote it")
    return str(found["coordinator"])


def write_coordinator(directory: Path, name: str) -> None:
    """Replace the file; durable when this returns.

    Raises:
        OSError: it cannot be written.
    """
    path, temporary = directory / NAME, directory / f"{NAME}.{os.getpid()}"
    temporary.touch(FILE_MODE)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT, "coordinator": name}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
