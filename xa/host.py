"""The identity of this host in the default job."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from typing import Final

MACHINE_ID: Final = Path("/etc/machine-id")


def host_id() -> str:
    """The content of /etc/machine-id, or else the address of a network card."""
    try:
        return MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return f"{uuid.getnode():012x}"


def host_address() -> str:
    """The address that the host's own name resolves to; 127.0.0.1 if it does not."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
