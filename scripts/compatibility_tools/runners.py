"""The programs that run suites: the command of each, and where the outcomes stand. No I/O but reading reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.outcomes import Outcome, read_junit
from scripts.compatibility_tools.suites import Suite

TEST_LIMIT_S: Final = 90
"""So long one test of pytest may take: several of aio-pika's wait for half a minute."""
TOOLS: Final = {"maven": "mvn", "cargo": "cargo"}
"""Programs of the system, by runner; pytest stands in the environment of its suite."""
_COMPLETE: Final = {"pytest": (0, 1), "maven": (0, 1), "cargo": (0, 101)}
"""Exit codes of a runner that ran all tests: all passed, some failed."""
_MAVEN_REPORTS: Final = "target/failsafe-reports/TEST-*.xml"
_CARGO_FILE: Final = re.compile(r"^ +Running (?:unittests )?(\S+)\.rs ", re.MULTILINE)
_CARGO_TEST: Final = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_CARGO_OUTCOMES: Final[dict[str, Outcome]] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}


def command(suite: Suite, tool: Path, log: Path, arguments: Sequence[str], selection: Sequence[str]) -> list[str]:
    """The words that run the tests of ``suite`` in the folder of its copy.

    Args:
        suite: which.
        tool: Python of the suite's environment, or the runner.
        log: of the run; a report stands beside it.
        arguments: of the suite, with the values of the address.
        selection: words of the user.
    """
    if suite.runner == "maven":
        return [str(tool), "-B", "test-compile", "failsafe:integration-test@integration-test", *arguments, *selection]
    if suite.runner == "cargo":
        return [str(tool), "test", "--locked", "--no-fail-fast", *arguments, *selection]
    words = ["-v", "-p", "no:cacheprovider", "--timeout", str(TEST_LIMIT_S), "-o", "log_cli=false", "--color=no"]
    excluded = [word for test in suite.excluded for word in ("--deselect", test)]
    words += [*excluded, "--junitxml", str(_report(log)), *arguments]
    return [str(tool), "-m", "pytest", *suite.tests, *words, *selection]


def outcomes(suite: Suite, code: int, tree: Path, log: Path) -> dict[str, Outcome]:
    """The result of each test, by name.

    Args:
        suite: which.
        code: exit code of the runner.
        tree: the copy in which it ran.
        log: what the runner printed.

    Raises:
        CompatibilityError: the runner could not run the tests, or ran none.
    """
    if suite.runner == "cargo":
        found = read_cargo(log.read_text(encoding="utf-8", errors="replace"))
    else:
        reports = sorted(tree.glob(_MAVEN_REPORTS)) if suite.runner == "maven" else [_report(log)]
        found = read_junit([path.read_text(encoding="utf-8") for path in reports if path.exists()])
    if code not in _COMPLETE[suite.runner] or not found:
        raise CompatibilityError(
            f"the tests of {suite.name} cannot be run: the runner ended with {code}, and told of {len(found)} tests: {end_of(log)}"
        )
    return found


def read_cargo(printed: str) -> dict[str, Outcome]:
    """Outcomes of what ``cargo test`` printed; a test is named ``FILE::NAME``."""
    found: dict[str, Outcome] = {}
    files = [(match.start(), match[1]) for match in _CARGO_FILE.finditer(printed)]
    for match in _CARGO_TEST.finditer(printed):
        file = [name for start, name in files if start < match.start()]
        found[f"{file[-1] if file else ''}::{match[1]}"] = _CARGO_OUTCOMES[match[2]]
    return found


def end_of(log: Path, characters: int = 1_500) -> str:
    """The last characters of a log."""
    return log.read_text(encoding="utf-8", errors="replace")[-characters:]


def _report(log: Path) -> Path:
    return log.with_suffix(".xml")
