"""The files that this process has open, told apart by where they are."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files_in(directory: Path) -> int:
    """Number of descriptors for files below `directory`, those of files without a name among them.

    Not all of the process's: what an earlier test left may be closed by the collector at any moment.
    """
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself is closed again
            found += descriptor.readlink().is_relative_to(directory)
    return found
