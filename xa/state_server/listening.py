"""Where a state server listens for clients: ``host:port``, or the file of a socket."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import ConfigError, StateServerError
from understudy.xa.core.wire import MAX_LINE_OCTETS

PROBE_S: Final = 1.0
LOST_HOST: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds, seconds, times: the transactions of a client whose machine is gone wait for recovery after a minute."""
OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AddressError(StateServerError):
    """The address cannot be had."""


async def listening(address: str, on_client: OnClient) -> tuple[asyncio.Server, str]:
    """A server at an address.

    Args:
        address: ``host:port`` (port 0: a free one) or ``unix:/path``. Only this user may connect to the socket of a file.
        on_client: serves one connection.

    Returns:
        The server, and the address with its port.

    Raises:
        ConfigError: at the path is a file that is no socket, or another server.
        AddressError: the system refuses the address.
    """
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            _remove_left_over(path)
            server = await asyncio.start_unix_server(on_client, path, limit=MAX_LINE_OCTETS)
            _for_this_user(path)
            return server, address
        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(
            on_client, host.strip("[]"), int(port), limit=MAX_LINE_OCTETS, start_serving=False
        )
        for each in server.sockets:
            _notice_lost_hosts(each)
        await server.start_serving()
    except OSError as error:
        raise AddressError(f"--listen {address} cannot be had: {error}") from error
    return server, f"{host}:{server.sockets[0].getsockname()[1]}"


def _notice_lost_hosts(listener: socket.socket) -> None:
    """What it accepts has these options, too (tcp(7))."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in LOST_HOST.items():
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _for_this_user(path: Path) -> None:
    path.chmod(0o600)


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
