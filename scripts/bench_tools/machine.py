"""The report's facts about the machine, so that figures of two days can be told apart."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

_PROBE_S = 0.5


def cores() -> int:
    """Cores this process may use, which is what brokers and generator share."""
    return len(os.sched_getaffinity(0))


def describe(work: Path, root: Path) -> dict[str, str | int | float]:
    """CPU, kernel, filesystem of ``work`` and its speed, load, and the revision of the tree at ``root``."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    return {
        "cpu": model,
        "cores": cores(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": filesystem_of(work),
        "fdatasync_per_s": round(_fdatasync_rate(work)),
        "load_before": round(os.getloadavg()[0], 2),
        "revision": _revision(root),
    }


def filesystem_of(path: Path) -> str:
    """Type of the filesystem that holds ``path``: the longest mount point above it."""
    best, kind = "", "?"
    real = str(path.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, *_ = line.split()
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _fdatasync_rate(work: Path) -> float:
    """1 KB appends, each with fdatasync, a second: what a commit cannot beat alone on this disk."""
    probe = work / "fdatasync-probe"
    descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        began, count = time.monotonic(), 0
        while (passed := time.monotonic() - began) < _PROBE_S:
            os.write(descriptor, b"x" * 1024)
            os.fdatasync(descriptor)
            count += 1
        return count / passed
    finally:
        os.close(descriptor)
        probe.unlink()


def _revision(root: Path) -> str:
    """Short commit, with ``+`` if the tree differs from it; ``none`` without a commit."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    if not commit or commit == "HEAD":
        return "none"
    return commit + ("+" if git("status", "--porcelain") else "")
