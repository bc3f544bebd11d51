"""A process beside a broker stands back from the CPU, also where the kernel compares sessions and not processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from understudy.observers.side_process import NICE

_SAY = """
import os
from pathlib import Path
from understudy.observers.side_process import stand_back
stand_back()
print(os.nice(0))
autogroup = Path('/proc/self/autogroup')
print(autogroup.read_text() if autogroup.exists() else 'none')
"""


def test_its_session_has_the_nice_value_too() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _SAY], capture_output=True, text=True, check=True, start_new_session=True
    ).stdout
    assert int(said.split()[0]) >= NICE
    groups_sessions = Path("/proc/self/autogroup").exists()
    assert said.strip().endswith(f"nice {NICE}" if groups_sessions else "none")
