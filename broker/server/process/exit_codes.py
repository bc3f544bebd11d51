"""How a broker process ends, for supervisors and scripts. ``understudy cluster`` restarts what was killed, and exit code 70.

`run.serve` turns what stops a start into REFUSED or CONFIG. `fatal` ends a running process with INTERNAL or DISK.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The numbers above 63 are those of BSD's sysexits.h.

    OK: asked to stop, everything flushed.
    REFUSED: the start was refused and nothing was changed: port in use, data directory locked, damaged, of another broker or
    of a newer format; or journal and coordination store contradict each other.
    INTERNAL: an assertion of our own failed; the log says which event led to it.
    DISK: a write or an fsync failed. What was not durable may or may not be there: a human looks first.
    CONFIG: the configuration cannot be used.
    """

    OK = 0
    REFUSED = 1
    INTERNAL = 70
    DISK = 74
    CONFIG = 78
