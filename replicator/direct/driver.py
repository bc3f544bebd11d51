"""DirectFabric: links over TCP, and over Unix sockets on one machine (``unix_socket``), on asyncio or uvloop.

One ``asyncio.Protocol`` object is one link: no task, no stream, no queue a message. A read is cut into messages by the
session, all of them are handed to the listener, then the owner's ``turn`` is called, once; what the core wanted to say in that
turn goes out when the owner calls :meth:`DirectFabric.flush`, with one write a link.

A dialer that finds the other broker's Unix socket uses that, and TCP otherwise.

``gone`` is the fact that lets a backup promote itself without waiting for a lease to end, so it is said in two cases only:
every address of the host answered the connect with ECONNREFUSED; or the last link was hung up, and nobody answers
(``hang_ups``). A time-out, a reset, an unreachable network, a refused handshake are no proof of anything. A connection that
reached *itself* is one: on loopback, a dial from port P to port P succeeds when nobody listens there and the kernel happens to
choose P for the near end.

What a listener raises is not caught here. From a read, asyncio hands it to the loop's exception handler, from a dial it ends
the task group; in both the owner ends the process.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from secrets import token_bytes
from time import monotonic_ns
from typing import Final, cast

import attrs
import structlog

from understudy.broker.server.sockets.bound_sockets import bound_sockets
from understudy.broker.server.sockets.paced_transport import paced
from understudy.broker.server.sockets.stranger_log import StrangerLog
from understudy.broker.server.sockets.tls_door import TlsDoor
from understudy.replicator.direct import unix_socket
from understudy.replicator.direct.hang_ups import SILENT_MS, HangUps
from understudy.replicator.direct.link import CarryEnd, DirectLink, LinkListener
from understudy.replicator.direct.session import (
    MAX_MESSAGE_BYTES,
    RECORD_FORMATS,
    WIRE_VERSIONS,
    LinkSession,
    LinkStatistics,
)

__all__ = ["DirectFabric", "DirectLink", "FabricStatistics", "LinkListener", "LinkSettings", "LinkStatistics"]

BACKLOG: Final = 100
MAX_HANDSHAKES: Final = 64
"""How many accepted connections may be unauthenticated at once; for a further one the oldest of them is closed.

Not the further one: strangers that connect and say nothing, and do it again, would keep out every broker of the group, which
needs its place for one round trip only.
"""
MAX_REFUSALS_KNOWN: Final = 256
"""How many refusals (host and reason) are remembered, so that a broker that keeps trying is logged once."""

UNPROVED: Final = "clients are carried over a link that proves itself: give all brokers a link.secret"
"""Over a Unix socket the permissions of its file prove who is there."""
TakesCarried = Callable[[str, bytes], str | Callable[[asyncio.Transport], None]]
"""Given the carrier's id and a client: why it is not served here, or what takes its connection."""

_NONCE_BYTES: Final = 32
_TCP: Final = frozenset({socket.AF_INET, socket.AF_INET6})

_log = structlog.get_logger("understudy.link")


def monotonic_ms() -> int:
    return monotonic_ns() // 1_000_000


@attrs.frozen(kw_only=True)
class LinkSettings:
    """The settings that all links of one broker share.

    Attributes:
        group, broker: ids of this end.
        secret: the group's; empty for none.
        agreed: settings that must be the same at both ends.
        heartbeat_ms, dead_after_ms, handshake_timeout_ms: see :class:`LinkSession`. A dial may take ``handshake_timeout_ms``
            to connect and as long again to authenticate. ``dead_after_ms`` is also how long a link that has ended may take
            to get rid of its last words.
        max_message_bytes: the longest message.
        wire_versions, record_formats: see :class:`LinkSession`.
        unix: dial over a Unix socket where there is one.
        server_tls, client_tls: for accepting and for dialing; both or neither.
    """

    group: str
    broker: str
    secret: bytes = attrs.field(repr=False)
    agreed: Mapping[str, str] = attrs.field(factory=dict)
    heartbeat_ms: int = 1_000
    dead_after_ms: int = 5_000
    handshake_timeout_ms: int = 10_000
    max_message_bytes: int = MAX_MESSAGE_BYTES
    wire_versions: tuple[int, int] = WIRE_VERSIONS
    record_formats: tuple[int, int, int] = RECORD_FORMATS
    unix: bool = True
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None

    def session(self, peer: str, now_ms: int, carry: bytes | None = None) -> LinkSession:
        """A new one: dialing ``peer``, to carry a client or as a link, or accepting if ``peer`` is ""."""
        return LinkSession(
            dialing=bool(peer),
            group=self.group,
            broker=self.broker,
            peer=peer,
            secret=self.secret,
            nonce=token_bytes(_NONCE_BYTES),
            agreed=self.agreed,
            now_ms=now_ms,
            heartbeat_ms=self.heartbeat_ms,
            dead_after_ms=self.dead_after_ms,
            handshake_timeout_ms=self.handshake_timeout_ms,
            max_message_bytes=self.max_message_bytes,
            wire_versions=self.wire_versions,
            record_formats=self.record_formats,
            carry=carry,
        )


@attrs.frozen(kw_only=True)
class FabricStatistics:
    """Counts since the fabric was made, and the open links. ``refused`` counts handshakes of accepted connections."""

    dials: int
    dials_failed: int
    accepted: int
    refused: int
    lost: int
    links: tuple[LinkStatistics, ...]


class DirectFabric:
    """All links of one broker. Implements ``replicator.fabric.Fabric``.

    Args:
        settings: what the links share.
        listener: who is told; may be replaced, together with :meth:`drop_links`, when a new core takes over.
        turn: called after each read, or other event, of which the listener was told something. Must call :meth:`flush`. It is
            given whether the link that was read is empty now, as far as can be seen.
        tasks: the group that a dial's task belongs to.
        now_ms: the clock; that of :meth:`tick`.

    Attributes:
        port: the port that is listened on, 0 before.
        takes_carried: asked of each client that another broker carries here.
    """

    def __init__(
        self,
        settings: LinkSettings,
        listener: LinkListener,
        turn: Callable[[bool], None],
        tasks: asyncio.TaskGroup,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.settings = settings
        self.listener = listener
        self.turn = turn
        self.now_ms = now_ms
        self.port = 0
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.AbstractServer | TlsDoor] = []
        self._unix: unix_socket.UnixAddress | None = None
        self._closed = False
        self._links: dict[DirectLink, None] = {}  # the oldest first
        self._suspects: frozenset[str] = frozenset()
        self._dirty: list[DirectLink] = []
        self._dialing: set[asyncio.Task[None]] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.takes_carried: TakesCarried = lambda _, __: "this broker takes no clients of others"
        self._hang_ups = HangUps()
        self._refusals: dict[tuple[str, str], None] = {}
        self._strangers = StrangerLog(_log)
        self._emptied = asyncio.Event()
        self._dials = self._dials_failed = self._accepted = self._refused = self._lost = 0

    # -- the owner's side -----------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Accept links at ``host``; returns the port, which is a free one if ``port`` is 0.

        Raises:
            OSError: the address cannot be listened on.
        """
        for bound in await asyncio.to_thread(bound_sockets, host, port, BACKLOG):
            self.port = int(bound.getsockname()[1])
            self._servers.append(await self._server(bound))
        return self.port

    async def _server(self, bound: socket.socket) -> asyncio.AbstractServer | TlsDoor:
        if self.settings.server_tls is None:
            return await self._loop.create_server(lambda: self._connection("", ""), sock=bound, backlog=BACKLOG)
        return self._door(bound, "", self.settings.server_tls)

    def _door(self, bound: socket.socket, here: str, tls: ssl.SSLContext) -> TlsDoor:
        return TlsDoor(
            bound,
            lambda: self._connection("", here),
            tls,
            self.settings.handshake_timeout_ms / 1_000,
            self._admits,
            self._tasks,
            displaces=True,
        )

    def give_carried_to(self, takes_carried: TakesCarried) -> None:
        """Ask ``takes_carried`` of each client that another broker carries here."""
        self.takes_carried = takes_carried

    def renew_tls(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        """Make the handshakes to come with these, of connections that are accepted and that are dialed."""
        self.settings = attrs.evolve(self.settings, server_tls=server, client_tls=client)
        for each in self._servers:
            if isinstance(each, TlsDoor):
                each.renew(server)

    def _admits(self, shaking: int) -> bool:
        """True if one more TLS handshake may begin and none has to end for it; one that got through is for :meth:`link_made`."""
        admitted = shaking < MAX_HANDSHAKES
        self._refused += not admitted
        return admitted

    async def listen_unix(self, path: Path) -> bool:
        """Accept links from this machine at ``path`` too; False, and a word in the log, if that cannot be."""
        try:
            sock, address = unix_socket.bind(path)
        except OSError as error:
            _log.info("links of this machine go over TCP", broker=self.settings.broker, reason=str(error))
            return False
        here = f"unix:{address.path}"
        if self.settings.server_tls is None:
            server = await self._loop.create_unix_server(lambda: self._connection("", here), sock=sock)
            self._servers.append(server)
        else:
            sock.setblocking(False)
            sock.listen(BACKLOG)
            self._servers.append(self._door(sock, here, self.settings.server_tls))
        self._unix = address
        return True

    def address(self, host: str) -> str:
        """The address that others dial, this broker being known as ``host``: :meth:`dial` of their fabric understands it."""
        tcp = f"{host}:{self.port}"
        return tcp if self._unix is None else self._unix.joined_to(tcp)

    def dial(self, broker: str, address: str) -> None:
        """Connect to ``broker`` at ``address``: host:port (an IPv6 host in brackets), or what its :meth:`address` says."""
        if self._closed:
            return
        self._dials += 1
        task = self._tasks.create_task(self._dial(broker, address), name=f"dial {broker} at {address}")
        self._dialing.add(task)
        task.add_done_callback(self._dialing.discard)

    def flush(self) -> None:
        """Write what all links have queued: the end of the owner's turn."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                link.write()

    def tick(self, now_ms: int) -> None:
        """Time passes. Call it several times per heartbeat."""
        told = False
        for link in list(self._links):
            told = link.tick(now_ms, self._suspects) or told
        if told:
            self.turn(False)

    def suspect(self, peers: Collection[str]) -> None:
        """These brokers count as gone elsewhere: their links are dead after two heartbeats of silence.

        A process that was stopped keeps its connections, and they are silent. A broker that has only lost the coordination store
        goes on sending, and keeps its links.
        """
        self._suspects = frozenset(peers)

    def carry(self, broker: str, address: str, client: bytes, end: CarryEnd) -> Callable[[], None]:
        """Open a connection to ``broker`` that carries one client.

        Args:
            broker: the other broker.
            address: as of :meth:`dial`.
            client: what the other broker is told of the client (``broker.core.clients.carrier_header``).
            end: is told what comes of it, unless that is cancelled.

        Returns:
            What cancels it.
        """
        dial = CarrierDial(broker, end)
        task = self._tasks.create_task(self._dial_carrier(dial, address, client), name=f"carry a client to {broker}")
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

        def cancel() -> None:
            dial.end = None
            task.cancel()
            if dial.link is not None:
                dial.link.close("no longer wanted")
                self.flush()

        return cancel

    async def _dial_carrier(self, dial: CarrierDial, address: str, client: bytes) -> None:
        settings = self.settings
        timeout_s = settings.handshake_timeout_ms / 1_000
        tcp, unix = unix_socket.split_address(address)
        try:
            sock, host, reached = await self._reach(tcp, unix, timeout_s)
            if not settings.secret and sock.family in _TCP:
                sock.close()
                dial.failed(UNPROVED, final=True)
                return
            session = settings.session(dial.broker, self.now_ms(), client)
            dial.link = link = _Connection(
                self, session, linger_ms=settings.dead_after_ms, wanted=dial.broker, remote=reached, carry_end=dial
            )
            await self._start_or_close(link, sock, host, timeout_s)
        except TimeoutError:
            dial.failed(f"broker {dial.broker} at {tcp}: no connection after {timeout_s:g} s", final=False)
        except (OSError, ValueError) as error:
            dial.failed(f"broker {dial.broker} at {tcp}: {error}", final=False)

    def drop_links(self, reason: str) -> None:
        """End all links and dials. The listener is told nothing: it is about to be replaced. Clients are carried on."""
        for task in list(self._dialing):
            task.cancel()
        for link in list(self._links):
            if link.carry_end is None:
                link.close(reason)
        self.flush()

    def close(self, reason: str = "") -> None:
        """Listen no more, end all links. The listener is told nothing."""
        self._closed = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._unix is not None:
            unix_socket.remove(self._unix)
            self._unix = None
        for task in list(self._carrying):
            task.cancel()
        for link in list(self._links):
            link.forget_client()
        self.drop_links(reason or f"broker {self.settings.broker} stops")

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until the last words are written, or ``dead_after_ms`` have passed."""
        try:
            async with asyncio.timeout(self.settings.dead_after_ms / 1_000):
                await self._until_emptied()
        except TimeoutError:
            for link in list(self._links):
                link.abort()
            await self._until_emptied()

    async def _until_emptied(self) -> None:
        while self._links:
            self._emptied.clear()
            await self._emptied.wait()

    def statistics(self) -> FabricStatistics:
        return FabricStatistics(
            dials=self._dials,
            dials_failed=self._dials_failed,
            accepted=self._accepted,
            refused=self._refused,
            lost=self._lost,
            links=tuple(link.statistics() for link in self._links if link.open),
        )

    # -- dialing --------------------------------------------------------------------------------------------------------

    async def _dial(self, broker: str, address: str) -> None:
        """Connect; from then on the link speaks for itself."""
        timeout_s = self.settings.handshake_timeout_ms / 1_000
        silence_is_gone = self._hang_ups.is_fresh(broker, self.now_ms())
        address, unix = unix_socket.split_address(address)
        try:
            connect_s = min(timeout_s, SILENT_MS / 1_000) if silence_is_gone else timeout_s
            sock, host, address = await self._reach(address, unix, connect_s)
            silence_is_gone = False  # somebody is there
            await self._start_or_close(self._connection(broker, address), sock, host, timeout_s)
        except ConnectionRefusedError as error:
            self._dial_failed(broker, f"broker {broker} at {address}: {error}", gone=True)
        except TimeoutError:
            if silence_is_gone:
                self._dial_failed(broker, f"broker {broker} at {address}: hung up, and nobody answers", gone=True)
            else:
                self._dial_failed(broker, f"broker {broker} at {address}: no connection after {timeout_s:g} s")
        except (OSError, ValueError) as error:
            no_route = isinstance(error, OSError) and error.errno == errno.EHOSTUNREACH
            self._dial_failed(broker, f"broker {broker} at {address}: {error}", gone=silence_is_gone and no_route)

    async def _reach(
        self, address: str, unix: unix_socket.UnixAddress | None, timeout_s: float
    ) -> tuple[socket.socket, str, str]:
        """A connected socket, the host, and the address for people.

        Raises:
            OSError, ValueError: as :meth:`_connect`; ``address`` is none.
            TimeoutError: nobody has answered.
        """
        host, port = _parse(address)
        sock = unix_socket.connect(unix) if unix is not None and self.settings.unix else None
        if sock is not None:
            assert unix is not None
            return sock, host, f"unix:{unix.path}"
        async with asyncio.timeout(timeout_s):
            return await self._connect(host, port), host, address

    async def _start_or_close(self, link: _Connection, sock: socket.socket, host: str, timeout_s: float) -> None:
        try:
            await self._start(link, sock, host, timeout_s)
        except BaseException:
            link.close("no longer wanted")
            self.link_gone(link)  # uvloop closes a transport whose dial is cancelled without telling the protocol
            sock.close()
            raise

    async def _start(self, link: _Connection, sock: socket.socket, host: str, timeout_s: float) -> None:
        """Give the connected ``sock`` to ``link``.

        uvloop's transport closes the descriptor, and does not tell ``sock`` if that happens before ``create_connection``
        returns. So ``sock`` gives the descriptor away: it would close whatever file has the number by then.
        """
        tls = self.settings.client_tls
        server_hostname = None if tls is None else host
        tls_timeout_s = None if tls is None else timeout_s
        connect = self._loop.create_connection if sock.family in _TCP else self._loop.create_unix_connection
        try:
            await connect(
                lambda: link, sock=sock, ssl=tls, server_hostname=server_hostname, ssl_handshake_timeout=tls_timeout_s
            )
        finally:
            if not isinstance(self._loop, asyncio.BaseEventLoop):  # asyncio's transports close ``sock`` itself
                sock.detach()

    async def _connect(self, host: str, port: int) -> socket.socket:
        """A connected socket.

        Raises:
            ConnectionRefusedError: *every* address of ``host`` refused it.
            OSError: none could be reached, and not all because they refused.
        """
        failure: OSError | None = None
        for family, kind, protocol, _, address in await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await self._loop.sock_connect(sock, address)
                if sock.getsockname() != sock.getpeername():
                    return sock
                sock.close()
            except ConnectionRefusedError:
                sock.close()
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure or ConnectionRefusedError("the connection is refused: nobody listens there")

    def _dial_failed(self, broker: str, reason: str, *, gone: bool = False) -> None:
        self._dials_failed += 1
        self.listener.dial_failed(broker, reason, gone)
        self.turn(False)

    # -- the links' side (`LinkOwner`) ------------------------------------------------------------------------------------

    def _connection(self, wanted: str, remote: str) -> _Connection:
        settings = self.settings
        session = settings.session(wanted, self.now_ms())
        return _Connection(self, session, linger_ms=settings.dead_after_ms, wanted=wanted, remote=remote)

    def link_made(self, link: DirectLink) -> bool:
        self._links[link] = None
        shaking = [other for other in self._links if other.shaking and not other.dialing]
        if len(shaking) > MAX_HANDSHAKES:
            shaking[0].give_up(f"{MAX_HANDSHAKES} later connections are unauthenticated")
        return not self._closed

    def link_gone(self, link: DirectLink) -> None:
        self._links.pop(link, None)
        if not self._links:
            self._emptied.set()

    def link_dirty(self, link: DirectLink) -> None:
        self._dirty.append(link)

    def link_established(self, link: DirectLink) -> None:
        for refusal in [known for known in self._refusals if known[0] == link.remote_host]:
            del self._refusals[refusal]
        self._hang_ups.forget(link.peer)
        _log.info("link up", broker=self.settings.broker, peer=link.peer, remote=link.remote, dialed=link.dialing)
        if link.dialing:
            self.listener.dialed(link)
        else:
            self._accepted += 1
            self.listener.link_accepted(link)

    def link_lost(self, link: DirectLink, reason: str) -> None:
        self._lost += 1
        if link.hung_up and link.dialing:
            self._hang_ups.note(link.peer, self.now_ms())
        _log.info("link lost", broker=self.settings.broker, peer=link.peer, remote=link.remote, reason=reason)
        self.listener.link_lost(link, reason)

    def link_carries(self, link: DirectLink, client: bytes) -> None:
        assert isinstance(link, _Connection)
        session, transport = link.session, link.raw
        if link.carry_end is not None:
            end = link.carry_end
            link.forget_client()
            self.link_gone(link)
            end.connected(transport, session.take_rest())
            return
        proved = self.settings.secret or transport.get_extra_info("socket").family not in _TCP
        answer = self.takes_carried(link.peer, client) if proved else UNPROVED
        if isinstance(answer, str):
            session.refuse_carried(answer)
            self._log_refusal("carried client refused", link, answer)
            link.write()
            return
        session.accept_carried()
        self.link_gone(link)
        transport.write(b"".join(session.take_output()))
        answer(transport)

    def link_refused(self, link: DirectLink, reason: str) -> bool:
        if link.carry_end is not None:
            end = link.carry_end
            link.forget_client()
            self._log_refusal("client not carried", link, reason)
            end.failed(f"broker {link.wanted} at {link.remote}: {reason}", final=link.session.incompatible)
            return False
        if not link.dialing:
            self._refused += 1
            self._log_refusal("peer refused", link, reason)
            return False
        self._dials_failed += 1
        self._log_refusal("link refused", link, reason)
        self.listener.dial_failed(link.wanted, f"broker {link.wanted} at {link.remote}: {reason}", False)
        return True

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def _log_refusal(self, event: str, link: DirectLink, reason: str) -> None:
        """Once, not for each of the attempts that a broker with a wrong secret makes until somebody mends it."""
        refusal = (link.remote_host, reason)
        if refusal in self._refusals:
            return
        if len(self._refusals) >= MAX_REFUSALS_KNOWN:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[refusal] = None
        self._strangers.warning(event, broker=self.settings.broker, remote=link.remote, reason=reason)


class CarrierDial:
    """One attempt to carry a client: from the dial to what ``end`` is told, or to its cancellation."""

    def __init__(self, broker: str, end: CarryEnd) -> None:
        self.broker = broker
        self.end: CarryEnd | None = end
        self.link: _Connection | None = None

    def connected(self, transport: asyncio.Transport, rest: bytes) -> None:
        end, self.end = self.end, None
        if end is None:
            transport.abort()
        else:
            end.connected(transport, rest)

    def failed(self, reason: str, *, final: bool) -> None:
        end, self.end = self.end, None
        if end is not None:
            end.failed(reason, final=final)


class _Connection(DirectLink, asyncio.Protocol):
    """A link on a socket."""

    raw: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        if sock.family in _TCP:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        # A peer that is gone already has no name any more; one on a Unix socket never had one.
        self.connect(paced(cast("asyncio.Transport", transport), self), f"{name[0]}:{name[1]}" if name else "unknown:0")


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise ValueError("the address is not host:port")
    return host.strip("[]"), int(port)
