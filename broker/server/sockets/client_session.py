"""ClientSession: the socket of one AMQP client, between the event loop and a core connection.

What arrives goes to the core at once; what the core says is collected and written once, when the turn ends. Three things hold
bytes back: the core asks not to read (``paused``, a bound is reached), the client does not take what we write (``congested``),
and the connection is ``finished``: then the rest is written, our half is closed, and the client has half a second to read it
before the socket is torn down. Without that pause the kernel answers whatever the client still sends with a reset, and
the reset overtakes the connection.close that says why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from understudy.broker.config import is_loopback_host
from understudy.broker.core.clients.carrier_header import MAX_NAME
from understudy.broker.core.clients.connection import Connection
from understudy.broker.server.sockets.carried_client import keep_alive
from understudy.broker.server.sockets.client_certificate import subject_of, user_of
from understudy.broker.server.sockets.paced_transport import PacedTransport, paced

if TYPE_CHECKING:
    from understudy.broker.core.clients.carrier_header import CarrierHeader
    from understudy.broker.server.turn.node_driver import NodeDriver

LINGER_S: Final = 0.5
JOIN_BYTES: Final = 256 << 10
"""Up to here one copy and one buffer are cheaper than many buffers; above it the copy is what costs."""


class ClientSession(asyncio.Protocol):
    """Made by the listener for each accepted socket.

    Attributes:
        connection: the core's half; there from ``connection_made`` on.
    """

    __slots__ = (
        "_closing",
        "_driver",
        "_ends",
        "_full",
        "_reading",
        "_transport",
        "connection",
        "woken",
    )

    connection: Connection

    def __init__(self, driver: NodeDriver) -> None:
        self._driver = driver
        self._transport: asyncio.Transport | PacedTransport | None = None
        self._reading = True
        self._closing = False
        self._full = False
        self._ends: asyncio.TimerHandle | None = None
        self.woken = False

    # -- the event loop's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = paced(cast("asyncio.Transport", transport), self)
        driver = self._driver
        stream.set_write_buffer_limits(high=driver.limits.outgoing_bytes_per_client)
        keep_alive(stream)
        peer: Any = stream.get_extra_info("peername")
        host, port = (peer[0], peer[1]) if peer else ("", 0)
        self._begin(host, port)
        certificate = stream.get_extra_info("peercert")
        if certificate is not None:
            tls = driver.client_tls
            external = user_of(certificate, tls) if tls is not None and tls.user_from is not None else None
            self.connection.proven(subject_of(certificate)[:MAX_NAME], external)

    def take_over(self, transport: asyncio.Transport, client: CarrierHeader, carrier: str, rest: bytes) -> None:
        """Serve a client that a broker has authenticated: ``carrier``, or this one ("") before it served clients.

        Args:
            transport: carries the octets of AMQP from here on.
            client: what is known of the client.
            carrier: see above.
            rest: what it has sent behind connection.open.
        """
        transport.set_protocol(self)
        keep_alive(transport)
        self._transport = paced(transport, self)
        self._transport.set_write_buffer_limits(high=self._driver.limits.outgoing_bytes_per_client)
        self._begin(client.host, client.port)
        try:
            user = self._driver.users.vouched(client.user, bool(client.host) and is_loopback_host(client.host))
            self.connection.take_over(client, user, carrier, rest)
        except Exception as error:  # noqa: BLE001  # as in data_received
            self._driver.crashed(f"client {self.connection.name}, carried by {carrier!r}", error)
        self._driver.request_turn()

    def _begin(self, host: str, port: int) -> None:
        driver = self._driver
        loopback = bool(host) and is_loopback_host(host)
        self.connection = Connection(driver.broker, driver.users, self, f"{host}:{port}", loopback)
        driver.sessions.add(self)

    def leave(self) -> asyncio.Transport:
        """The client is carried elsewhere: this session has nothing to do with its socket any more."""
        transport = self._transport
        assert transport is not None, f"client {self.connection.name} is lost"
        transport.writelines(self.connection.take_output())
        if not self._reading and not self._driver.stopping:  # its password was being verified
            transport.resume_reading()
        self._transport = None
        self._closing = True
        self._driver.sessions.discard(self)
        self._driver.garbage.ended()
        return transport.inner if isinstance(transport, PacedTransport) else transport

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self.connection.receive(data)
        except Exception as error:  # noqa: BLE001  # a peer's errors are caught below this: what comes here is ours
            phase = self.connection.phase.value
            self._driver.crashed(f"{len(data)} bytes from client {self.connection.name}, {phase}: {data[:64]!r}", error)
        self._driver.request_turn()

    def eof_received(self) -> None:
        """The client has closed its half; the transport closes the rest."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ends is not None:
            self._ends.cancel()
        driver = self._driver
        driver.sessions.discard(self)
        driver.garbage.ended()
        reason = f"{type(exc).__name__}: {exc}" if exc is not None else "the client closed the socket"
        try:
            self.connection.lost(reason)
        except Exception as error:  # noqa: BLE001  # as in data_received
            driver.crashed(f"client {self.connection.name} is lost: {reason}", error)
        driver.request_turn()

    def pause_writing(self) -> None:
        """More than ``limits.outgoing_bytes_per_client`` wait for the client: no more deliveries to it."""
        self._full = True
        self.connection.set_congested(True)

    def resume_writing(self) -> None:
        self._full = False
        self._takes_again()

    def _takes_again(self) -> None:
        """Answer what waited for room, which may read bodies that were spilled."""
        try:
            self.connection.set_congested(False)
        except Exception as error:  # noqa: BLE001  # as in data_received
            self._driver.crashed(f"client {self.connection.name} takes bytes again", error)
        self._driver.request_turn()

    # -- the core's side ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """``connection.Transport``: there is something to look at when the turn ends."""
        if not self.woken:
            self.woken = True
            self._driver.woken(self)

    # -- the driver's side ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """The turn has ended: write, read or stop reading, close."""
        self.woken = False
        transport = self._transport
        connection = self.connection
        output = connection.take_output()
        if transport is None or self._closing:
            return
        if output:
            if len(output) == 1:
                transport.write(output[0])
            elif sum(map(len, output)) <= JOIN_BYTES:
                transport.write(b"".join(output))
            else:
                transport.writelines(output)
        if connection.congested and not self._full:
            self._takes_again()  # only this turn's output was large, and the client takes it
        if connection.finished:
            self.close(LINGER_S)
        elif connection.paused is self._reading and not self._driver.stopping:
            self._reading = not connection.paused
            if self._reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def close(self, linger_s: float) -> None:
        """Nothing more will be written. What is buffered goes out; after ``linger_s`` the socket is gone in any case."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._closing = True
        if transport.can_write_eof():
            transport.write_eof()
            if not self._reading:
                transport.resume_reading()  # and throw it away, until the client closes
        else:
            transport.close()  # TLS has its own farewell
        self._ends = asyncio.get_running_loop().call_later(linger_s, self.abort)

    def stop_reading(self) -> None:
        """The broker is stopping: no new work from this client."""
        if self._transport is not None and self._reading and not self._closing:
            self._reading = False
            self.connection.leave_unread()
            self._transport.pause_reading()

    def abort(self) -> None:
        """Tear the socket down now."""
        if self._transport is not None:
            self._transport.abort()
