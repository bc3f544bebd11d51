"""The frame of the benches with places, ``xa`` and ``stages``: a folder on a disk, the machine, the report, the exit code."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench_tools import machine
from bench_tools.errors import BenchError
from understudy.xa.core.errors import XaError

_ROOT = Path(__file__).resolve().parents[2]


class Place(AbstractContextManager[Any], Protocol):
    """All servers of a bench, for the time of a ``with``.

    Attributes:
        folder: of all their files.
    """

    folder: Path


P = TypeVar("P", bound=Place)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every bench with a place."""
    parser.add_argument("--work", type=Path, help="folder for all files (a temporary one); must be a real disk")
    parser.add_argument("--keep", action="store_true", help="keep that folder: logs, data")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the report as JSON")


def carry_out(
    options: argparse.Namespace,
    make: Callable[[Path | None], P],
    measure: Callable[[P], dict[str, Any]],
    *,
    timed: bool = True,
) -> int:
    """Make a place, measure in it, and print the report.

    Args:
        options: of the command line, with those of `add_options`.
        make: makes the place, in a folder of its own in ``--work``.
        measure: called within the place; its report has a ``table`` for people.
        timed: figures depend on a real disk.

    Returns:
        0 all measured, 2 the bench could not run, 130 interrupted.
    """
    if options.work is not None and not options.work.is_dir():
        say(f"bench: --work {options.work} is no folder")
        return 2
    place = make(options.work)
    try:
        if timed and machine.filesystem_of(place.folder) == "tmpfs":
            raise BenchError(f"{place.folder} is on tmpfs, where fsync costs nothing; give a folder with --work")
        about = machine.describe(place.folder, _ROOT)
        with place:
            report = measure(place)
        print(
            f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}, {about['fdatasync_per_s']} fdatasync/s; "
            f"load {about['load_before']} before\n"
        )
        print(report["table"])
        if options.json:
            print(json.dumps({"environment": about, **report}))
    except (BenchError, XaError) as error:
        say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        say("bench: interrupted")
        return 130
    finally:
        if options.keep:
            say(f"kept: {place.folder}")
        else:
            shutil.rmtree(place.folder, ignore_errors=True)
    return 0


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
