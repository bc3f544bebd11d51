"""Brokers as if on hosts of their own: a network namespace for each, and links between them that deliver later.

``linkdelay.c`` makes them. The bench itself and its generators enter the first namespace, so that clients stand beside the broker
that leads: the links between brokers alone are delayed. The kernel's ``netem`` would do the same; many kernels lack it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench_tools.errors import BenchError

_SOURCE = Path(__file__).with_name("linkdelay.c")
_CLONE_NEWNET = 0x40000000


class Links:
    """The network between the brokers, from its making to `stop`."""

    def __init__(self, build: Path, brokers: int) -> None:
        """Compile the program unless it is there, and make ``brokers`` namespaces.

        Raises:
            BenchError: this process may not make namespaces, or ``nsenter`` or a compiler is missing.
        """
        if shutil.which("nsenter") is None:
            raise BenchError("--link-delay needs nsenter (Debian: apt-get install util-linux)")
        program = _compiled(build)
        self._process = subprocess.Popen(
            [str(program), str(brokers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the bench, which stops the brokers first
        )
        self.namespaces: Sequence[str] = json.loads(self._answer())["namespaces"]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(brokers)]

    def enter(self) -> None:
        """Move this process into the first broker's namespace, for good."""
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(self.namespaces[0], os.O_RDONLY)
        try:
            if libc.setns(descriptor, _CLONE_NEWNET) != 0:
                raise BenchError(f"setns {self.namespaces[0]}: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(descriptor)

    def inside(self, number: int) -> list[str]:
        """The words before a command that make it run on broker ``number``'s side, from 0."""
        return ["nsenter", f"--net={self.namespaces[number]}"]

    def delay(self, milliseconds: float) -> None:
        """Let each packet come so much later, in each direction."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{round(milliseconds * 1000)}\n")
        self._process.stdin.flush()
        self._answer()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise BenchError(f"--link-delay: {self._process.stderr.read().strip()} (it needs root)")
        return line


def _compiled(build: Path) -> Path:
    program = build / "linkdelay"
    if program.exists() and program.stat().st_mtime > _SOURCE.stat().st_mtime:
        return program
    build.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "gcc"), "-std=c99", "-O2", "-Wall", "-Wextra", "-o", str(program), str(_SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise BenchError(f"linkdelay does not compile:\n{made.stderr}")
    return program
