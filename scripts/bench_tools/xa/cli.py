"""The command line of ``scripts/bench xa``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from bench_tools import in_place
from bench_tools.in_place import say
from bench_tools.xa import branches, failover, throughput
from bench_tools.xa.place import Place

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
    in_place.add_options(parser)
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
        say(f"bench: --numbers {min(options.numbers)}: at least {MIN_BRANCHES}, since tenths of them are compared")
        return 2

    def make(work: Path | None) -> Place:
        return Place(
            work,
            throughput.DELAYS_MS if options.what == "throughput" else (0,),
            max_prepared=largest + 100 if options.what == "branches" else 200,
            journal=options.what == "throughput",
        )

    def measure(place: Place) -> dict[str, Any]:
        return _throughput(place, options) if options.what == "throughput" else _branches(place, options)

    return in_place.carry_out(options, make, measure)


def _throughput(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    cells = throughput.run(place, clients=options.clients, rounds=options.rounds, seconds=options.seconds, say=say)
    return {"table": throughput.table(cells), "cells": [attrs.asdict(cell) for cell in cells]}


def _branches(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for number in options.numbers:
        figures = branches.measure(place, number, say)
        figures.seconds[_FAILOVER] = failover.measure(place.folder / f"group-{number}", _PROGRAM, number, say)
        found.append(figures)
    return {"table": branches.table(found), "numbers": [attrs.asdict(one) for one in found]}
