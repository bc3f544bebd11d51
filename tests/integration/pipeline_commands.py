"""Commands of the pipeline one after the other in one process, so that Java starts once and gets warm.

python -m tests.integration.pipeline_commands   reads a command line as a JSON list, a line each, and prints a JSON line for each
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from typer.testing import CliRunner

from understudy.pipeline.spark.connector_jars import DELTA, KAFKA
from understudy.pipeline.spark.session import SessionSettings, open_session, small
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


class Commands:
    """A process that runs commands. Each has its own Spark session; the connectors are there from the start."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, line: Sequence[object]) -> Done:
        """Run one. Raises: AssertionError: the process has ended."""
        given, told = self._process.stdin, self._process.stdout
        assert given is not None
        assert told is not None
        given.write(json.dumps([str(word) for word in line]) + "\n")
        given.flush()
        answer = told.readline()
        assert answer, f"the process has ended with {self._process.wait(LIMIT_S)}"
        return Done(**json.loads(answer))


@contextmanager
def commands() -> Iterator[Commands]:
    """The process; it ends with the block, or after `LIMIT_S`."""
    program = [sys.executable, "-m", "tests.integration.pipeline_commands"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(LIMIT_S, process.kill)
        limit.start()
        try:
            yield Commands(process)
        finally:
            limit.cancel()


def main() -> None:
    """Run commands in one process: Java keeps the settings of the first session for the later ones."""
    settings = SessionSettings(name="commands", master="local[2]", memory="1g", jars=[KAFKA, DELTA])
    open_session(small(settings)).stop()
    for line in sys.stdin:
        result = CliRunner().invoke(app, json.loads(line))
        fault = repr(result.exception) if result.exception is not None else ""
        done = Done(result.exit_code, result.stdout, result.stderr + fault)
        print(json.dumps(attrs.asdict(done)), flush=True)


if __name__ == "__main__":
    main()
