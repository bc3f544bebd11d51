"""A process beside a broker stands back from the CPU, in the session of the broker: there Linux compares nice values."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from understudy.observers.edge.side_process import LOOK_MS, NICE, SideProcess

_SAY = """
import os
from understudy.observers.edge.side_process import stand_back
stand_back()
print(os.nice(0), os.getsid(0), os.getpgid(0) == os.getpid(), flush=True)
"""


def test_it_goes_behind_its_broker_and_ctrl_c_is_not_for_it() -> None:
    side = SideProcess("one that talks", [sys.executable, "-c", _SAY], talks=True)
    side.tick(1)
    side.tick(1 + LOOK_MS)
    said: list[bytes] = []
    deadline = time.monotonic() + 60
    while not said and time.monotonic() < deadline:
        said = side.heard()
        time.sleep(0.01)
    looks = 1
    while not side.ends and time.monotonic() < deadline:
        looks += 1
        side.tick(1 + looks * LOOK_MS)
        time.sleep(0.01)
    assert side.ends == {0: 1}
    assert said[0].split() == [str(min(19, os.nice(0) + NICE)).encode(), str(os.getsid(0)).encode(), b"True"]


def test_it_may_be_as_nice_as_it_can() -> None:
    subprocess.run(["nice", "-n", "19", sys.executable, "-c", _SAY], check=True, stdout=subprocess.DEVNULL)
