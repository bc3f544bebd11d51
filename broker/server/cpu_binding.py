"""CpuBinding: keeps the broker processes of one host on the CPUs that a plan gives them, anew when another broker leads.

The supervisor tells what it hears: a process was started, a broker said what it is, a process ended. The plan says which CPUs each
broker gets, by who leads. To bind a process is a system call a thread, some microseconds in all, and no broker waits for it.

- The leader is the newest broker that said so: of two, the one with the higher epoch; of one epoch, the later.
- While no broker leads, as after the leader's process has ended, the plan decides for that case: the next leader is not known.
- A process that ends meanwhile, or a CPU that is taken away, is no error: the process runs where it may.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

CpuPlan = Callable[[str | None], Mapping[str, Collection[int]]]
"""From the broker that leads, or None, to the CPUs of each broker. A broker that it leaves out is never bound."""

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


class CpuBinding:
    """Follows who leads.

    Args:
        plan: see :data:`CpuPlan`.
        bind: called with a process id and its CPUs.

    Attributes:
        leader: the broker that leads, as far as was told.
    """

    def __init__(self, plan: CpuPlan, bind: Callable[[int, Collection[int]], None] = bind_process) -> None:
        self._plan = plan
        self._bind = bind
        self._pids: dict[str, int] = {}
        self._bound: dict[str, Collection[int]] = {}
        self._epoch = 0
        self.leader: str | None = None

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
        if change.get("role") not in ("primary", "standalone"):
            self._resigned(broker)
        elif (epoch := change.get("epoch", 0)) >= self._epoch:
            self._epoch = epoch
            self.leader = broker
            self._follow()

    def _resigned(self, broker: str) -> None:
        if broker == self.leader:
            self.leader = None
            self._follow()

    def _follow(self) -> None:
        for broker, cpus in self._plan(self.leader).items():
            pid = self._pids.get(broker)
            if pid is not None and self._bound.get(broker) != cpus:
                self._bound[broker] = cpus
                self._bind(pid, cpus)
