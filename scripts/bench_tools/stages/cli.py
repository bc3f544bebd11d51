"""The command line of ``scripts/bench stages``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from bench_tools import in_place
from bench_tools.errors import BenchError
from bench_tools.stages import cells, soak
from bench_tools.stages.cells import ALL
from bench_tools.stages.place import DATABASES, Place


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench stages",
        description="Stages beside a bare aio-pika consumer, FastStream and Celery, on 127.0.0.1.",
    )
    parser.add_argument("--rounds", type=_positive_int, default=3, help="medians are taken over them (3)")
    parser.add_argument("--seconds", type=_positive, default=3.0, help="of each side in each round (3)")
    parser.add_argument("--databases", type=_names(DATABASES), default=DATABASES, help=f"({','.join(DATABASES)})")
    parser.add_argument("--sides", type=_names(ALL), default=ALL, help=f"({','.join(ALL)})")
    parser.add_argument("--concurrency", type=_positive_int, default=16, help="messages in hand a stage (16)")
    parser.add_argument(
        "--soak",
        type=int,
        metavar="STAGES",
        help="so many stages of one worker over SQLite, and its memory; --work may be tmpfs",
    )
    in_place.add_options(parser)
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

    def measure(place: Place) -> dict[str, Any]:
        found = cells.run(
            place, databases=options.databases, sides=options.sides, rounds=options.rounds, seconds=options.seconds,
            concurrency=options.concurrency, say=in_place.say,
        )  # fmt: skip
        return {"table": cells.table(found), "cells": [attrs.asdict(cell) for cell in found]}

    def soak_it(place: Place) -> dict[str, Any]:
        found = soak.run(place, stages=options.soak, concurrency=options.concurrency, say=in_place.say)
        if not found["ok"]:
            raise BenchError(f"not each effect is there once: {found['table']}")
        return found

    return in_place.carry_out(options, Place, measure if options.soak is None else soak_it, timed=options.soak is None)
