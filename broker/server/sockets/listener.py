"""Ports: bound early, so that one that is in use stops the start before anything is touched; accepted from when there is a core.

Between the two the kernel queues clients: who connects while a long journal is read waits instead of being refused.

Some file descriptors are kept for what the broker itself has to open. Whoever may connect could take all of them, before any
password; a journal that cannot open its next segment is a disk that failed (74), and who leads next meets the same clients.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import structlog

from understudy.broker.config import TlsConfig
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.sockets.bound_sockets import bound_sockets
from understudy.broker.server.sockets.stranger_log import StrangerLog
from understudy.broker.server.sockets.tls_door import TlsDoor

BACKLOG: Final = 1024
DESCRIPTORS_WANTED: Final = 65_536
DESCRIPTORS_KEPT: Final = 128
"""For journal, links, store and spilled bodies; half of them where there are so few."""

_log: Final = structlog.get_logger()


def raise_descriptor_limit() -> None:
    """Take what the machine grants: of its usual 1,024 a thousand clients would leave nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _TurnedAway(asyncio.Protocol):
    """For a connection that there is no descriptor for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).abort()


class PortError(UnderstudyError):
    """A port cannot be listened on.

    Attributes:
        host, port: which.
    """

    retriable = True

    def __init__(self, what: str, host: str, port: int, reason: str) -> None:
        self.host = host
        self.port = port
        super().__init__(f"{what} cannot listen on {host}:{port}: {reason}")


class TlsError(UnderstudyError):
    """Certificate, key or CA of the configuration cannot be used; the message names the key and the file."""


class Listener:
    """One name and port, on every address of this machine that the name stands for.

    Args:
        what: the section of the configuration, for messages.
        host: a name or an address.
        port: 0 for any free one.

    Attributes:
        port: the one that was bound.

    Raises:
        PortError: in use, not allowed, or the host is unknown here.
    """

    def __init__(self, what: str, host: str, port: int) -> None:
        self.host = host
        self._servers: list[asyncio.Server | TlsDoor] = []
        self._what = what
        self._full = False
        self._strangers = StrangerLog(_log)
        try:
            self._sockets = bound_sockets(host, port, BACKLOG)
        except OSError as error:
            raise PortError(what, host, port, error.strerror or str(error)) from error
        self.port = int(self._sockets[0].getsockname()[1])

    @property
    def endpoint(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def accept(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """From now on each connection gets a ``protocol()``, as long as there are descriptors to spare."""
        loop = asyncio.get_running_loop()

        def accepted() -> asyncio.Protocol:
            return protocol() if self.has_room() else _TurnedAway()

        for bound in self._sockets:
            self._servers.append(await loop.create_server(accepted, sock=bound, backlog=BACKLOG))

    def accept_tls(
        self,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        handshake_timeout_s: float,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """The same over TLS; ``tasks`` are what handshakes are made in."""
        for bound in self._sockets:
            door = TlsDoor(bound, protocol, tls, handshake_timeout_s, lambda _: self.has_room(), tasks)
            self._servers.append(door)

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Make the handshakes to come with ``tls``."""
        for server in self._servers:
            if isinstance(server, TlsDoor):
                server.renew(tls)

    def has_room(self) -> bool:
        """True if a connection more leaves enough descriptors for the broker itself.

        The kernel gives the lowest number that is free: one near the limit says that those below are taken.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        kept = min(DESCRIPTORS_KEPT, limit // 2)
        try:
            number = os.dup(self._sockets[0].fileno())
        except OSError:
            number = limit
        else:
            os.close(number)
        full = limit != resource.RLIM_INFINITY and number >= limit - kept
        if full and not self._full:
            self._strangers.warning(
                f"{self._what} turns connections away: file descriptors run short", open=number, limit=limit, kept=kept
            )
        self._full = full
        return not full

    def close(self) -> None:
        """Accept nothing more; what was accepted stays."""
        for server in self._servers:
            server.close()
        if not self._servers:
            self.abandon()

    def abandon(self) -> None:
        """Release sockets that were never accepted from."""
        for bound in self._sockets:
            bound.close()


def tls_context(section: str, config: TlsConfig) -> ssl.SSLContext:
    """The server's side of TLS 1.2 or later.

    Args:
        section: of the configuration, for messages, such as ``amqp.tls``.
        config: with ``ca``, clients must show a certificate.

    Raises:
        TlsError: a file is missing, or is not what it should be.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(
            config.cert, config.key, password=""
        )  # an encrypted key would be asked for at a terminal
    except OSError as error:
        raise TlsError(f"{section}: cert {config.cert} and key {config.key} cannot be used: {_why(error)}") from error
    if config.ca is not None:
        try:
            context.load_verify_locations(config.ca)
        except OSError as error:
            raise TlsError(f"{section}: ca {config.ca} cannot be used: {_why(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(error: OSError) -> str:
    return error.strerror or str(error)
