"""One measurement, and the stopwatch that takes the CPU of everybody concerned."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attrs import define, frozen

from bench_tools.processes import cpu_seconds, descendants, machine_cpu_seconds


@frozen(kw_only=True)
class Sample:
    """Figures of one row on one side in one round.

    Latencies are in microseconds, None where the tool does not say.  ``other_cpu_share`` is the part of the machine
    (0..1 of all cores) that neither brokers nor generator used: work of strangers, or of the kernel for nobody.
    ``feed_cpu_us_per_message`` is that of the event feeds which brokers run beside them, until they had caught up, for each message
    that was queued; it is not in the brokers' own.
    ``queued`` is the messages in the queues when the row was over, None where nobody counted them.
    ``checks`` lists what was found wrong although the run went through; empty is good.
    """

    seconds: float
    commits_per_s: float | None
    messages_per_s: float
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None
    broker_cpu_us_per_message: float
    broker_cores: float
    generator_cpu_us_per_message: float
    generator_cores: float
    other_cpu_share: float
    queued: int | None = None
    feed_cpu_us_per_message: float = 0.0
    checks: tuple[str, ...] = ()


@frozen(kw_only=True)
class Target:
    """Where the load goes: AMQP port, the processes whose trees are the brokers, the cores all of them share.

    ``queue_type`` is the ``x-queue-type`` of the queues, None for none. ``feeds`` are those below ``roots`` that are no brokers.
    """

    port: int
    roots: Sequence[int]
    cores: int
    queue_type: str | None = None
    feeds: frozenset[int] = frozenset()


@frozen(kw_only=True)
class Window:
    """How long is measured, and how long before it the load already runs."""

    seconds: float
    warmup: float


@frozen(kw_only=True)
class CpuUse:
    """CPU seconds used while ``seconds`` passed. ``feeds``: of the brokers' event feeds, which are not in ``brokers``."""

    seconds: float
    brokers: float
    generator: float
    machine: float
    feeds: float
    cores: int

    @property
    def other_share(self) -> float:
        others = self.machine - self.brokers - self.generator - self.feeds
        return max(0.0, others / (self.seconds * self.cores))


@define
class CpuWatch:
    """Reads all clocks at the opening of the window, and again at its close."""

    broker_pids: frozenset[int]
    feed_pids: frozenset[int]
    generator_pid: int
    cores: int
    _before: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    @classmethod
    def on(cls, target: Target, generator_pid: int) -> CpuWatch:
        brokers = frozenset(descendants(target.roots)) - target.feeds
        return cls(brokers, target.feeds, generator_pid, target.cores)

    def _read(self) -> tuple[float, float, float, float, float]:
        return (
            time.monotonic(),
            cpu_seconds(self.broker_pids),
            cpu_seconds([self.generator_pid]),
            machine_cpu_seconds(),
            cpu_seconds(self.feed_pids),
        )

    def open(self) -> None:
        self._before = self._read()

    def close(self) -> CpuUse:
        seconds, brokers, generator, machine, feeds = (
            after - before for after, before in zip(self._read(), self._before, strict=True)
        )
        return CpuUse(
            seconds=seconds, brokers=brokers, generator=generator, machine=machine, feeds=feeds, cores=self.cores
        )


def make_sample(
    use: CpuUse,
    *,
    seconds: float,
    commits: float | None,
    messages: float,
    latencies_us: dict[str, float | None],
    queued: int | None = None,
    checks: tuple[str, ...],
) -> Sample:
    """Put the generator's counts and the CPU clocks together.

    ``seconds`` is the generator's window and ``use.seconds`` ours, some milliseconds apart; each count is divided by
    the time it was taken over.
    """
    rate = messages / seconds
    per_message = 1e6 / (rate * use.seconds) if messages else 0.0
    return Sample(
        seconds=seconds,
        commits_per_s=None if commits is None else commits / seconds,
        messages_per_s=rate,
        p50_us=latencies_us.get("p50"),
        p95_us=latencies_us.get("p95"),
        p99_us=latencies_us.get("p99"),
        p999_us=latencies_us.get("p999"),
        max_us=latencies_us.get("max"),
        broker_cpu_us_per_message=use.brokers * per_message,
        broker_cores=use.brokers / use.seconds,
        generator_cpu_us_per_message=use.generator * per_message,
        generator_cores=use.generator / use.seconds,
        other_cpu_share=use.other_share,
        queued=queued,
        checks=checks,
    )
