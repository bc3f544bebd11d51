"""The table of suites, the table of their known differences, and the page that shows both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.compatibility_tools.differences import DIFFERENCES
from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.outcomes import judge
from scripts.compatibility_tools.report import SuiteReport, as_json, as_text
from scripts.compatibility_tools.sources import REQUIREMENTS, named_tree, published_tree, why_no_download
from scripts.compatibility_tools.suites import SUITES, Suite, find_suite

ROOT = Path(__file__).parents[3]
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: {})\n"
    "ERROR: No matching distribution found for a==9"
)
PYTHON = [suite for suite in SUITES if suite.runner == "pytest"]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aiopika", "no suite is called 'aiopika'; did you mean aio-pika?"),
        ("zzz", "no suite is called 'zzz'; there are: "),
    ],
)
def test_an_unknown_suite_is_named_with_what_there_is(name: str, words: str) -> None:
    with pytest.raises(CompatibilityError) as caught:
        find_suite(name)
    assert words in str(caught.value)


def test_a_suite_without_tests_on_pypi_wants_a_tree() -> None:
    with pytest.raises(
        CompatibilityError, match=r"package of pika on PyPI has no tests: name a tree of .* with --source"
    ):
        published_tree(find_suite("pika"), "1.4.0", lambda line: None)


def test_a_tree_without_the_tests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(CompatibilityError, match=r"tree has no t/integration: it is no tree of amqp"):
        named_tree(find_suite("amqp"), tmp_path / "tree")
    with pytest.raises(CompatibilityError, match=r"the source .*/nowhere of amqp is no folder"):
        named_tree(find_suite("amqp"), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (NOT_FOUND.format("1, 2"), "the package index has no source package of this version"),
        (NOT_FOUND.format("none"), "the package index cannot be reached, or has no package of this name"),
        ("WARNING: x\nERROR: No space left on device", "ERROR: No space left on device"),
        ("killed", "killed"),
    ],
)
def test_a_failed_download_says_why(said: str, words: str) -> None:
    assert why_no_download("a==9", said) == f"cannot download a==9: {words}"


@pytest.mark.parametrize("suite", PYTHON, ids=[suite.name for suite in PYTHON])
def test_every_requirement_is_pinned(suite: Suite) -> None:
    pins = (REQUIREMENTS / f"{suite.name}.txt").read_text(encoding="utf-8").splitlines()
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9.]+", pin) for pin in pins)


def test_known_differences_are_of_suites_and_stand_on_the_page() -> None:
    assert set(DIFFERENCES) <= {suite.name for suite in SUITES}
    page = " ".join(PAGE.split())
    for differences in DIFFERENCES.values():
        for each in differences:
            assert f"`{each.tests.strip('*').removeprefix('::')}" in page, (
                f"docs/compatibility.md does not name {each.tests}"
            )
            assert each.reason in page, f"docs/compatibility.md does not say: {each.reason}"
    for suite in SUITES:
        assert f"{suite.name} {suite.version}" in page
    for reason in {reason for suite in SUITES for reason in suite.excluded.values()}:
        assert reason in page


def test_a_report_shows_counts_each_difference_and_what_is_not_known() -> None:
    verdict = judge({"a": "failed", "b": "passed"}, {"a": "passed", "b": "passed"}, [], whole=True)
    report = SuiteReport(
        name="amqp",
        version="5.4.2",
        sides={"Understudy 1": {"a": "failed", "b": "passed"}, "RabbitMQ 3": {"a": "passed", "b": "passed"}},
        took_s={"Understudy 1": 1.26, "RabbitMQ 3": 2},
        verdict=verdict,
        excluded={"c": "has no broker"},
    )
    assert as_text(report).splitlines() == [
        "amqp 5.4.2    passed  failed  error  skipped  seconds",
        "Understudy 1  1       1       0      0        1",
        "RabbitMQ 3    2       0       0      0        2",
        "",
        "test  here    RabbitMQ  reason",
        "a     failed  passed    not known",
        "not run: c: has no broker",
        "fails here, and is no known difference: a",
    ]
    assert as_json(report) == {
        "suite": "amqp",
        "version": "5.4.2",
        "sides": {
            "Understudy 1": {"passed": 1, "failed": 1, "error": 0, "skipped": 0, "took_s": 1.3},
            "RabbitMQ 3": {"passed": 2, "failed": 0, "error": 0, "skipped": 0, "took_s": 2},
        },
        "holds": False,
        "rows": [{"test": "a", "here": "failed", "rabbitmq": "passed", "reason": ""}],
        "unexpected": ["a"],
        "vanished": [],
        "unmatched": [],
        "excluded": {"c": "has no broker"},
    }
