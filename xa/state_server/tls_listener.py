"""TlsListener: accepts connections that are to speak TLS, a bounded number of them at a time before their handshake is over.

asyncio's own server tells of a TLS connection when its handshake is over, and until then holds a descriptor for each stranger that
connects and says nothing. So sockets are accepted here. When one too many comes, the oldest handshake is given up: a client that
means it has ended its own long before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from types import TracebackType
from typing import Final, Self

from understudy.xa.state_server import door
from understudy.xa.state_server.door import BUFFER_OCTETS, OnClient

PAUSE_S: Final = 0.1
"""Accepting is tried again after so long if the machine has no descriptor, or no memory, for another socket."""


class TlsListener:
    """One listening socket, for the time of an ``async with``.

    Args:
        bound: listens, and does not block.
        serve: serves a connection whose handshake is over.
        tls: the server's side.
    """

    def __init__(self, bound: socket.socket, serve: OnClient, tls: ssl.SSLContext) -> None:
        self._bound = bound
        self._serve = serve
        self._tls = tls
        self._shaking: dict[socket.socket, None] = {}  # the oldest first

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.close()

    async def serve_forever(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._bound)
                except OSError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                while len(self._shaking) >= door.MAX_STRANGERS:
                    self._give_up(next(iter(self._shaking)))
                self._shaking[accepted] = None
                tasks.create_task(self._shake_hands(accepted))

    def _give_up(self, oldest: socket.socket) -> None:
        del self._shaking[oldest]
        with contextlib.suppress(OSError):  # the other end has gone already
            oldest.shutdown(socket.SHUT_RDWR)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """A client that speaks no TLS, shows no certificate that counts, is too slow or is gone, is turned away."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER_OCTETS, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=door.HANDSHAKE_S
            )
        except Exception:  # noqa: BLE001  # whatever comes of what a stranger says, it must end no other client
            accepted.close()
        finally:
            self._shaking.pop(accepted, None)
