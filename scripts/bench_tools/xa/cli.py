"""The command line of ``scripts/bench xa``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from bench_tools import machine
from bench_tools.errors import BenchError
from bench_tools.xa import branches, failover, throughput
from bench_tools.xa.place import Place
from understudy.xa.core.errors import XaError

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = Path(sys.executable).with_name("understudy")
MIN_BRANCHES = 20
_FAILOVER = "group of three: primary killed to listed"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench xa", description="Distributed transactions, on 127.0.0.1.")
    parser.add_argument("what", choices=("throughput", "branches"))
    parser.add_argument("--clients", type=_numbers, default=[1, 8], help="throughput: numbers of clients (1,8)")
    parser.add_argument("--rounds", type=int, default=3, help="throughput: medians are taken over them (3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="throughput: of each side in each round (4)")
    parser.add_argument(
        "--numbers", type=_numbers, default=[1000, 3000, 10_000], help="branches: how many (1000,3000,10000)"
    )
    parser.add_argument("--work", type=Path, help="folder for all files (a temporary one); must be a real disk")
    parser.add_argument("--keep", action="store_true", help="keep that folder: logs, data")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the report as JSON")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: {min(values)} is below 1")
    return values


def main(arguments: Sequence[str]) -> int:
    """0 all measured, 2 the bench could not run, or something did not come out as it must."""
    options = _options(arguments)
    largest = max(options.numbers)
    if options.what == "branches" and min(options.numbers) < MIN_BRANCHES:
        _say(f"bench: --numbers {min(options.numbers)}: at least {MIN_BRANCHES}, since tenths of them are compared")
        return 2
    if options.work is not None and not options.work.is_dir():
        _say(f"bench: --work {options.work} is no folder")
        return 2
    place = Place(
        options.work,
        throughput.DELAYS_MS if options.what == "throughput" else (0,),
        max_prepared=largest + 100 if options.what == "branches" else 200,
        journal=options.what == "throughput",
    )
    try:
        if machine.filesystem_of(place.folder) == "tmpfs":
            raise BenchError(f"{place.folder} is on tmpfs, where fsync costs nothing; give a folder with --work")
        about = machine.describe(place.folder, _ROOT)
        with place:
            report = _throughput(place, options) if options.what == "throughput" else _branches(place, options)
        _print(about, report, as_json=options.json)
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


def _throughput(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    cells = throughput.run(place, clients=options.clients, rounds=options.rounds, seconds=options.seconds, say=_say)
    return {"table": throughput.table(cells), "cells": [attrs.asdict(cell) for cell in cells]}


def _branches(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for number in options.numbers:
        figures = branches.measure(place, number, _say)
        figures.seconds[_FAILOVER] = failover.measure(place.folder / f"group-{number}", _PROGRAM, number, _say)
        found.append(figures)
    return {"table": branches.table(found), "numbers": [attrs.asdict(one) for one in found]}


def _print(about: dict[str, Any], report: dict[str, Any], *, as_json: bool) -> None:
    print(
        f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}, {about['fdatasync_per_s']} fdatasync/s; "
        f"load {about['load_before']} before\n"
    )
    print(report["table"])
    if as_json:
        print(json.dumps({"environment": about, **report}))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
