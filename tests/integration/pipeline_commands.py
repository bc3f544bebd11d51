"""Commands of the pipeline one after the other in one process, so that Java starts once and gets warm.

python -m tests.integration.pipeline_commands   reads a JSON list of command lines, and prints a JSON line for each
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import attrs
from typer.testing import CliRunner

from understudy.pipeline.connector_jars import DELTA, KAFKA
from understudy.pipeline.session import SessionSettings, open_session, small
from understudy.pipeline.submit import app

LIMIT_S = 900.0


@attrs.frozen
class Done:
    """How one command has ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


def run_commands(lines: Sequence[Sequence[object]]) -> list[Done]:
    """Run them in a process of their own. Each has its own Spark session; the connectors are there from the start."""
    given = json.dumps([[str(word) for word in line] for line in lines])
    program = [sys.executable, "-m", "tests.integration.pipeline_commands"]
    done = subprocess.run(program, input=given, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return [Done(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    """What is given to the first session, Java keeps for the later ones."""
    settings = SessionSettings(name="commands", master="local[2]", memory="1g", jars=[KAFKA, DELTA])
    open_session(small(settings)).stop()
    for line in json.load(sys.stdin):
        result = CliRunner().invoke(app, line)
        fault = repr(result.exception) if result.exception is not None else ""
        done = Done(result.exit_code, result.stdout, result.stderr + fault)
        print(json.dumps(attrs.asdict(done)), flush=True)


if __name__ == "__main__":
    main()
