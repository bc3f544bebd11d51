"""A small file system for a test: a tmpfs, so whoever runs the test needs the right to mount one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


class SmallDisk:
    """A mounted tmpfs.

    Attributes:
        path: where.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def set_read_only(self, read_only: bool) -> None:
        _mount("-o", f"remount,{'ro' if read_only else 'rw'}", str(self.path))


@contextlib.contextmanager
def small_disk(directory: Path, mib: int) -> Iterator[SmallDisk]:
    """A file system of that size at `directory`; the test fails where none can be mounted: what it shows would be unproved."""
    directory.mkdir(parents=True, mode=0o700)
    _mount("-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(directory))
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"this test needs a small disk, and `mount {' '.join(words)}` fails: {done.stderr.strip()}. Run it as root, in a container "
        "with CAP_SYS_ADMIN"
    )
