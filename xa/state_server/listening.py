"""Where a state server listens for clients: ``host:port``, or the file of a socket in a folder that only its user may enter."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import ConfigError, StateServerError
from understudy.xa.sockets.peer import MAX_PATH_OCTETS, socket_path
from understudy.xa.state_server.door import BUFFER_OCTETS, OnClient
from understudy.xa.state_server.tls_listener import TlsListener

PROBE_S: Final = 1.0
BACKLOG: Final = 128
UNIX_BACKLOG: Final = 1024
"""On the socket of a file the system does not wait for room in the queue: a client that finds none is refused."""
LOST_HOST: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds, seconds, times: the transactions of a client whose machine is gone wait for recovery after a minute."""
_FOLDER_MODE: Final = 0o700
_SOCKET_MODE: Final = 0o600


class AddressError(StateServerError):
    """The address cannot be had."""


async def listening(
    address: str, on_client: OnClient, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Server | TlsListener, str]:
    """A server at an address.

    Args:
        address: ``host:port`` (port 0: a free one) or ``unix:/path``. Only this user and root may connect to the socket of a file.
        on_client: serves one connection.
        tls: of ``host:port``.

    Returns:
        The server, and the address with its port.

    Raises:
        ConfigError: at the path is a file that is no socket, or another server; or other users may come to the socket.
        AddressError: the system refuses the address.
    """
    try:
        if address.startswith("unix:"):
            bound = _bound(socket_path(address))
            unix = await asyncio.start_unix_server(on_client, sock=bound, limit=BUFFER_OCTETS, backlog=UNIX_BACKLOG)
            return unix, address
        host, _, port = address.rpartition(":")
        host, number = host.strip("[]"), int(port)
        if tls is not None:
            bound = _listening_tcp(host, number)
            return TlsListener(bound, on_client, tls), f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"
        server = await asyncio.start_server(on_client, host, number, limit=BUFFER_OCTETS, start_serving=False)
        for each in server.sockets:
            _notice_lost_hosts(each)
        await server.start_serving()
    except OSError as error:
        raise AddressError(f"--listen {address} cannot be had: {error}") from error
    return server, f"{address.rpartition(':')[0]}:{server.sockets[0].getsockname()[1]}"


def _listening_tcp(host: str, port: int) -> socket.socket:
    """At the first address of a host."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(where)
        _notice_lost_hosts(bound)
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    return bound


def _notice_lost_hosts(listener: socket.socket) -> None:
    """Set options that accepted sockets inherit (tcp(7))."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in LOST_HOST.items():
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


# -- the socket of a file -------------------------------------------------------------------------------------------------


def _bound(path: Path) -> socket.socket:
    if (octets := len(os.fsencode(path))) > MAX_PATH_OCTETS:
        raise ConfigError(
            f"--listen unix:{path}: the path has {octets} octets, and that of a socket at most {MAX_PATH_OCTETS}"
        )
    check_folder(path)
    _remove_left_over(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _umask(0o777 & ~_SOCKET_MODE):  # at no moment may others connect
            bound.bind(str(path))
        path.chmod(_SOCKET_MODE)
    except BaseException:
        bound.close()
        raise
    return bound


def check_folder(path: Path) -> None:
    """Make the folder of a socket, or see that no other user may enter it, or put another one into its place.

    Raises:
        ConfigError: other users may.
    """
    folder = path.parent
    with _umask(0o777 & ~_FOLDER_MODE):
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    found = folder.stat()
    place = f"--listen unix:{path}"
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{place}: the folder {folder} belongs to user {found.st_uid}, and this server runs as user {os.geteuid()}"
        )
    if others := stat.S_IMODE(found.st_mode) & ~_FOLDER_MODE & 0o777:
        raise ConfigError(
            f"{place}: other users may come to the folder {folder}, whose mode is {others | _FOLDER_MODE:04o}: choose a "
            f"folder of its own for the socket, or chmod 700 {shlex.quote(str(folder))}"
        )
    for above in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):  # it may be a link
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"{place}: every user may put another folder into the place of {folder}, since the mode of {above} is "
                f"{stat.S_IMODE(mode):04o}"
            )


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _remove_left_over(path: Path) -> None:
    """Remove the socket of a server that was killed, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--listen unix:{path}: there is a file that is no socket; it is left as it is")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"--listen unix:{path}: another server listens there")
