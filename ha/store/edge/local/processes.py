"""Which processes of this machine are there: what a lease in a file cannot tell by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs

from understudy.ha.store.coordination import BrokerInfo
from understudy.ha.store.edge.local.store import BrokerRow, Process


def machine_ms() -> int:
    """The machine's monotonic clock, the same in all its processes."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000


def this_process() -> Process:
    return Process(pid=os.getpid(), started=_started(os.getpid()) or 0, boot=_boot(), pid_namespace=_pid_namespace())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # no Linux: a reboot is noticed by the processes being gone


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; 0 if that is not told; None if there is none, or only a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # somebody else's: it exists
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # no Linux, or /proc hides what belongs to others
    # The name, in parentheses, may contain anything; state is the first field after it, start time the twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZXx" else int(fields[19])


def is_alive(row: BrokerRow, observer: Process, now_ms: int) -> bool:
    """True if the broker of ``row`` counts as alive to ``observer``."""
    process = row.process
    if row.lease_until_ms <= now_ms or process.boot != observer.boot:
        return False
    if process.pid_namespace != observer.pid_namespace:
        return True
    # The observer's own number may have been another's before: of a broker that is process 1 of its container, at each restart.
    started = _started(process.pid) if process.pid != observer.pid else observer.started
    return started is not None and (not started or not process.started or started == process.started)


def is_there(row: BrokerRow, observer: Process) -> bool:
    """True if the process of ``row`` exists, be it stopped or hanging; False if that cannot be told from here."""
    process = row.process
    if process.boot != observer.boot or process.pid_namespace != observer.pid_namespace:
        return False
    started = _started(process.pid)
    return started is not None and (not started or not process.started or started == process.started)


def shown(row: BrokerRow, observer: Process, now_ms: int) -> BrokerInfo:
    """The broker of a row of the store, as ``observer`` sees it."""
    return attrs.evolve(row.info, alive=is_alive(row, observer, now_ms))
