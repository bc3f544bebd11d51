"""Which builds of Python count as optimised, and what scripts/_env takes of those it finds."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from understudy.broker.server.interpreter import interpreter, is_optimised

ROOT = Path(__file__).parents[3]
TOOLS = ("bash", "cat", "cksum", "dirname", "flock", "rm")
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
    file = ROOT / "broker/server/interpreter.py"
    done = subprocess.run([sys.executable, "-I", file], check=False, timeout=60)
    assert (done.returncode == 0) is about["optimised"]


class Place:
    """A copy of what scripts/_env needs, and a PATH of interpreters that make no environment: they only say that they should."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        for name in ("scripts/_env", "broker/server/interpreter.py", "pyproject.toml"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.folders = [folder / "first", folder / "second", folder / "tools"]
        for each in self.folders:
            each.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.folders[2] / tool).symlink_to(found)

    def python(self, number: int, name: str, *, optimised: bool, ensurepip: bool = True) -> str:
        """Put an interpreter into the first or the second folder of PATH; where it is."""
        path = self.folders[number] / name
        path.write_text(
            f"""#!{shutil.which("bash")}
case "$*" in
*interpreter.py) exit {0 if optimised else 1} ;;
*ensurepip*) exit {0 if ensurepip else 1} ;;
'-m venv '*) echo "asked: $0" >&2; exit 1 ;;
*) exec {shlex.quote(sys.executable)} "$@" ;;
esac
"""
        )
        path.chmod(0o755)
        return str(path)

    def sourced(self, **variables: str) -> str:
        """What `source scripts/_env -` says, on stderr."""
        bash = self.folders[2] / "bash"
        done = subprocess.run(
            [bash, "-c", f"set -euo pipefail; source {shlex.quote(str(self.root))}/scripts/_env -"],
            env={"PATH": ":".join(map(str, self.folders)), "HOME": os.environ.get("HOME", "/"), **variables},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_optimised_interpreter_is_taken_before_others(place: Place) -> None:
    place.python(0, "python3.11", optimised=False)
    place.python(0, "python3.12", optimised=False)
    taken = place.python(1, "python3.11", optimised=True)
    said = place.sourced()
    assert f"({taken}, optimised)" in said
    assert f"asked: {taken}\n" in said


def test_of_two_that_are_not_the_first_is_taken_and_it_is_said(place: Place) -> None:
    place.python(0, "python3", optimised=False)
    taken = place.python(1, "python3.12", optimised=False)
    said = place.sourced()
    assert f"({taken}, built without profile-guided optimisation: " in said
    assert f"asked: {taken}\n" in said


def test_one_that_cannot_make_an_environment_is_taken_last(place: Place) -> None:
    place.python(0, "python3.11", optimised=True, ensurepip=False)
    taken = place.python(1, "python3.13", optimised=False)
    assert f"asked: {taken}\n" in place.sourced()


def test_the_user_has_the_last_word(place: Place) -> None:
    place.python(0, "python3.11", optimised=True)
    taken = place.python(1, "my-python", optimised=False)
    assert f"asked: {taken}\n" in place.sourced(UNDERSTUDY_PYTHON=taken)


def test_none_is_an_error(place: Place) -> None:
    assert "Python 3.11 or later is needed" in place.sourced()
