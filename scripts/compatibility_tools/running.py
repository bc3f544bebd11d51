"""Runs the tests of a suite against a broker, and reads their outcomes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.compatibility_tools import runners
from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.kept import Say
from scripts.compatibility_tools.outcomes import Outcome
from scripts.compatibility_tools.suites import Suite

PLUGINS: Final = Path(__file__).with_name("plugins")
_PROGRESS_S: Final = 10.0
_PERCENT: Final = re.compile(r"\[ *(\d+)%\]")


def run_suite(
    suite: Suite, tool: Path, tree: Path, values: Mapping[str, str], selection: Sequence[str], log: Path, say: Say
) -> dict[str, Outcome]:
    """Run the tests in ``tree``, a copy of our own; outcomes by name.

    Args:
        suite: which.
        tool: Python of its environment, or its runner.
        tree: its sources; tests in it may be rewritten.
        values: of the address of the broker.
        selection: words of the user for the runner.
        log: gets what the runner prints.
        say: prints a line of progress.

    Raises:
        CompatibilityError: the runner could not run the tests, or took longer than `Suite.limit_s`.
    """
    _rewrite(suite, tree, values)
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))},
        **{name: text.format(**values) for name, text in suite.environment.items()},
        "PYTHONPATH": str(PLUGINS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    arguments = [word.format(**values) for word in suite.arguments]
    words = runners.command(suite, tool, log, arguments, selection)
    code = _followed(words, tree, environment, log, suite, say)
    return runners.outcomes(suite, code, tree, log)


def _rewrite(suite: Suite, tree: Path, values: Mapping[str, str]) -> None:
    """Replace what stands in the sources for an address that the suite takes from nowhere else."""
    for pattern, (old, new) in suite.rewrites.items():
        for path in tree.glob(pattern):
            before = path.read_text(encoding="utf-8")
            after = before.replace(old, new.format(**values))
            if after != before:
                path.write_text(after, encoding="utf-8")


def _followed(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, suite: Suite, say: Say
) -> int:
    """Run the command with its output in ``log``; tell every ten seconds how far it is. Returns its exit code."""
    deadline = time.monotonic() + suite.limit_s
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while True:
            try:
                return process.wait(_PROGRESS_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise CompatibilityError(
                        f"{suite.name} has not ended within {suite.limit_s:g} s: {runners.end_of(log)}"
                    ) from None
                say(f"  {suite.name}: {_how_far(log)}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _how_far(log: Path) -> str:
    found = _PERCENT.findall(runners.end_of(log, 10_000))
    return f"{found[-1]} %" if found else "running"
