"""The sockets of one client that another broker serves: it waits, then octets go to and fro.

Nothing is looked at on the way, and no task runs: what one transport reads the other writes, and a transport that cannot write
pauses the reading of the other. When one of the two connections ends, so does the other, after what it still has to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.core.clients.carrier_header import encode_header
from understudy.broker.core.clients.connection import EARLY_BYTES

if TYPE_CHECKING:
    from understudy.broker.core.clients.carrying import Carried, Carrying, Destination
    from understudy.broker.server.sockets.paced_transport import PacedTransport

BUFFER_BYTES: Final = 256 << 10
"""So much waits for one end of a carried connection before the other end is not read any more."""
LINGER_S: Final = 2.0
"""An end that does not take its last octets is torn down after so long."""

CarrierDial = Callable[[str, str, bytes, "CarriedClient | Farewell"], Callable[[], None]]
"""Opens a connection for one client: broker, address of its link port, header, and the end that is told.

It returns what cancels that.
"""

_log: Final = structlog.get_logger()


class Relay(asyncio.Protocol):
    """One end of a carried connection.

    Args:
        transport: of this end; :meth:`asyncio.BaseTransport.set_protocol` is the caller's.
        ended: called once when this end is gone.

    Attributes:
        silent: nothing more comes from this end.
    """

    __slots__ = ("_ended", "_other", "silent", "transport", "write")

    def __init__(self, transport: asyncio.Transport, ended: Callable[[], None]) -> None:
        self.transport = transport
        self.write = transport.write
        self._other: Relay | None = None
        self._ended: Callable[[], None] | None = ended
        self.silent = False
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def join(self, other: Relay) -> None:
        """From now on what ``other`` reads is written here, and the other way round."""
        self._other = other
        other._other = self

    def data_received(self, data: bytes) -> None:
        other = self._other
        if other is not None:  # TLS may still bring what came before this end was closed
            other.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and not self._other.transport.is_closing():
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.transport.is_closing():
            self._other.transport.resume_reading()

    def eof_received(self) -> bool:
        """This end says nothing more, and the other is told so; what the other still says goes through for `LINGER_S`.

        Returns:
            Whether the transport of this end stays open.
        """
        other = self._other
        if other is None or self.silent or other.silent or not other.transport.can_write_eof():
            return False  # TLS ends both directions at once
        if not self.transport.can_write_eof():
            return False
        self.silent = True
        if not other.transport.is_closing():
            other.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        other, self._other = self._other, None
        ended, self._ended = self._ended, None
        if other is not None:
            other.end()
        if ended is not None:
            ended()
        del self.transport, self.write  # the two point at each other

    def end(self) -> None:
        """Close this end, after what it has to write."""
        self._other = None
        if not self.transport.is_closing():
            self.transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)


class CarriedClient(asyncio.Protocol):
    """Implements ``core.clients.carrying.CarriedEnd``; the protocol of the client's socket while it waits.

    Args:
        transport: the client's.
        carried: what is known of the client.
        carrying: decides.
        dial: opens connections to other brokers.
        take_back: takes the client's transport when it is handed back to this broker.
        looks: the broker of the moment is looked at again.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        carried: Carried,
        carrying: Carrying,
        dial: CarrierDial,
        take_back: Callable[[asyncio.Transport, Carried], None],
        looks: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = transport
        self._carried = carried
        self._carrying = carrying
        self._dial = dial
        self._take_back = take_back
        self._looks = looks
        self._cancel: Callable[[], None] | None = None
        self._unread = False
        self._relay: Relay | None = None

    # -- the client's socket, while it waits ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Keep what a client says before it has its answer, which is next to nothing, and read no more than that."""
        carried = self._carried
        carried.keep(data)
        if len(carried.rest) > EARLY_BYTES and not self._unread and self.transport is not None:
            self._unread = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._carrying.gone(self._carried)

    def _gone(self) -> None:
        """One end of the carried connection is lost."""
        self._relay = None
        self._carrying.gone(self._carried)

    # -- what is decided (``CarriedEnd``) ---------------------------------------------------------------------------

    def dial(self, to: Destination) -> None:
        header = encode_header(self._carried.client)
        self._cancel = self._dial(to.broker, to.address, header, self)

    def cancel_dial(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def beat(self) -> None:
        if self.transport is not None:
            self.transport.write(HEARTBEAT_FRAME)

    def hand_back(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            self._read_again(transport)
            self._take_back(transport, self._carried)

    def cut(self) -> None:
        if self._relay is not None:
            self._relay.transport.abort()

    # -- what a dial comes to -----------------------------------------------------------------------------------------

    def connected(self, upstream: asyncio.Transport, first: bytes) -> None:
        """The broker at the other end of ``upstream`` serves the client; ``first`` has come from it already."""
        self._cancel = None
        transport, self.transport = self.transport, None
        rest = self._carried.rest
        if transport is None or transport.is_closing():
            upstream.abort()
            return
        self._carrying.accepted(self._carried)
        keep_alive(upstream)
        self._relay = here = Relay(transport, self._gone)
        there = Relay(upstream, _nothing)
        here.join(there)
        transport.set_protocol(here)
        upstream.set_protocol(there)
        if rest:
            upstream.write(rest)
        if first:
            transport.write(first)
        self._read_again(transport)
        self._looks()

    def failed(self, reason: str, *, final: bool) -> None:
        self._cancel = None
        if self.transport is None:
            return
        self._carrying.failed(self._carried, reason, final=final)
        self._looks()

    def _read_again(self, transport: asyncio.Transport) -> None:
        if self._unread:
            self._unread = False
            transport.resume_reading()


class Farewell:
    """The end of a dial by which a broker is asked to close the clients that this one carries to it."""

    def connected(self, transport: asyncio.Transport, rest: bytes) -> None:
        transport.set_protocol(asyncio.Protocol())
        transport.close()

    def failed(self, reason: str, *, final: bool) -> None:
        _log.warning("clients that are carried are not told of the end", reason=reason, final=final)


KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds, seconds, times: an idle peer whose machine is gone is noticed after a minute, not two hours."""


def keep_alive(transport: asyncio.Transport | PacedTransport) -> None:
    """Have the kernel look after an idle TCP connection, and send what is small at once."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it is gone already: connection_lost will say so
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def _nothing() -> None:
    pass
