"""BrokerBeside: a broker as a process of its own, started once for many tests; each test has a virtual host of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import attrs

START_S: Final = 60.0
STOP_S: Final = 20.0
POLL_S: Final = 0.01
VHOSTS: Final = 500
"""Tests of one broker; the next test starts another broker."""
_CONFIG: Final = """\
[broker]
id = "beside"
data = "data"
vhosts = {vhosts}
[amqp]
port = 0
[http]
port = 0
[journal]
segment_bytes = "4MiB"
reserve_bytes = "4MiB"
"""


@attrs.frozen(kw_only=True)
class Look:
    """Contents of a virtual host at one moment.

    Attributes:
        queues: by name; ``ready``, ``acquired`` (with a consumer), ``withheld`` (not due yet) and ``consumers``.
        due_in_ms: the first delay is over after so many milliseconds; None if no message waits for a time.
    """

    queues: dict[str, dict[str, int]]
    due_in_ms: int | None

    @property
    def ready(self) -> int:
        """Messages that a consumer will get now."""
        return sum(each["ready"] for each in self.queues.values() if each["consumers"])

    @property
    def acquired(self) -> int:
        return sum(each["acquired"] for each in self.queues.values())


class BrokerBeside:
    """Made by `start`.

    Raises:
        RuntimeError: the broker did not start, or has ended; the text has its log.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-testing-"))
        self._names = [f"t{number}" for number in range(VHOSTS)]
        config = self.folder / "broker.toml"
        config.write_text(_CONFIG.format(vhosts=json.dumps(self._names)), encoding="utf-8")
        with (self.folder / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-m", "understudy.testing.stages.broker_program", str(config)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.port = 0

    @classmethod
    def start(cls) -> BrokerBeside:
        """Start a broker, and wait until it serves."""
        broker = cls()
        end_s = time.monotonic() + START_S
        while not broker._serves():
            if broker._process.poll() is not None or time.monotonic() > end_s:
                log = broker.log
                broker.stop()  # its folder goes, too
                raise RuntimeError(f"the broker beside the tests does not start: {log}")
            time.sleep(POLL_S)
        return broker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "broker.log").read_text(encoding="utf-8")

    @property
    def is_used_up(self) -> bool:
        """No virtual host is left."""
        return not self._names

    def vhost(self) -> str:
        """A virtual host that no test has had."""
        return self._names.pop()

    def address(self, vhost: str) -> str:
        """The URL of a virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    def look(self, vhost: str) -> Look:
        return Look(**self._ask(do="look", vhost=vhost))

    def skip(self, ms: int) -> None:
        """Move the broker's clock for delays and times to live on."""
        self._ask(do="skip", ms=ms)

    def stop(self) -> None:
        """Stop it, and remove its folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_S)
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serves(self) -> bool:
        log = self.log
        if " serving " not in log:
            return False
        ports: dict[str, Any] = json.loads((self.folder / "data" / "ports.json").read_text(encoding="utf-8"))
        self.port = ports["amqp"]
        return True

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise RuntimeError(f"the broker beside the tests has ended: {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer
