"""docs/requirements.md: a row for every requirement of the five notes; what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_model_doc import PRODUCT, definitions
from tests.unit.test_testing_doc import functions

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^- \*\*([CHKPX]-\d\d)\*\* (.+)\n"
    r"  - held by: (.+)\n"
    r"  - fails without it: (.+)\n"
    r"(?:  - differs: (.+)\n)?",
    re.MULTILINE,
)
ROWS = {
    cells[0]: cells for cells in ENTRY.findall(re.sub(r"\n +(?! |- (?:held by|fails without it|differs):)", " ", TEXT))
}
DEFINED, CLASSES = definitions([*PRODUCT, *sorted((ROOT / "xa").rglob("*.py"))])
CONFLICTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 25)


def test_every_number_has_a_row() -> None:
    numbers = [f"P-{number:02}" for number in range(1, 62)]
    numbers += [f"H-{number:02}" for number in range(1, 53)]
    numbers += [f"K-{number:02}" for number in CONFLICTS]
    numbers += [f"C-{number:02}" for number in range(1, 39)]
    numbers += [f"X-{number:02}" for number in range(1, 65)]
    assert list(ROWS) == numbers, "each once, in order, with five cells"
    left_out = {f"K-{number:02}" for number in range(1, 28)} - ROWS.keys()
    assert left_out == set(re.findall(r"K-\d\d", TEXT.partition("Left out:")[2].partition("\n\n")[0]))


def test_every_number_of_stages_has_a_row_that_says_what_there_is() -> None:
    rows = re.findall(r"^- \*\*S-(\d\d)\*\* .+:\n((?:  .+\n)+)", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 53))
    assert [number for number, state in rows if not state.strip().startswith("not built") and "::" not in state] == []


def test_all_that_differs_is_named_at_the_head() -> None:
    head = TEXT.partition("**Not held, or not as asked.**")[2].partition("\n\n")[0]
    differing = [number for number, row in ROWS.items() if row[4].strip()]
    assert set(re.findall(r"[CHKPX]-\d\d", head)) == {*differing, "K-27"}


@pytest.mark.parametrize("number", [10, 11, 12, 13, 25, 26, 27, 28, 29, 30])
def test_every_crash_point_of_the_transaction_manager_has_a_test(number: int) -> None:
    assert re.search(rf"^\| CP-{number} .* \| .* \| `[\w/]+\.py::test_\w+` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_tests_or_a_reason(number: str) -> None:
    _, asks, code, tests, differs = ROWS[number]
    assert asks
    assert code
    assert "::" in tests or (tests == "-" and differs)


@pytest.mark.parametrize(("file", "name"), sorted(set(re.findall(r"([\w/]+\.py)::(\w+)", TEXT))), ids=lambda part: part)
def test_a_named_test_exists(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file()
    assert name.startswith("test_")
    assert name in functions(path)


@pytest.mark.parametrize("number", ROWS)
def test_named_code_exists(number: str) -> None:
    for name in re.findall(r"`([\w./]+)`", ROWS[number][2]):
        if name.endswith(".py"):
            assert (ROOT / name).is_file(), name
            continue
        owner, _, attribute = name.rpartition(".")
        assert attribute in DEFINED | CLASSES, f"{name} is not in the code"
        assert not owner or owner in CLASSES or owner == "group", f"{owner} is no class of the code"


def test_decisions_that_are_named_exist() -> None:
    named = set(re.findall(r"\((decisions/[\w-]+\.md)\)", TEXT))
    assert len(named) >= 3
    assert [name for name in named if not (ROOT / "docs" / name).is_file()] == []
