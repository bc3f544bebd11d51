"""Standard input, output and error are open, whoever started the broker: if one was closed, it is the null device.

A descriptor from 0 to 2 that is free is given to whatever is opened next. Then what is written to standard error goes into the
journal or to a client, and libuv, which never expects one of these, aborts the process as soon as it closes it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

STANDARD_ERROR: Final = 2


def fill_standard_streams() -> None:
    """Open what is closed. Call it before anything else is opened."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        pass
    os.close(number)
    # Python has None for those that were closed when it began.
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
