"""A state server that kills itself at the point that the environment names.

``xa_state_server.py FOLDER|URL|mirrored:FOLDER ADDRESS``
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from understudy.xa.core.profiles.log_address import log_address_of
from understudy.xa.state_server.command import run
from understudy.xa.state_server.entrance import Doors
from understudy.xa.state_server.stores import JOURNAL, MIRRORED, QUEUE, Where

point = os.environ.get("XA_CRASH", "")


def on_step(label: str) -> None:
    if label == point:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    place = sys.argv[1]
    address = log_address_of(place, "URL") if place.startswith("amqp:") else None
    engine = MIRRORED if place.startswith(f"{MIRRORED}:") else JOURNAL
    folder = Path(place.removeprefix(f"{MIRRORED}:"))
    where = Where(engine=engine, data=folder) if address is None else Where(engine=QUEUE, address=address)
    run(where, Doors(listen=sys.argv[2]).checked(), on_step=on_step)
