"""TlsDoor: accepts connections that are to speak TLS, and can turn them away.

asyncio's own server tells of a TLS connection when its handshake is over, and until then nobody can close it: strangers that
connect and say nothing hold a descriptor each, as many as there are, for as long as a handshake may take. So sockets are accepted
here, and whoever is not wanted is gone before a handshake begins, or as soon as another one wants its place.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from understudy.broker.server.sockets.stranger_log import StrangerLog

ACCEPTED_AT_ONCE: Final = 128
"""Then the loop goes on with others."""
PAUSE_S: Final = 0.1
"""Accepting is tried again after so long if the machine has no descriptor, or no memory, for another socket."""

_log: Final = structlog.get_logger()


class TlsDoor:
    """One listening socket.

    Args:
        bound: listens, and does not block; closed by :meth:`close`.
        protocol: makes what a connection is given to when its handshake is over.
        tls: the server's side.
        handshake_timeout_s: for a handshake.
        admits: whether there is room for one more, given how many handshakes are under way.
        tasks: the group that handshakes belong to.
        displaces: for whom there is no room the oldest handshake is given up; else it is turned away itself.

    Attributes:
        tls: the server's side of the handshakes to come.
    """

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        handshake_timeout_s: float,
        admits: Callable[[int], bool],
        tasks: asyncio.TaskGroup,
        *,
        displaces: bool = False,
    ) -> None:
        self._bound = bound
        self._protocol = protocol
        self.tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._admits = admits
        self._tasks = tasks
        self._displaces = displaces
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], socket.socket] = {}  # the oldest first
        self._pause: asyncio.TimerHandle | None = None
        self._strangers = StrangerLog(_log)
        self._listen()

    def renew(self, tls: ssl.SSLContext) -> None:
        """Make the handshakes to come with ``tls``."""
        self.tls = tls

    def close(self) -> None:
        """Accept nothing more, give unfinished handshakes up; what has got in stays. Closing twice is harmless."""
        if self._bound.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for task in list(self._shaking):
            task.cancel()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(PAUSE_S, self._listen)
                return
            if not (self._admits(len(self._shaking)) or self._displace()):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._tasks.create_task(self._shake_hands(accepted), name="TLS handshake")
            self._shaking[task] = accepted
            task.add_done_callback(lambda task: self._shaking.pop(task, None))

    def _displace(self) -> bool:
        """Make room: whoever has had the longest time is the likeliest not to mean it."""
        if not (self._displaces and self._shaking):
            return False
        oldest = self._shaking.pop(next(iter(self._shaking)))
        # The socket, not the task: a handshake that is over this very moment has made a connection, which then ends as any does.
        with suppress(OSError):  # the other end has gone already
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self.tls, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except OSError as error:  # ssl.SSLError is one: no TLS, no certificate that counts, too slow, gone
            self._strangers.warning(
                "TLS handshake failed", error=f"{type(error).__name__}: {error}", peer=_peer_of(accepted)
            )
            accepted.close()
        except Exception:  # noqa: BLE001  # whatever else comes of what a stranger says, it must end nobody
            accepted.close()
            self._strangers.warning("a TLS handshake ended as none should", exc_info=True)
        except BaseException:
            accepted.close()
            raise


def _peer_of(accepted: socket.socket) -> str:
    try:
        host, port, *_ = accepted.getpeername()
    except (OSError, ValueError):
        return "gone"
    return f"{host}:{port}"
