"""Builds and runs ``txgen``, the generator in C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bench_tools.errors import BenchError, GeneratorError
from bench_tools.rows import MESSAGE_BYTES, PINNED_PREFIX, QUEUE_PREFIX, Row
from bench_tools.sample import CpuUse, CpuWatch, Sample, Target, Window, make_sample

_SOURCES = [Path(__file__).with_name(name) for name in ("txgen.c", "txflow.c")]
_HEADER = Path(__file__).with_name("txgen.h")
_ANSWER_TIMEOUT_S = 30
_DEPTH_PATIENCE_S = 5.0
_PINNING = ("--seconds", "0.5", "--warmup", "0", "--size", str(MESSAGE_BYTES))
"""Options of the client that fills the pinned queue: some thousand messages."""


class Txgen:
    """The compiled generator, bound to no broker."""

    def __init__(self, build: Path) -> None:
        """Compile into ``build`` unless the program there is newer than its source."""
        self._program = build / "txgen"
        changed = max(source.stat().st_mtime for source in (*_SOURCES, _HEADER))
        if self._program.exists() and self._program.stat().st_mtime > changed:
            return
        compiler = os.environ.get("CC", "gcc")
        if shutil.which(compiler) is None:
            raise BenchError(f"no C compiler {compiler!r}; on Debian: apt-get install gcc librabbitmq-dev")
        build.mkdir(parents=True, exist_ok=True)
        command = [
            compiler,
            "-std=c99",
            "-O2",
            "-Wall",
            "-Wextra",
            "-pthread",
            "-o",
            str(self._program),
            *map(str, _SOURCES),
            "-lrabbitmq",
            "-lm",
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise BenchError(f"txgen does not compile (librabbitmq-dev installed?):\n{made.stderr}")

    def declare_queues(self, port: int, row: Row, queue_type: str | None) -> None:
        """Delete and declare the queues of ``row``: durable and empty afterwards."""
        extra = ["--queue-type", queue_type] if queue_type else []
        self._command("declare", port, row.queues, *extra, *row.declared)

    def delete_queues(self, port: int, row: Row) -> None:
        self._command("delete", port, row.queues, *row.declared)

    def pin(self, port: int, queue_type: str | None) -> None:
        """Fill a queue, beside those of the rows, with what one client publishes in a moment."""
        kind = ["--queue-type", queue_type] if queue_type else []
        self._command("declare", port, 1, *kind, prefix=PINNED_PREFIX)
        self._command("confirm", port, 1, *_PINNING, prefix=PINNED_PREFIX)

    def unpin(self, port: int) -> None:
        """Delete that queue."""
        self._command("delete", port, 1, prefix=PINNED_PREFIX)

    def depth(self, port: int, queues: int) -> int:
        """Ready messages in all bench queues together."""
        return int(json.loads(self._command("depth", port, queues))["total"])

    def _command(self, mode: str, port: int, queues: int, *extra: str, prefix: str = QUEUE_PREFIX) -> str:
        command = [
            str(self._program),
            "--mode",
            mode,
            "--port",
            str(port),
            "--queues",
            str(queues),
            "--prefix",
            prefix,
            *extra,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise GeneratorError(done.stderr.strip())
        return done.stdout

    def measure(self, row: Row, target: Target, window: Window) -> Sample:
        """Put the row's load on the target, then compare the queues with what the generator counted."""
        command = [
            str(self._program),
            "--mode",
            row.mode,
            "--port",
            str(target.port),
            "--prefix",
            QUEUE_PREFIX,
            "--queues",
            str(row.queues),
            "--connections",
            str(row.connections),
            "--messages",
            str(row.messages),
            "--size",
            str(MESSAGE_BYTES),
            "--seconds",
            str(max(window.seconds, row.seconds)),
            "--warmup",
            str(window.warmup),
            "--timeout",
            str(_ANSWER_TIMEOUT_S),
        ]
        if row.window:
            command += ["--window", str(row.window)]
        if row.every_ms:
            command += ["--every-ms", str(row.every_ms)]
        if row.rate:
            command += ["--rate", str(row.rate)]
        if row.consumers:
            command.append("--consume")
        result, use = _run(command, target)
        expected = result["settled_total"] - result["acked_total"]
        if row.max_length:
            expected = min(expected, row.max_length * row.queues)
        found = self._await_depth(target.port, row.queues, expected)
        checks = () if found == expected else (f"queues hold {found} messages, the generator counted {expected}",)
        return make_sample(
            use,
            seconds=result["seconds"],
            commits=result["commits"] if row.mode == "tx" else None,
            messages=result["messages"],
            latencies_us={name: result[f"{name}_us"] for name in ("p50", "p95", "p99", "p999", "max")},
            queued=found,
            checks=checks,
        )

    def _await_depth(self, port: int, queues: int, expected: int) -> int:
        """The depth once it is ``expected``, else what it still is after some patience.

        RabbitMQ requeues the unacknowledged messages of a closed channel some time after the close.
        """
        deadline = time.monotonic() + _DEPTH_PATIENCE_S
        while (found := self.depth(port, queues)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        return found


def _run(command: list[str], target: Target) -> tuple[dict[str, Any], CpuUse]:
    """Run the generator, reading the CPU clocks when it says that its window opens and closes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        watch = CpuWatch.on(target, process.pid)
        use: CpuUse | None = None
        result: dict[str, Any] | None = None
        try:
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "measuring":
                    watch.open()
                elif event["event"] == "measured":
                    use = watch.close()
                else:
                    result = event
            problem = process.stderr.read().strip()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0 or use is None or result is None:
        raise GeneratorError(problem or f"txgen ended with code {process.returncode} and said nothing")
    return result, use
