"""Programs under kill -9: what their results mean, and that each has its file and its pins."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.program_table import PROGRAMS, Program, find_programs, judge_program, programs_text
from scripts.compatibility_tools.runtimes import FOLDERS, pinned_version, prepare

RESULT: dict[str, Any] = {"sent": ["a", "b"], "done": {"a": 3, "b": 1}, "facts": {"order": True}}


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_each_program_has_its_file_and_a_pinned_version(program: Any) -> None:
    assert (FOLDERS[program.language] / program.file).is_file()
    assert pinned_version(program)
    assert find_programs([program.name, program.name]) == [program]


def test_an_unknown_program_is_named_with_what_there_is() -> None:
    assert find_programs([]) == list(PROGRAMS)
    with pytest.raises(CompatibilityError, match=r"no program is called 'zzz'; there are: celery, "):
        find_programs(["zzz"])


@pytest.mark.parametrize(
    ("change", "kills", "said"),
    [
        ({}, 2, "ok"),
        ({}, 0, "no primary was killed"),
        ({"done": {"a": 1}}, 2, "lost: b"),
        ({"facts": {"order": False}}, 2, "does not hold: order"),
        ({"sent": [], "done": {}}, 2, "nothing was sent"),
    ],
)
def test_a_row_says_what_is_wrong(change: dict[str, Any], kills: int, said: str) -> None:
    row = judge_program("celery", "5.7.0", {**RESULT, **change}, kills, 12.4)
    assert row.holds == (said == "ok")
    assert programs_text([row]).splitlines()[1].endswith(f"  {said}")


def test_repeated_work_is_counted_and_is_no_fault() -> None:
    row = judge_program("celery", "5.7.0", RESULT, 2, 12.4)
    assert (row.sent, row.lost, row.doubled, row.holds) == (2, [], 2, True)


@pytest.mark.parametrize(
    ("change", "said"), [({"done": {"c": 1}}, "executed what was not sent: c"), ({"facts": None}, "has no 'facts'")]
)
def test_a_result_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    result = {key: value for key, value in {**RESULT, **change}.items() if value is not None}
    with pytest.raises(CompatibilityError, match=said):
        judge_program("celery", "5.7.0", result, 1, 1)


@pytest.mark.parametrize(("name", "tool"), [("jms", "mvn"), ("node", "npm")])
def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, name: str, tool: str) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CompatibilityError, match=f"the program {name} needs {tool}, which is not installed: "):
        prepare(find_programs([name])[0], lambda line: None)


def test_a_package_that_is_not_pinned_is_named() -> None:
    program = Program(name="x", package="y", about="z", language="java", file="X.java")
    with pytest.raises(CompatibilityError, match=r"pom\.xml pins no y"):
        pinned_version(program)
