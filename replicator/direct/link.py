"""DirectLink: one connection of the direct fabric, from its first byte to its last, without the socket under it.

What a listener is told of a link that it dialed: ``dialed``, then any number of ``link_message``, then ``link_lost``; or
``dial_failed`` alone. Of one that it accepted: ``link_accepted``, messages, ``link_lost``. Nothing at all after it has called
``close`` on that link. And nothing is ever told from inside a call of the listener's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import attrs

from understudy.replicator.direct.session import LinkSession, LinkStatistics
from understudy.replicator.fabric import Link

JOIN_BYTES: Final = 64 << 10
"""Up to here one copy and one buffer are cheaper than many buffers; above it the copy is what costs."""
SHORT_READ_BYTES: Final = 8 << 10
"""A read of less has left nothing behind: the event loop reads up to 64 KiB and more at once."""


class LinkListener(Protocol):
    """The listener of links. HaBroker has these methods."""

    def link_accepted(self, link: Link) -> None:
        """Another broker has linked to this one."""

    def dialed(self, link: Link) -> None:
        """A dial succeeded."""

    def dial_failed(self, broker: str, reason: str, gone: bool) -> None:
        """One of ``broker`` did not. ``gone``: the operating system there refused it, so no process listens."""

    def link_message(self, link: Link, message: bytes) -> bool | None:
        """One message of the other broker. False says that no turn has to be ended for it."""

    def link_lost(self, link: Link, reason: str) -> None:
        """The link has ended, and not by this side's wish."""


class Transport(Protocol):
    """The byte stream under a link; asyncio's transports are ones."""

    def write(self, chunk: bytes, /) -> None:
        """Write it, soon."""

    def writelines(self, chunks: Sequence[bytes], /) -> None:
        """Write them all, in order, soon."""

    def get_write_buffer_size(self) -> int:
        """How much has not reached the operating system yet."""

    def can_write_eof(self) -> bool:
        """True if one direction can end alone. Not so under TLS."""

    def write_eof(self) -> None:
        """End this direction, after what is buffered."""

    def is_closing(self) -> bool: ...

    def close(self) -> None:
        """End both, after what is buffered."""

    def abort(self) -> None:
        """End both, now."""


class CarryEnd(Protocol):
    """Where a client comes from that is to be carried to another broker. One of the two is called, once."""

    def connected(self, transport: Any, rest: bytes) -> None:
        """The other broker serves the client.

        Args:
            transport: of asyncio; it wants a new protocol before this returns.
            rest: octets of the other broker that have come already.
        """

    def failed(self, reason: str, *, final: bool) -> None:
        """The client is not served there. ``final``: nor will another attempt change that."""


class LinkOwner(Protocol):
    """Calls of a link to the fabric it belongs to."""

    @property
    def listener(self) -> LinkListener: ...

    @property
    def turn(self) -> Callable[[bool], None]:
        """Called after events of which the listener was told something."""

    @property
    def now_ms(self) -> Callable[[], int]: ...

    def link_made(self, link: DirectLink) -> bool:
        """A connection is up; False if it must not go on."""

    def link_gone(self, link: DirectLink) -> None:
        """Forget a link that is down."""

    def link_dirty(self, link: DirectLink) -> None:
        """Note that a link has something to write when the turn ends."""

    def link_established(self, link: DirectLink) -> None:
        """Tell the listener that it is there."""

    def link_lost(self, link: DirectLink, reason: str) -> None:
        """Tell the listener that it is lost."""

    def link_refused(self, link: DirectLink, reason: str) -> bool:
        """Its handshake came to nothing; returns whether the listener was told."""

    def link_carries(self, link: DirectLink, client: bytes) -> None:
        """Its handshake is over, and it carries a client: the owner has the connection from here on."""

    def soon(self, call: Callable[[], None]) -> None:
        """Make ``call`` when the present turn is over."""


class DirectLink:
    """To the core a ``replicator.fabric.Link``, to the loop the methods of an ``asyncio.Protocol``.

    Args:
        owner: the fabric.
        session: new.
        linger_ms: how long a link that has ended may take to get rid of its last words.
        wanted: the broker that is dialed; "" if this end accepts.
        remote: the other end's address, if it is known before it is connected.
        carry_end: is told what becomes of a dial that carries a client; None: the dial makes a link.

    Attributes:
        peer: the other broker's id, proved; "" before.
        shaking: it is connected, and the other end has not proved who it is.
        open: the listener knows it, and neither side has ended it.
        hung_up: it was closed or reset at the other end, without a word of that broker's.
    """

    def __init__(
        self,
        owner: LinkOwner,
        session: LinkSession,
        *,
        linger_ms: int,
        wanted: str = "",
        remote: str = "",
        carry_end: CarryEnd | None = None,
    ) -> None:
        self._owner = owner
        self._session = session
        self._linger_ms = linger_ms
        self._transport: Transport | None = None
        self._dirty = False
        self._abort_at_ms = 0
        self.peer = ""
        self.wanted = wanted
        self.remote = remote
        self.carry_end = carry_end
        self.shaking = False
        self.open = False
        self.hung_up = False

    # -- the core's side ------------------------------------------------------------------------------------------------

    def forget_client(self) -> None:
        """Tell nobody any more what becomes of the client that is to be carried."""
        self.carry_end = None

    @property
    def wire_version(self) -> int:
        """The newest that both ends speak."""
        return self._session.wire_version

    @property
    def newest_record_format(self) -> int:
        """The newest that the other end reads."""
        return self._session.newest_record_format

    @property
    def session(self) -> LinkSession:
        """For the owner, when the handshake of a connection that carries a client is over, or has come to nothing."""
        return self._session

    def send(self, message: bytes) -> None:
        """Queue a message; it goes out when the turn ends, or never if the link has ended."""
        self._session.send(message)
        if not self._dirty:
            self._dirty = True
            self._owner.link_dirty(self)

    def close(self, reason: str) -> None:
        """End the link; the peer is told ``reason``. Nothing more of it is told to the listener, its loss included."""
        self.open = self.shaking = False
        self._session.close(reason)
        if not self._dirty:
            self._dirty = True
            self._owner.link_dirty(self)

    def statistics(self) -> LinkStatistics:
        counts = self._session.statistics()
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return attrs.evolve(counts, waiting_bytes=counts.waiting_bytes + buffered)

    # -- the loop's side ------------------------------------------------------------------------------------------------

    @property
    def dialing(self) -> bool:
        """This end opened it."""
        return bool(self.wanted)

    @property
    def remote_host(self) -> str:
        """The same at each of its attempts, which its port is not; of a Unix socket, whose path names no end of it, the whole."""
        return self.remote if self.remote.startswith("unix:") else self.remote.rpartition(":")[0]

    @property
    def connected(self) -> bool:
        """The connection is, or was, up."""
        return self._transport is not None

    def connect(self, transport: Transport, remote: str) -> None:
        """The connection is up."""
        self._transport = transport
        self.remote = self.remote or remote
        self.shaking = not self._session.finished
        if self._owner.link_made(self):
            self.write()
        else:
            self.shaking = False
            self.abort()

    def data_received(self, data: bytes) -> None:
        if not (self.open or self.shaking):
            return  # it has ended; what still comes is read only so that the other end can write it
        session = self._session
        messages = session.receive(data, self._owner.now_ms())
        told = False
        if self.shaking:
            if session.established:
                self.shaking = False
                self.open = True
                self.peer = session.peer
                self._owner.link_established(self)
                told = True
            elif session.carried is not None:
                self.shaking = False
                self.peer = session.peer
                self._owner.link_carries(self, session.carried)
                return
        listener = self._owner.listener
        for message in messages:
            if not self.open:
                break  # the listener has closed it
            if listener.link_message(self, message) is not False:
                told = True
        if session.finished:
            told = self._end(session.reason) or told
            self.write()
        elif session.output_bytes:
            self.write()
        if told:
            self._owner.turn(len(data) < SHORT_READ_BYTES)

    def give_up(self, reason: str) -> None:
        """Let go at once of a connection whose handshake is not over."""
        assert self.shaking, f"the link with {self.remote} is not in its handshake"
        self._end(reason)
        self.abort()

    def eof_received(self) -> bool | None:
        """The other end has ended its direction: the transport closes itself, and :meth:`connection_lost` follows."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        # The host of a stranger, not its port: the reason of a refusal is what it is known by (`DirectFabric`).
        who = self.peer or self.wanted or self.remote_host
        # What else ends a connection is this kernel's patience with a peer that says nothing.
        self.hung_up = self.open and (exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError))
        told = self._end(f"the connection to {who} was lost: {exc or 'closed there'}")
        self._session.close("")
        self._owner.link_gone(self)
        if told:
            self._owner.turn(False)

    def tick(self, now_ms: int, suspects: Collection[str] = ()) -> bool:
        """Time passes; returns whether the listener was told something. ``suspects``: see ``DirectFabric.suspect``."""
        if self._abort_at_ms:
            if now_ms >= self._abort_at_ms:
                self.abort()
            return False
        session = self._session
        session.tick(now_ms, suspected=session.peer in suspects)
        told = session.finished and self._end(session.reason)
        self.write()
        return told

    def _end(self, reason: str) -> bool:
        """The session or the connection is over; returns whether the listener was told."""
        if self.open:
            self.open = False
            self._owner.link_lost(self, reason)
            return True
        if self.shaking:
            self.shaking = False
            return self._owner.link_refused(self, reason)
        return False

    def write(self) -> None:
        """Write what is queued; let the connection go once the session has finished."""
        self._dirty = False
        session, transport = self._session, self._transport
        if transport is None or self._abort_at_ms or transport.is_closing():
            return
        if session.output_bytes <= JOIN_BYTES:
            chunks = session.take_output()
            if chunks:
                transport.write(b"".join(chunks))
        else:
            transport.writelines(session.take_output())
        if session.finished:
            self._abort_at_ms = self._owner.now_ms() + self._linger_ms
            if self.open:  # it failed in a `send`: the listener is not told from inside its own call
                self._owner.soon(self._failed_itself)
            if session.established and transport.can_write_eof():
                # Closing at once would discard what the peer has sent meanwhile, and the reset that TCP answers that with
                # may overtake our GOODBYE. So only this direction ends; the peer, done reading, ends the other.
                transport.write_eof()
            else:
                transport.close()

    def _failed_itself(self) -> None:
        if self._end(self._session.reason):
            self._owner.turn(False)

    def abort(self) -> None:
        """Let the connection go at once."""
        if self._transport is not None:
            self._transport.abort()
