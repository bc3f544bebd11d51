"""Explore by hand: see ``python -m tests.model --help``. Exit status: 0 as expected, 1 not, 2 a limit was reached first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import attrs

from tests.model.configurations import CONFIGURATIONS, LARGER, Configuration
from tests.model.goals import AVAILABLE, LIVE
from tests.model.mutations import MUTATIONS
from tests.model.rules import Rules
from tests.model.search import HOLDS, LIMIT, Found, explore
from tests.model.state import Bounds


def bounds_of(words: Sequence[str]) -> Bounds:
    """Bounds from words like ``crashes=2`` and ``messages`` (for ``messages=1``).

    Raises:
        argparse.ArgumentTypeError: there is no such bound, or it is no number.
    """
    fields = attrs.fields_dict(Bounds)
    given: dict[str, int | bool] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in fields or not (value or "1").isdigit():
            raise argparse.ArgumentTypeError(f"{word!r} is no bound: NAME=NUMBER with NAME of {', '.join(fields)}")
        number = int(value or "1")
        given[name] = bool(number) if isinstance(fields[name].default, bool) else number
    return Bounds(**given)  # type: ignore[arg-type]


def _tell(name: str, found: Found, *, story: bool) -> None:
    print(f"{name:32} {found.line()}", flush=True)
    if story and found.story:
        print("\n" + "\n".join(found.story))


def _configurations(configurations: Mapping[str, Configuration]) -> int:
    status = 0
    for name, configuration in configurations.items():
        found = explore(Rules(configuration.bounds), configuration.wanted, limit=20_000_000, seconds=3_600.0)
        _tell(name, found, story=found.outcome != HOLDS)
        if (found.outcome, found.states) != (HOLDS, configuration.states):
            print(f"{'':32} {configuration.states:,} states were expected")
            status = 1
    return status


def _mutations(names: Sequence[str], *, story: bool, limit: int, seconds: float) -> int:
    status = 0
    for name in names:
        mutation = MUTATIONS[name]
        found = explore(Rules(mutation.bounds, name), mutation.wanted, limit, seconds)
        _tell(name, found, story=story)
        if found.outcome == LIMIT or (found.outcome == HOLDS) != bool(mutation.safe):
            status = 1
    return status


def _arguments() -> argparse.ArgumentParser:
    ask = argparse.ArgumentParser(prog="python -m tests.model", description="Explore the model of the protocol.")
    ask.add_argument("--bounds", nargs="*", default=[], metavar="NAME=NUMBER", help="see tests/model/state.py, Bounds")
    ask.add_argument("--goals", nargs="*", default=[], choices=[LIVE, AVAILABLE], help="what must stay reachable")
    ask.add_argument("--mutation", default="", choices=["", *MUTATIONS], metavar="NAME", help="put a known bug in")
    ask.add_argument("--mutations", action="store_true", help="all known bugs, each within its own bounds")
    ask.add_argument("--configurations", action="store_true", help="what is explored at every check")
    ask.add_argument("--larger", action="store_true", help="larger ones, for changes of the protocol")
    ask.add_argument("--limit", type=int, default=20_000_000, help="states")
    ask.add_argument("--seconds", type=float, default=3_600.0)
    return ask


def main() -> int:
    """The command."""
    ask = _arguments()
    given = ask.parse_args()
    if given.configurations:
        return _configurations(CONFIGURATIONS)
    if given.larger:
        return _configurations(LARGER)
    if given.mutations:
        return _mutations(list(MUTATIONS), story=False, limit=given.limit, seconds=given.seconds)
    if given.mutation and not given.bounds:
        return _mutations([given.mutation], story=True, limit=given.limit, seconds=given.seconds)
    try:
        bounds = bounds_of(given.bounds)
    except argparse.ArgumentTypeError as error:
        ask.error(str(error))
    found = explore(Rules(bounds, given.mutation), given.goals, given.limit, given.seconds)
    _tell(given.mutation or "the protocol", found, story=True)
    return {HOLDS: 0, LIMIT: 2}.get(found.outcome, 1)


if __name__ == "__main__":
    sys.exit(main())
