"""StateServer: the state server of a run with ``xa=True``, as a process that can be killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from understudy.xa.demo.stage import Service, understudy


class StateServer:
    """Keeps its data when it is killed.

    Attributes:
        address: of its socket, in a folder of its own: the path of a socket is short.
    """

    def __init__(self, folder: Path) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="understudy-state-")
        socket = Path(self._place.name) / "socket"
        self.address = f"unix:{socket}"
        command = [understudy(), "state-server", "--data", str(folder / "state"), "--listen", self.address]
        self._service = Service("state-server", [*command, "--max-attempts", "1000"], folder, socket)

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self._service.start()

    def kill(self) -> None:
        """SIGKILL."""
        self._service.kill()

    def stop(self) -> None:
        self._service.stop()
        self._place.cleanup()
