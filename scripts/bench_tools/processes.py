"""Processes, ports and CPU clocks: all that touches the machine.

CPU is read from ``/proc/PID/stat`` (utime + stime), which holds all threads of the process, ended ones too.  Its unit
is 1/100 s, so a window of 5 s of one busy core is known to 0.2 %.  A broker is counted as the tree of processes under
the one we started: what it delegates to a helper process is its cost too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench_tools.errors import BenchError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_LOOPBACK = "127.0.0.1"


class Child:
    """A process we started, its log, and the way to end it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Start ``command`` with both outputs appended to ``log``; ``stop_signal`` is what it takes as a polite end.

        The kernel sends it that signal, too, should this process die without stopping it (SIGKILL): brokers left
        behind would spoil the next run on the machine.
        """
        self.name = name
        self.log = log
        self._stop_signal = stop_signal
        libc = ctypes.CDLL(None, use_errno=True)

        def in_child() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, stop_signal)
            # A bench started in the background of a script ignores SIGINT, and its children would inherit that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                cwd=log.parent,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509 - the bench has one thread
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_alive(self) -> None:
        """Raises BenchError with the end of the log if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with code {code}; its log {self.log} ends:\n{tail(self.log)}")

    def ask_to_stop(self) -> None:
        """Send the stop signal; several children are asked first and awaited after."""
        if self._process.poll() is None:
            self._process.send_signal(self._stop_signal)

    def stop(self, grace_s: float) -> None:
        """The stop signal, then after ``grace_s`` SIGKILL to the process and to every descendant it had."""
        if self._process.poll() is not None:
            return
        family = descendants([self.pid])
        born = {pid: _start_time(pid) for pid in family}
        self.ask_to_stop()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in family - {self.pid}:
            # The start time guards against a process id that was given to somebody else meanwhile.
            if born[pid] is not None and _start_time(pid) == born[pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def tail(path: Path, lines: int = 15) -> str:
    """The last ``lines`` lines of a log, or a word that there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"


def free_ports(count: int) -> list[int]:
    """``count`` consecutive TCP ports free on the loopback, below the range the kernel hands out to clients."""
    for _ in range(200):
        first = random.randrange(20_000, 31_000)  # noqa: S311 - spreads parallel runs, hides nothing
        if all(_is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise BenchError(f"found no {count} consecutive free ports between 20000 and 31000 on {_LOOPBACK}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def await_port(port: int, child: Child, timeout_s: float) -> None:
    """Wait until something listens on ``port``; gives up at once when ``child`` has ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        child.require_alive()
        with contextlib.suppress(OSError), socket.create_connection((_LOOPBACK, port), timeout=1):
            return
        time.sleep(0.1)
    raise BenchError(
        f"{child.name} does not listen on port {port} after {timeout_s:.0f} s; {child.log} ends:\n{tail(child.log)}"
    )


def descendants(roots: Iterable[int]) -> set[int]:
    """``roots`` and all processes below them that live now."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are wanted, not paths
        if name.isdigit():
            fields = _stat_fields(int(name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left.extend(children.get(pid, ()))
    return found


def running(pids: Iterable[int], program: str) -> frozenset[int]:
    """Those of ``pids`` with ``program`` in their command."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
    return frozenset(found)


def cpu_seconds(pids: Iterable[int]) -> float:
    """User plus system time of ``pids`` together; a process that is gone counts nothing."""
    ticks = 0
    for pid in pids:
        fields = _stat_fields(pid)
        if fields is not None:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def machine_cpu_seconds() -> float:
    """Time all cores together were not idle since the machine started."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from ``state`` on (field 3 of proc(5) is index 0), None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: count from the last one.
    return text[text.rindex(")") + 2 :].split()


def _start_time(pid: int) -> str | None:
    fields = _stat_fields(pid)
    return fields[19] if fields is not None else None
