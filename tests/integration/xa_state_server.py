"""A state server that kills itself at the point that the environment names: ``xa_state_server.py FOLDER ADDRESS``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from understudy.xa.state_server.command import run
from understudy.xa.state_server.stores import Where

point = os.environ.get("XA_CRASH", "")


def on_step(label: str) -> None:
    if label == point:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(Where(data=Path(sys.argv[1])), sys.argv[2], on_step=on_step)
