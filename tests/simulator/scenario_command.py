"""``scripts/simulate --shrink`` and ``--scenario``: making scenarios, and replaying them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.simulator.replay import replay_script
from tests.simulator.seed_run import ROOT, replay_command
from tests.simulator.shrinking import Finding, HoldsError, ScriptError, Shrunk, read, show, shrink
from tests.simulator.sweep import describe_failure

FOLDER = ROOT / "tests" / "scenario"
"""Every scenario that is kept here is replayed by the tests."""


LONGEST_COMMENT = 160


def scenario_command(path: Path) -> str:
    """The command that tells its story."""
    return f"scripts/simulate --scenario {_from_root(path)} --trace"


def _from_root(path: Path) -> Path:
    resolved = path.resolve()
    return resolved.relative_to(ROOT) if resolved.is_relative_to(ROOT) else resolved


def replay_scenario(path: Path, *, trace: bool) -> int:
    """Returns the exit code: 0 if it ended as its text says."""
    try:
        script = read(path)
    except ScriptError as error:
        print(error, file=sys.stderr)
        return 2
    result, story = replay_script(script, trace=trace)
    print("\n".join(story))
    if not result.held:
        print(describe_failure(result, replay=scenario_command(path)))
    found, said = _words(Finding.of(result)), _words(script.finds)
    print(f"{'PASSED' if found == said else 'FAILED'}: {path} {found}; its text says that it {said}")
    return 0 if found == said else 1


def _words(finding: Finding | None) -> str:
    return f"finds {finding}" if finding is not None else "holds"


def shrink_seed(seed: int, mutation: str, output: Path | None, most_runs: int) -> int:
    """Returns the exit code: 0 if there is a scenario now, which holds without the mutation."""
    began_s = time.monotonic()

    def progress(line: str) -> None:
        print(f"{line}, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)

    try:
        shrunk = shrink(seed, mutation, most_runs=most_runs, on_progress=progress)
    except HoldsError as error:
        print(error, file=sys.stderr)
        return 1
    path = output if output is not None else FOLDER / f"{mutation or 'seed'}-{seed}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = show(shrunk.after, *_comments(shrunk, path))
    path.write_text(text, encoding="utf-8")
    print(text)
    if not shrunk.holds_without:
        print(f"FAILED: {_from_root(path)} fails without {mutation} too")
        return 1
    took_s = time.monotonic() - began_s
    print(f"PASSED: {_from_root(path)}: {shrunk.summary()}, in {took_s:.0f} s; {scenario_command(path)}")
    return 0


def _comments(shrunk: Shrunk, path: Path) -> list[str]:
    before = shrunk.before
    text = shrunk.result.text
    return [
        text if len(text) <= LONGEST_COMMENT else text[: LONGEST_COMMENT - 3] + "...",
        f"Shrunk from {replay_command(before.seed, before.mutation)}: {shrunk.summary()}.",
        scenario_command(path),
    ]
