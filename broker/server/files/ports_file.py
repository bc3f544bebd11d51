"""``ports.json``: where the broker that owns a data directory listens, for whoever only knows the directory.

Written when the ports are bound, replaced as a whole, and left behind when the process ends: the AMQP port of a dead broker is
worth knowing. Whether somebody is there only the HTTP port tells, and its answer must carry the same broker and pid: another
process may have the port by now.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Final

from understudy.broker.server.files.private_files import FILE_MODE

PORTS_NAME: Final = "ports.json"
READY_STATUSES: Final = frozenset({"active", "ready", "standalone"})
"""A broker that says one of these has got where it should; stands here because supervisors import no broker."""
SERVING_STATUSES: Final = frozenset({"active", "standalone"})
"""A broker that says one of these serves clients."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_ports(directory: Path, ports: dict[str, Any]) -> bool:
    """Replace the file atomically; on a full disk the old one gives its room up first.

    Args:
        directory: of the broker's data; its lock is held.
        ports: broker, group, pid, started (seconds since 1970), host, amqp, http, and what plugins add (link).

    Returns:
        Whether it is there; False if the disk is too full even so: that must not keep a broker from starting.
    """
    return _replace(directory, ports) or _replace(directory, ports)


def _replace(directory: Path, ports: dict[str, Any]) -> bool:
    """False if there was no room; then there is no file any more, which may have made some."""
    path, temporary = directory / PORTS_NAME, directory / f"{PORTS_NAME}.{os.getpid()}"
    try:
        temporary.touch(FILE_MODE)
        temporary.write_text(json.dumps(ports, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        temporary.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return False
    return True


def read_ports(directory: Path) -> dict[str, Any] | None:
    """The content of the file; None if there is none, or none that can be read."""
    try:
        ports = json.loads((directory / PORTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return ports if isinstance(ports, dict) else None
