"""Alternates sides and rounds, one cluster alive at a time.

A round is: for each side, start it, put every row on it, stop it.  Odd rounds begin with one side, even rounds with the
other, so that a drift of the machine meets both.  The idle side is stopped rather than left running: three idle brokers
on two cores are not nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from attrs import evolve, field, frozen

from bench_tools.errors import BenchError, GeneratorError
from bench_tools.links import Links
from bench_tools.perftest import PerfTest
from bench_tools.processes import cpu_seconds, descendants, running
from bench_tools.rows import QUEUE_PREFIX, Row
from bench_tools.sample import Sample, Target, Window
from bench_tools.sides import Side
from bench_tools.txgen import Txgen

SideName = Literal[
    "rabbitmq", "quorum", "understudy", "feed off", "feed on", "feed messages", "store file", "store zookeeper"
]

FEED_PROGRAM = "understudy.observers.feed.edge.process"
"""In the command of each feed that a broker runs."""
_IDLE_CORES = 0.15
_IDLE_LOOK_S = 0.5
_FEED_LOOK_S = 2.0
"""A feed that is behind may pause so long between two rounds while the CPUs were full."""
_IDLE_PATIENCE_S = 15.0


@frozen(kw_only=True)
class Outcome:
    """A row on a side in a round: a sample, or why there is none."""

    row: str
    side: SideName
    round: int
    sample: Sample | None = None
    error: str | None = None


@frozen(kw_only=True)
class Bench:
    """Everything a run needs; ``make_side`` gets the side's name and the round and returns a fresh cluster.

    ``links`` are those between the brokers, where rows have a delay. ``loads`` gets a line of /proc/loadavg at the begin and at the
    end of each round.
    """

    txgen: Txgen
    perftest: PerfTest | None
    rows: Sequence[Row]
    sides: Sequence[SideName]
    rounds: int
    window: Window
    cores: int
    make_side: Callable[[SideName, int], Side]
    say: Callable[[str], None]
    links: Links | None = None
    loads: list[str] = field(factory=list)

    def run(self) -> list[Outcome]:
        """All rounds; a cluster that fails costs the rest of its round and nothing else."""
        outcomes: list[Outcome] = []
        for number in range(1, self.rounds + 1):
            self._note_load(f"round {number} begins")
            for name in self.sides if number % 2 else tuple(reversed(self.sides)):
                outcomes += self._one_side(name, number)
            self._note_load(f"round {number} ends")
        return outcomes

    def _note_load(self, when: str) -> None:
        one, five, *_ = Path("/proc/loadavg").read_text().split()
        self.loads.append(f"{when}: load {one} of a minute, {five} of five")
        self.say(self.loads[-1])

    def _one_side(self, name: SideName, number: int) -> list[Outcome]:
        side = self.make_side(name, number)
        outcomes: list[Outcome] = []
        try:
            began = time.monotonic()
            side.start()
            self.say(f"round {number}: {name} up after {time.monotonic() - began:.1f} s")
            for row in self.rows:
                outcome = self._one_row(side, name, row, number)
                outcomes.append(outcome)
                self.say(f"round {number}: {_in_a_line(outcome)}")
        except BenchError as error:
            self.say(f"round {number}: {name} failed: {error}")
            outcomes += [
                Outcome(row=row.name, side=name, round=number, error=str(error)) for row in self.rows[len(outcomes) :]
            ]
        finally:
            side.stop()
        return outcomes

    def _one_row(self, side: Side, name: SideName, row: Row, number: int) -> Outcome:
        """Raises BenchError only when the cluster itself is broken."""
        roots = side.process_roots()
        try:
            if self.links is not None and row.delay_ms is not None:
                self.links.delay(row.delay_ms)
            self.txgen.declare_queues(side.port, row, side.queue_type)
            if row.pinned:
                self.txgen.pin(side.port, side.queue_type)
            problems = [
                *side.check_replication([f"{QUEUE_PREFIX}-{index}" for index in range(row.queues)]),
                *_settle(roots),
            ]
            generator = self.txgen if row.tool == "txgen" else self.perftest
            assert generator is not None
            feeds = running(descendants(roots), FEED_PROGRAM)
            used = cpu_seconds(feeds)
            target = Target(port=side.port, roots=roots, cores=self.cores, queue_type=side.queue_type, feeds=feeds)
            sample = generator.measure(row, target, self.window)
            if feeds:
                problems += _settle(
                    roots, _FEED_LOOK_S
                )  # a feed that is behind does its work when the window has closed
                used = (cpu_seconds(feeds) - used) * 1e6 / (sample.queued or 1)
                sample = evolve(sample, feed_cpu_us_per_message=used)
            self.txgen.delete_queues(side.port, row)
            if row.pinned:
                self.txgen.unpin(side.port)
        except GeneratorError as error:
            side.process_roots()
            return Outcome(row=row.name, side=name, round=number, error=str(error))
        problems += sample.checks
        return Outcome(row=row.name, side=name, round=number, sample=sample, error="; ".join(problems) or None)


def _settle(roots: Sequence[int], look_s: float = _IDLE_LOOK_S) -> list[str]:
    """Wait until the brokers have finished what the last row left them (deleted queues, files to drop)."""
    pids = descendants(roots)
    deadline = time.monotonic() + _IDLE_PATIENCE_S
    while True:
        before, began = cpu_seconds(pids), time.monotonic()
        time.sleep(look_s)
        cores = (cpu_seconds(pids) - before) / (time.monotonic() - began)
        if cores < _IDLE_CORES:
            return []
        if time.monotonic() > deadline:
            return [f"the idle brokers still used {cores:.2f} cores when the row began"]


def _in_a_line(outcome: Outcome) -> str:
    sample = outcome.sample
    if sample is None:
        return f"{outcome.side} {outcome.row}: FAILED: {outcome.error}"
    text = (
        f"{outcome.side} {outcome.row}: {sample.messages_per_s:,.0f} messages/s, "
        f"{sample.broker_cpu_us_per_message:,.0f} us CPU a message"
    )
    return f"{text}  PROBLEM: {outcome.error}" if outcome.error else text
