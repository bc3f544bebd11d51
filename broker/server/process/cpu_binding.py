"""CpuBinding: keeps the broker processes of one host on the CPUs that a plan gives them, anew when another broker leads.

The supervisor tells what it hears: a process was started, a broker said what it is, a process ended, time has passed. The plan says
which CPUs each broker gets, by who leads and whether the leader's CPU is full. To bind a process is a system call a thread, some
microseconds in all, and no broker waits for it.

- The leader's CPU is full if it was idle for less than `FULL_RATIO` of the time, until it is so for more than `ROOM_RATIO`, but
  `STAY_S` at least. It counts as full where nobody tells.
- The leader is the newest broker that said so: of two, the one with the higher epoch; of one epoch, the later.
- What a broker runs beside itself, such as a feed, runs on all CPUs, but not on the leader's while that is full.
- While no broker leads, as after the leader's process has ended, the plan decides for that case: the next leader is not known.
- A process that ends meanwhile, or a CPU that is taken away, is no error: the process runs where it may.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from understudy.broker.plugin_api.roles import LEADING_ROLES

CpuPlan = Callable[[str | None, bool], Mapping[str, Collection[int]]]
"""From the broker that leads, or None, and whether its CPU is full, to the CPUs of each broker. Others are never bound."""

FULL_RATIO: Final = 0.05
ROOM_RATIO: Final = 0.3
"""Between the two, since a broker that leaves the CPU of the leader takes up to 0.25 of its work with it."""

STAY_S: Final = 5.0
"""With several brokers to a CPU more than that may leave: then the two would alternate."""

_CPU_TIMES: Final = Path("/proc/stat")
_PASSES: Final = 3
"""A thread inherits the CPUs of the one that starts it. So one that began while others were bound is seen in the next pass."""


def usable_cpus() -> list[int]:
    """The CPUs that this process may use, ascending: fewer than the machine has in a container or under taskset.

    Returns:
        None of them if the operating system does not tell.
    """
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def bind_process(pid: int, cpus: Collection[int]) -> None:
    """Let all threads of a process run on these CPUs alone, and those that it starts later."""
    bound: set[str] = set()
    with contextlib.suppress(OSError):  # the process has ended
        for _ in range(_PASSES):
            threads = {task.name for task in Path(f"/proc/{pid}/task").iterdir()} - bound
            if not threads:
                return
            for thread in threads:
                with contextlib.suppress(OSError):  # that thread has ended, or may use none of these CPUs
                    os.sched_setaffinity(int(thread), cpus)
            bound |= threads


def idle_seconds() -> dict[int, float]:
    """Seconds for which each CPU was idle, waited for a disk or ran niced processes, since the machine began.

    Returns:
        By the CPU's number; {} if the operating system does not tell.
    """
    try:
        rows = [line.split() for line in _CPU_TIMES.read_text(encoding="ascii").splitlines()]
        ticks = os.sysconf("SC_CLK_TCK")
        return {
            int(row[0][3:]): (int(row[2]) + int(row[4]) + int(row[5])) / ticks
            for row in rows
            if row and row[0][:3] == "cpu" and row[0][3:].isdigit()
        }
    except (OSError, ValueError, IndexError):
        return {}


def bind_children(pid: int, cpus: Collection[int]) -> None:
    """Let what a process runs beside itself run on these CPUs."""
    with contextlib.suppress(OSError):  # it has ended, or this kernel does not tell
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                if os.sched_getaffinity(int(child)) != set(cpus):
                    bind_process(int(child), cpus)


class CpuBinding:
    """Follows who leads, and how much its CPU has to do.

    Args:
        plan: see :data:`CpuPlan`.
        bind: called with a process id and its CPUs.
        idle: see :func:`idle_seconds`.
        bind_beside: called with a broker's process id and the CPUs of what that runs beside itself.
        cpus: all that may be used; None: those of this process.

    Attributes:
        leader: the broker that leads, as far as was told.
        full: whether the leader's CPU is.
    """

    def __init__(
        self,
        plan: CpuPlan,
        bind: Callable[[int, Collection[int]], None] = bind_process,
        idle: Callable[[], Mapping[int, float]] = idle_seconds,
        bind_beside: Callable[[int, Collection[int]], None] = bind_children,
        cpus: Collection[int] | None = None,
    ) -> None:
        self._cpus = frozenset(usable_cpus() if cpus is None else cpus)
        self._full_since_s = 0.0
        self._plan = plan
        self._bind = bind
        self._idle = idle
        self._bind_beside = bind_beside
        self._pids: dict[str, int] = {}
        self._bound: dict[str, Collection[int]] = {}
        self._epoch = 0
        self._looked_s = 0.0
        self._idle_before: Mapping[int, float] = {}
        self.leader: str | None = None
        self.full = False

    def started(self, broker: str, pid: int) -> None:
        """A broker has a new process. It has one thread yet."""
        self._pids[broker] = pid
        self._follow()

    def ended(self, broker: str) -> None:
        """A broker's process has ended."""
        self._pids.pop(broker, None)
        self._bound.pop(broker, None)
        self._resigned(broker)

    def told(self, broker: str, change: Mapping[str, Any]) -> None:
        """A broker said what it is: ``role`` and ``epoch`` are looked at."""
        if change.get("role") not in LEADING_ROLES:
            self._resigned(broker)
        elif (epoch := change.get("epoch", 0)) >= self._epoch:
            self._epoch = epoch
            self.full = self.full and broker == self.leader
            self.leader = broker
            self._follow()

    def look(self, now_s: float) -> None:
        """Time has passed: see how long the leader's CPUs were idle since the last look.

        Args:
            now_s: of a clock that only grows.
        """
        self._follow_beside()
        there = self._idle()
        passed_s = now_s - self._looked_s
        before, self._idle_before, self._looked_s = self._idle_before, there, now_s
        if self.leader is None or passed_s <= 0:
            return
        known = [cpu for cpu in self._bound.get(self.leader, ()) if cpu in there]
        if not all(cpu in before for cpu in known) or (self.full and now_s - self._full_since_s < STAY_S):
            return
        idle_s = sum(there[cpu] - before[cpu] for cpu in known)
        full = not known or idle_s / len(known) / passed_s < (ROOM_RATIO if self.full else FULL_RATIO)
        if full != self.full:
            self.full = full
            self._full_since_s = now_s
            self._follow()

    def _resigned(self, broker: str) -> None:
        if broker == self.leader:
            self.leader = None
            self.full = False
            self._follow()

    def _follow_beside(self) -> None:
        """Once a second: such processes begin and end by themselves, and inherit the CPUs of their broker."""
        cpus = self._cpus
        if self.full and self.leader is not None:
            cpus = cpus.difference(self._bound.get(self.leader, ())) or cpus
        for pid in self._pids.values():
            self._bind_beside(pid, cpus)

    def _follow(self) -> None:
        for broker, cpus in self._plan(self.leader, self.full).items():
            pid = self._pids.get(broker)
            if pid is not None and self._bound.get(broker) != cpus:
                self._bound[broker] = cpus
                self._bind(pid, cpus)
