"""Which lines of the deciding modules a sweep runs.

Every process of the sweep is a new interpreter under coverage, so that what is run while modules are imported counts too. Lines
are counted, not branches: a checker that watches every step says more about the ways through a line than a branch count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from tests.simulator.deciding_modules import deciding_modules
from tests.simulator.seed_run import ROOT
from tests.simulator.sweep import cores, over_processes

LEAST_PERCENT = 90.0
CHUNK_SEEDS = 5
EXCLUDED = (
    "if TYPE_CHECKING:",
    r"assert_never\(",
    r"@(abc\.)?abstractmethod",
    r"^\s*\.\.\.$",
    r"^class .*\(Protocol\):",
)


@attrs.frozen
class Module:
    """One module: how many lines it has that can be run, and which were not."""

    name: str
    lines: int
    missing: tuple[int, ...]

    @property
    def percent(self) -> float:
        return 100.0 * (self.lines - len(self.missing)) / self.lines if self.lines else 100.0


@attrs.frozen(kw_only=True)
class Covered:
    """The result of a sweep: which modules it ran, and how far."""

    seeds: Sequence[int]
    modules: Sequence[Module]
    violations: int

    @property
    def percent(self) -> float:
        lines = sum(module.lines for module in self.modules)
        missing = sum(len(module.missing) for module in self.modules)
        return 100.0 * (lines - missing) / lines

    @property
    def ok(self) -> bool:
        return self.percent >= LEAST_PERCENT and not self.violations

    def table(self) -> list[str]:
        """A line a module, the least covered first."""
        return [
            f"{module.percent:6.1f} %  {module.lines - len(module.missing):4} of {module.lines:4}  {module.name}"
            for module in sorted(self.modules, key=lambda module: (module.percent, module.name))
        ]

    def summary(self) -> str:
        """One line."""
        return (
            f"{'PASSED' if self.ok else 'FAILED'}: {self.percent:.1f} % of the lines of {len(self.modules)} deciding "
            f"modules are run by seeds {self.seeds[0]}..{self.seeds[-1]} (at least {LEAST_PERCENT:.0f} % wanted), "
            f"{self.violations} violations"
        )

    def uncovered_text(self) -> str:
        """Every run of uncovered lines with its text."""
        parts = [f"# Lines that seeds {self.seeds[0]}..{self.seeds[-1]} do not run\n"]
        for module in sorted(self.modules, key=lambda module: (module.percent, module.name)):
            if not module.missing:
                continue
            text = (ROOT / module.name).read_text().splitlines()
            parts.append(f"\n## {module.name} ({module.percent:.1f} %)\n")
            for _, run in groupby(enumerate(module.missing), key=lambda pair: pair[1] - pair[0]):
                numbers = [line for _, line in run]
                parts.append("```python")
                parts += [f"{line:4}  {text[line - 1]}" for line in numbers]
                parts.append("```")
        return "\n".join(parts) + "\n"

    def as_json(self) -> dict[str, Any]:
        modules = {
            module.name: {"percent": round(module.percent, 1), "missing": module.missing} for module in self.modules
        }
        return {
            "ok": self.ok,
            "percent": round(self.percent, 2),
            "least_percent": LEAST_PERCENT,
            "seeds": len(self.seeds),
            "violations": self.violations,
            "modules": modules,
        }


@attrs.frozen
class _Chunk:
    first: int
    last: int
    folder: str


def measure(seeds: Sequence[int], *, jobs: int = 0, on_done: Callable[[int], None] | None = None) -> Covered:
    """Run a range of seeds under coverage; ``on_done`` is told of each chunk, how many seeds it had."""
    with TemporaryDirectory(prefix="understudy-coverage-") as folder:
        _write_settings(Path(folder))
        chunks = [
            _Chunk(seeds[at], seeds[min(at + CHUNK_SEEDS, len(seeds)) - 1], folder)
            for at in range(0, len(seeds), CHUNK_SEEDS)
        ]
        violations = 0
        for bad, count in over_processes(_run, chunks, jobs or cores()):
            violations += bad
            if on_done is not None:
                on_done(count)
        return Covered(seeds=seeds, modules=_combine(Path(folder)), violations=violations)


def _write_settings(folder: Path) -> None:
    include = "\n    ".join(str(path) for path in deciding_modules())
    exclude = "\n    ".join(EXCLUDED)
    (folder / "settings").write_text(
        f"[run]\nparallel = true\ndata_file = {folder}/data\ninclude =\n    {include}\n"
        f"[report]\nexclude_also =\n    {exclude}\n"
    )


def _run(chunk: _Chunk) -> tuple[int, int]:
    """Returns (violations, seeds)."""
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={chunk.folder}/settings"]
    command += ["-m", "tests.simulator.command", "--seeds", f"{chunk.first}..{chunk.last}"]
    command += ["--jobs", "1", "--minima", "0", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout.splitlines()[-1])
    return len(report["violations"]), report["seeds"]


def _combine(folder: Path) -> list[Module]:
    from coverage import Coverage  # a development dependency: only this option needs it

    coverage = Coverage(data_file=str(folder / "data"), config_file=str(folder / "settings"))
    coverage.combine([str(folder)])
    modules = []
    for path in deciding_modules():
        _, statements, _, missing, _ = coverage.analysis2(str(path))
        modules.append(Module(path.relative_to(ROOT).as_posix(), len(statements), tuple(missing)))
    return modules
