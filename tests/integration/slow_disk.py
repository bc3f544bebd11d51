"""``understudy serve`` on a disk that takes longer for each sync, whatever the disk really is.

python slow_disk.py CONFIG

The file `slow-ms` beside CONFIG says how much longer, in milliseconds; it may be replaced at any time. What waits is the system
call that brings bytes to the disk: a write to a file that was opened with O_DSYNC, or fdatasync. Its thread sleeps without the
interpreter's lock, as it does in the call itself.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from understudy.broker.server.process.run import serve

SLOW_NAME = "slow-ms"


def slowed(call: Callable[..., Any], slow: Path, *, synced_writes: bool) -> Callable[..., Any]:
    """A system call that takes as long as the file `slow` says; with `synced_writes` only on descriptors with O_DSYNC."""

    def longer(fd: int, *arguments: Any) -> Any:
        if not synced_writes or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC:
            time.sleep(float(slow.read_text(encoding="ascii")) / 1_000)
        return call(fd, *arguments)

    return longer


def main() -> int:
    config = Path(sys.argv[1])
    slow = config.with_name(SLOW_NAME)
    os.pwrite = slowed(os.pwrite, slow, synced_writes=True)
    os.fdatasync = slowed(os.fdatasync, slow, synced_writes=False)
    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
