"""SupervisorPipe: a broker's lines to its supervisor.

A supervisor that has been stopped (Ctrl-Z), or whose own output nobody reads, reads nothing either. That must not stop the
broker: what the pipe does not take now is tried again later, and nothing waits for it.
"""

from __future__ import annotations

import os


class SupervisorPipe:
    """Lines are whole or not there.

    Args:
        descriptor: of the pipe; it does not block from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        os.set_blocking(descriptor, False)

    def tell(self, line: str) -> bool:
        """Write ``line``, and what is left of the one before; False if there is no room, and nothing of it was written."""
        if not self.flush():
            return False
        data = line.encode() + b"\n"
        written = self._write(data)
        self._rest = data[written:] if written else b""
        return written > 0

    def flush(self) -> bool:
        """Write what is left of a line that has been begun; whether that was all."""
        if self._rest:
            self._rest = self._rest[self._write(self._rest) :]
        return not self._rest

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:  # he is gone: the end of our standard input will say so
            return len(data)
