"""Files of a broker are its user's alone, whatever the umask: 0600 in directories of 0700.

Who may open a file may lock it: a read lock on the coordination store by any user of the machine would keep every broker from
leading. Nothing that is there already is changed: it may be as the operator wants it (`exposed_files`).
"""

from __future__ import annotations

import os
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def keep_private() -> None:
    """For what makes files by itself, as SQLite and the standard library do: others get nothing of them."""
    os.umask(0o777 & ~DIRECTORY_MODE)
