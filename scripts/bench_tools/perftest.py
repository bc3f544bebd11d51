"""Fetches and runs RabbitMQ's own PerfTest, an unmodified Java client, on either side.

PerfTest prints a line a second; the window is made of whole lines after the warm-up (the JVM compiles in the first
seconds), the CPU clocks are read as the lines come.  Its percentiles are per second: the sample holds the median over
the seconds, and no maximum.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from statistics import median

from attrs import define, field

from bench_tools.errors import BenchError, GeneratorError
from bench_tools.rows import MESSAGE_BYTES, QUEUE_PREFIX, Row
from bench_tools.sample import CpuUse, CpuWatch, Sample, Target, Window, make_sample

VERSION = "2.22.1"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>understudy.bench</groupId>
  <artifactId>perftest-fetch</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>com.rabbitmq</groupId>
      <artifactId>perf-test</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
_MIN_WARMUP_S = 4.0

_TIME = re.compile(r"time (\d+\.\d+) s")
_RATE = {name: re.compile(rf"{name}: (\d+) msg/s") for name in ("sent", "confirmed", "received", "nacked", "returned")}
_LATENCY = {
    name: re.compile(rf"(?:th|,) {name} latency: (\d+)/(\d+)/(\d+)/(\d+)/(\d+) µs") for name in ("confirm", "consumer")
}


@define
class _Second:
    """One line of PerfTest: up to when, how long, how many, how late."""

    until_s: float
    length_s: float
    messages: float
    latencies_us: tuple[float, float, float] | None  # median, 95th, 99th
    refused: float


@define
class _LineReader:
    """Turns PerfTest's lines into ``_Second``s; ``counted`` is what a message is on this row."""

    counted: str
    latency: str | None
    _last_s: float = field(default=0.0, init=False)

    def read(self, line: str) -> _Second | None:
        found = _TIME.search(line)
        if found is None:
            return None
        until = float(found[1])
        length, self._last_s = until - self._last_s, until
        late = _LATENCY[self.latency].search(line) if self.latency else None
        return _Second(
            until_s=until,
            length_s=length,
            messages=self._rate(line, self.counted) * length,
            latencies_us=(float(late[2]), float(late[4]), float(late[5])) if late else None,
            refused=self._rate(line, "nacked") + self._rate(line, "returned"),
        )

    @staticmethod
    def _rate(line: str, name: str) -> float:
        found = _RATE[name].search(line)
        return float(found[1]) if found else 0.0


class PerfTest:
    """``com.rabbitmq:perf-test`` and its dependencies in a cache folder."""

    def __init__(self, build: Path) -> None:
        """Fetch with Maven unless the cache holds this version."""
        self._jars = build / f"perf-test-{VERSION}"
        if any(self._jars.glob("perf-test-*.jar")):
            return
        for program in ("mvn", "java"):
            if shutil.which(program) is None:
                raise BenchError(
                    f"no {program!r} for the java rows (Debian: apt-get install maven "
                    "openjdk-17-jre-headless); --rows 'tx*,confirm*' leaves them out"
                )
        project = build / "perf-test-fetch"
        project.mkdir(parents=True, exist_ok=True)
        (project / "pom.xml").write_text(_POM)
        # dependency:copy takes one artifact only; copy-dependencies takes what it needs as well.
        command = [
            "mvn",
            "-q",
            "-B",
            f"{_PLUGIN}:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={self._jars}",
        ]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"Maven could not fetch com.rabbitmq:perf-test:{VERSION}:\n{done.stdout[-2000:]}")

    def measure(self, row: Row, target: Target, window: Window) -> Sample:
        """Put the row's load on queue 0 of the bench."""
        warmup = max(window.warmup, _MIN_WARMUP_S)
        command = [
            "java",
            "-XX:+UseSerialGC",
            "-Xms256m",
            "-Xmx512m",
            "-cp",
            f"{self._jars}/*",
            "com.rabbitmq.perf.PerfTest",
            "--uri",
            f"amqp://guest:guest@127.0.0.1:{target.port}",
            "--queue",
            f"{QUEUE_PREFIX}-0",
            "--flag",
            "persistent",
            "--auto-delete",
            "false",
            "--size",
            str(MESSAGE_BYTES),
            "--producers",
            str(row.connections),
            "--consumers",
            str(row.consumers),
            "--time",
            str(round(warmup + window.seconds)),
            "--disable-connection-recovery",
        ]
        command += ["--ptxsize", str(row.messages)] if row.mode == "tx" else ["--confirm", str(row.window)]
        if row.rate:
            command += ["--rate", str(row.rate // row.connections)]
        if target.queue_type:
            command += ["--queue-args", f"x-queue-type={target.queue_type}"]
        if row.consumers:
            command += ["--qos", "200"]
            reader = _LineReader("received", "consumer")
        elif row.mode == "tx":
            reader = _LineReader("sent", None)
        else:
            reader = _LineReader("confirmed", "confirm")
        seconds, use = _run(command, reader, target, warmup)
        return _sample(row, seconds, use)


def _run(command: list[str], reader: _LineReader, target: Target, warmup: float) -> tuple[list[_Second], CpuUse]:
    """The seconds after the warm-up, and the CPU used from the first one's start to the last one's end."""
    window: list[_Second] = []
    said: list[str] = []
    use: CpuUse | None = None
    is_open = False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        watch = CpuWatch.on(target, process.pid)
        try:
            for line in process.stdout:
                second = reader.read(line)
                if second is None:
                    said.append(line.rstrip())
                elif is_open:
                    window.append(second)
                    use = watch.close()
                elif second.until_s >= warmup - 0.5:
                    watch.open()
                    is_open = True
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0 or use is None:
        raise GeneratorError(f"PerfTest ended with code {process.returncode}: {_reason(said)}")
    return window, use


def _reason(said: list[str]) -> str:
    """The innermost cause of a Java stack trace, else the last thing it said."""
    words = [line for line in said if line.strip() and ", starting " not in line]
    causes = [line for line in words if line.startswith("Caused by: ")]
    return (causes or words or ["it said nothing"])[-1]


def _sample(row: Row, window: list[_Second], use: CpuUse) -> Sample:
    seconds = sum(second.length_s for second in window)
    messages = sum(second.messages for second in window)
    if messages == 0:
        raise GeneratorError("PerfTest moved no message inside the window")
    late = [second.latencies_us for second in window if second.latencies_us is not None]
    latencies: dict[str, float | None] = {
        name: median(triple[index] for triple in late) if late else None
        for index, name in enumerate(("p50", "p95", "p99"))
    }
    refused = sum(second.refused for second in window)
    return make_sample(
        use,
        seconds=seconds,
        commits=messages / row.messages if row.mode == "tx" else None,
        messages=messages,
        latencies_us=latencies,
        checks=(f"{refused:.0f} messages a second refused or returned",) if refused else (),
    )
