"""The command line of ``scripts/bench stages``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from bench_tools import machine
from bench_tools.errors import BenchError
from bench_tools.stages import cells
from bench_tools.stages.place import DATABASES, Place
from bench_tools.stages.sides import SIDES
from understudy.xa.core.errors import XaError

_ROOT = Path(__file__).resolve().parents[3]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench stages", description="Stages beside a bare aio-pika consumer, on 127.0.0.1."
    )
    parser.add_argument("--rounds", type=_positive_int, default=3, help="medians are taken over them (3)")
    parser.add_argument("--seconds", type=_positive, default=3.0, help="of each side in each round (3)")
    parser.add_argument("--databases", type=_names(DATABASES), default=DATABASES, help=f"({','.join(DATABASES)})")
    parser.add_argument("--sides", type=_names(SIDES), default=SIDES, help=f"({','.join(SIDES)})")
    parser.add_argument("--concurrency", type=_positive_int, default=16, help="messages in hand a stage (16)")
    parser.add_argument("--work", type=Path, help="folder for all files (a temporary one); must be a real disk")
    parser.add_argument("--keep", action="store_true", help="keep that folder: logs, data")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the report as JSON")
    return parser.parse_args(arguments)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(known)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return [each for each in known if each in names]

    return chosen


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 3600")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 1000")
    return value


def main(arguments: Sequence[str]) -> int:
    """0 all measured, 2 the bench could not run."""
    options = _options(arguments)
    if options.work is not None and not options.work.is_dir():
        _say(f"bench: --work {options.work} is no folder")
        return 2
    place = Place(options.work)
    try:
        if machine.filesystem_of(place.folder) == "tmpfs":
            raise BenchError(f"{place.folder} is on tmpfs, where fsync costs nothing; give a folder with --work")
        about = machine.describe(place.folder, _ROOT)
        with place:
            found = cells.run(
                place, databases=options.databases, sides=options.sides, rounds=options.rounds,
                seconds=options.seconds, concurrency=options.concurrency, say=_say,
            )  # fmt: skip
        print(
            f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}, {about['fdatasync_per_s']} fdatasync/s; "
            f"load {about['load_before']} before\n"
        )
        print(cells.table(found))
        if options.json:
            print(json.dumps({"environment": about, "cells": [attrs.asdict(cell) for cell in found]}))
    except (BenchError, XaError) as error:
        _say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        _say("bench: interrupted")
        return 130
    finally:
        if options.keep:
            _say(f"kept: {place.folder}")
        else:
            shutil.rmtree(place.folder, ignore_errors=True)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
