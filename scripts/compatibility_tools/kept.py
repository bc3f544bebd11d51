"""Files that are made once and kept in the user's cache, ``~/.cache/understudy/compatibility``.

Each kept folder has a stamp with the identity of what is in it. A making that was interrupted leaves none, and is begun again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.compatibility_tools.errors import CompatibilityError

Say = Callable[[str], None]
"""Prints a line of progress."""
_LIMIT_S: Final = 600.0
_SHOWN: Final = 1_000
"""So many last characters of what a command said stand in an error."""


def keep(name: str, identity: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; ``make`` fills it if it is not of this ``identity`` yet.

    Two runs that start at once make it once.

    Raises:
        CompatibilityError: the cache cannot be written; or what ``make`` raises.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy" / "compatibility" / name
    stamp = folder / "stamp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("ab")
    except OSError as error:
        raise CompatibilityError(f"the cache {folder.parent} cannot be written: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _text_of(stamp) != identity:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            stamp.write_text(identity, encoding="utf-8")
    return folder


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def ask(
    command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit code.

    Raises:
        CompatibilityError: it takes longer than ten minutes, or cannot be started.
    """
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CompatibilityError(f"not within {_LIMIT_S:g} s: {' '.join(command)}") from error
    except OSError as error:
        raise CompatibilityError(f"cannot start {command[0]}: {error}") from error


def run(command: Sequence[str], why: str, folder: Path | None = None) -> None:
    """Run a command that has to succeed.

    Raises:
        CompatibilityError: it fails; the message begins with ``why``.
    """
    done = ask(command, folder)
    if done.returncode:
        raise CompatibilityError(f"{why}: {(done.stdout + done.stderr).strip()[-_SHOWN:]}")
