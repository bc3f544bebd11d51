"""The operator's commands on a group of real brokers: ``understudy step-down``, ``expel`` and ``admit``."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.integration.broker_process import PROGRAM
from tests.stress.group import WAIT_S, Group


def run(*words: str, code: int = 0) -> str:
    """The output of the command; its stderr if it shall fail with ``code``."""
    done = subprocess.run([str(PROGRAM), *words], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def order(group: Group, *words: str) -> dict[str, Any]:
    """Carry a command out and return what it says."""
    found: dict[str, Any] = json.loads(run(*words, "--data", str(group.folder), "--json"))
    return found


def refused(group: Group, *words: str) -> str:
    """Why a command is not carried out."""
    return run(*words, "--data", str(group.folder), code=1)
