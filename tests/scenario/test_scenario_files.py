"""Every scenario in this folder ends as its text says, and with a mutation only because of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.shrinking import read
from tests.simulator.shrinking.script_text import parse, show

FILES = sorted(Path(__file__).parent.glob("*.txt"))
MUTATED = [path for path in FILES if read(path).mutation]
MOST_STRIKES = 5


def test_there_are_some() -> None:
    assert len({read(path).mutation for path in MUTATED}) >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_ends_as_it_says(path: Path) -> None:
    script = read(path)
    ran = script.run()
    assert ran.finding == script.finds, f"{path}: {ran.result.promise}: {ran.result.text} at {ran.result.where}"


@pytest.mark.parametrize("path", MUTATED, ids=lambda path: path.stem)
def test_without_its_mutation_it_holds(path: Path) -> None:
    result = read(path).run(sound=True).result
    assert result.held, f"{path}: {result.promise}: {result.text} at {result.where}"


@pytest.mark.parametrize("path", MUTATED, ids=lambda path: path.stem)
def test_it_finds_a_broken_promise_with_few_strikes(path: Path) -> None:
    script = read(path)
    assert script.finds is not None
    assert len(script.strikes) <= MOST_STRIKES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_text_says_all_of_it(path: Path) -> None:
    script = read(path)
    assert parse(show(script), "again") == script
