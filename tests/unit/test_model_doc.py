"""docs/model.md says what tests/model is: names that the code has, states that were counted, mutations that there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.model.configurations import CONFIGURATIONS, LARGER, Configuration
from tests.model.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
PRODUCT = [path for room in ("broker", "ha", "replicator", "observers") for path in sorted((ROOT / room).rglob("*.py"))]


def definitions(paths: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Names that modules define: of modules, functions and attributes; and of classes."""
    names: set[str] = set()
    classes: set[str] = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        classes |= set(re.findall(r"^class (\w+)", text, re.MULTILINE))
        names.add(path.stem)
        names |= set(re.findall(r"^ +(\w+): ", text, re.MULTILINE))
        names |= set(re.findall(r"\bdef (\w+)", text))
        names |= set(re.findall(r"\.(\w+)(?::[^=\n]+)? = ", text))
    return names, classes


DEFINED, CLASSES = definitions(PRODUCT)
MODEL = {
    word
    for path in (ROOT / "tests" / "model").glob("*.py")
    for word in re.findall(r"\w+", f"{path.stem} {path.read_text(encoding='utf-8')}")
}


def section(title: str) -> str:
    """From that heading to the next."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables, their heads apart."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


STEPS = rows(section("What is modelled, and where the code has it"))[1:]


def test_there_are_steps() -> None:
    assert len(STEPS) > 20


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[0][:40])
def test_a_step_has_the_names_of_the_code_and_of_the_model(step: list[str]) -> None:
    code, model = step
    for name in re.findall(r"`([\w.]+)`", code):
        owner, _, attribute = name.rpartition(".")
        assert attribute in DEFINED | CLASSES, f"{name} is not in the code"
        assert not owner or owner in CLASSES, f"{owner} is no class of the code"
    for name in re.findall(r"`([\w.]+)`", model):
        assert {*name.split(".")} <= MODEL, f"{name} is not in the model"


@pytest.mark.parametrize(("which", "configurations"), [(0, CONFIGURATIONS), (1, LARGER)], ids=["checked", "larger"])
def test_the_states_are_those_that_are_counted(which: int, configurations: dict[str, Configuration]) -> None:
    """How many the configurations of every check have, `test_model` asserts."""
    tables = section("Bounds and states").partition("By hand,")
    told = {row[0]: int(row[3].replace(",", "")) for row in rows(tables[2 * which]) if row[0] != "configuration"}
    assert told == {name: configuration.states for name, configuration in configurations.items()}


def test_every_mutation_is_told() -> None:
    told = {row[0]: row for row in rows(section("Mutations")) if row[0] != "mutation"}
    assert told.keys() == MUTATIONS.keys()
    for name, mutation in MUTATIONS.items():
        assert told[name][3] == mutation.log_model
        assert told[name][2].startswith("nothing") is bool(mutation.safe)
    safe = sum(bool(mutation.safe) for mutation in MUTATIONS.values())
    assert f"{len(MUTATIONS) - safe} that must be found and {safe} that must not" in section("Mutations")
