"""The peer on the socket of a file, as the system tells it: the user of that process."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import AccessError, ConfigError

MAX_PATH_OCTETS: Final = 107
"""Of the path of a socket (unix(7))."""
_CREDENTIALS: Final = struct.Struct("3i")
"""Process id, user id, group id."""


def socket_path(address: str) -> Path:
    """The path of an address that begins with ``unix:``; ``~`` is the home of this user.

    Raises:
        ConfigError: this user has no home.
    """
    try:
        return Path(address.removeprefix("unix:")).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{address}: user {os.geteuid()} has no home: name the path of the state server's socket"
        ) from error


def user_of(peer: socket.socket) -> int | None:
    """The user id of the process at the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def check_server(peer: socket.socket, path: Path) -> None:
    """The server runs as this user or as root. A program of root also takes the owner of the folder that the socket is in.

    For another user the owner of the folder proves nothing: where all may write, a stranger makes the folder first.

    Raises:
        AccessError: it runs as another user, who has put a socket where that of the server belongs.
    """
    user, own = user_of(peer), os.geteuid()
    wanted = {own, 0} | ({path.parent.stat().st_uid} if own == 0 else set())
    if user is not None and user not in wanted:
        told = ", ".join(map(str, sorted(wanted)))
        raise AccessError(
            f"at unix:{path} a process of user {user} listens, and the state server's user is one of {told}"
        )
