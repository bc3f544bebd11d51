"""Which builds of Python count as optimised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from understudy.broker.server.process.interpreter import interpreter, is_optimised

ROOT = Path(__file__).parents[4]
GCC = {"PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ({**GCC, "CONFIG_ARGS": "'--prefix=/root/.pyenv/versions/3.11.7' '--enable-shared'"}, False),
        ({**GCC, "CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, True),
        ({**GCC, "CONFIG_ARGS": "'--enable-shared'", "PY_CORE_CFLAGS": "-O3 -fprofile-use -fprofile-correction"}, True),
        ({**GCC, "PGO_PROF_USE_FLAG": "", "CONFIG_ARGS": "'--enable-shared' '--without-ensurepip'"}, True),
        ({}, False),
    ],
    ids=["pyenv", "configured", "compiled", "Debian", "says nothing"],
)
def test_builds(build: dict[str, Any], expected: bool) -> None:
    assert is_optimised(build) is expected


def test_the_interpreter_of_this_process() -> None:
    about = interpreter()
    assert about["python"] == "CPython " + ".".join(map(str, sys.version_info[:3]))
    file = ROOT / "broker/server/process/interpreter.py"
    done = subprocess.run([sys.executable, "-I", file], check=False, timeout=60)
    assert (done.returncode == 0) is about["optimised"]
