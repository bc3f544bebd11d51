"""The compiled build does, event by event, what the sources do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.simulation.seed_run import ROOT

SEEDS = range(21)
HEADER = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(), reason="compiling needs a C compiler and Python.h"
)
def test_a_compiled_core_runs_as_the_sources_do() -> None:
    # Among the environments of the tree, where it is found again: two minutes once, nothing until a source changes.
    compiled = Path(os.environ.get("UNDERSTUDY_COMPILED", ROOT / ".venv-compiled"))
    environment = {**os.environ, "UNDERSTUDY_COMPILED": str(compiled), "UNDERSTUDY_VENV": sys.prefix}
    built = subprocess.run([ROOT / "scripts/compile"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert built.stdout.endswith(", compiled\n")

    (packages,) = compiled.glob("lib/python*/site-packages")
    where, *ran = _unwatched(compiled / "bin/python", f"{packages}{os.pathsep}{ROOT}")
    assert where.startswith(str(packages))
    assert where.endswith(".so")
    where, *sources = _unwatched(Path(sys.executable), str(ROOT))
    assert where.endswith(".py")
    assert ran == sources
    assert [line.split()[2:] for line in ran] == [["held"]] * len(SEEDS)


def _unwatched(python: Path, path: str) -> list[str]:
    command = [str(python), "-P", "-m", "tests.simulation.unwatched", *map(str, SEEDS)]
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.splitlines()
