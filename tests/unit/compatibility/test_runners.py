"""Runners of suites: their commands, and the outcomes that they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.runners import command, outcomes, read_cargo
from scripts.compatibility_tools.suites import find_suite

CARGO = """\
   Compiling lapin v4.7.4 (/tmp/tree)
     Running unittests src/lib.rs (target/debug/deps/lapin-1b)

running 2 tests
test buffer::tests::fills ... ok
test later ... ignored
     Running tests/connection.rs (target/debug/deps/connection-2c)

running 1 test
test connection ... FAILED

---- connection stdout ----
thread 'connection' panicked at tests/connection.rs:54
"""
JUNIT = '<testsuite><testcase classname="a.B" name="c"/><testcase classname="a.B" name="d"><failure/></testcase></testsuite>'


def test_words_of_the_user_come_behind_those_of_the_suite(tmp_path: Path) -> None:
    java = command(find_suite("java"), Path("/bin/mvn"), tmp_path / "log", ["-Done"], ["-Dother"])
    assert java[1:3] == ["-B", "test-compile"]
    assert java[-2:] == ["-Done", "-Dother"]
    kombu = command(find_suite("kombu"), Path("/bin/python"), tmp_path / "kombu.log", [], ["-k", "publish"])
    assert kombu[-2:] == ["-k", "publish"]
    assert str(tmp_path / "kombu.xml") in kombu


def test_cargo_tells_a_line_a_test() -> None:
    assert read_cargo(CARGO) == {
        "src/lib::buffer::tests::fills": "passed",
        "src/lib::later": "skipped",
        "tests/connection::connection": "failed",
    }


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("lapin", 101, CARGO), ("java", 0, JUNIT), ("kombu", 1, JUNIT)],
)
def test_outcomes_stand_where_the_runner_leaves_them(tmp_path: Path, name: str, code: int, said: str) -> None:
    reports = tmp_path / "target" / "failsafe-reports"
    reports.mkdir(parents=True)
    log = tmp_path / "kombu.log"
    log.write_text(said, encoding="utf-8")
    for path in (reports / "TEST-a.xml", log.with_suffix(".xml")):
        path.write_text(said, encoding="utf-8")
    found = outcomes(find_suite(name), code, tmp_path, log)
    assert sorted(found.values()) == sorted(["failed", "passed", *(["skipped"] if name == "lapin" else [])])


@pytest.mark.parametrize(("name", "code", "said"), [("lapin", 101, "error: no such command"), ("kombu", 4, JUNIT)])
def test_a_runner_that_ran_no_test_is_named_with_its_last_words(
    tmp_path: Path, name: str, code: int, said: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text(said, encoding="utf-8")
    log.with_suffix(".xml").write_text(JUNIT, encoding="utf-8")
    with pytest.raises(CompatibilityError) as caught:
        outcomes(find_suite(name), code, tmp_path, log)
    assert f"the tests of {name} cannot be run: the runner ended with {code}" in str(caught.value)
    assert str(caught.value).endswith(said)


def test_arguments_of_suites_take_the_values_of_an_address() -> None:
    values: dict[str, Any] = {"host": "h", "port": "1", "tls_port": "2", "control": "/c", "node": "n"}
    assert "-Drabbitmqctl.bin=/c" in [word.format(**values) for word in find_suite("java").arguments]
