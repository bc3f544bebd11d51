"""Door: lets clients in to a state server. Nothing of the record is told, and none of it is changed, before a client is in.

A client on the socket of a file must run as the server's user or as root. The permissions of the socket say the same; this is the
second lock. If the server has secrets, the handshake of `core.register.access` comes first, on any socket. TLS is below all that
(`listening`). A stranger has `HANDSHAKE_S`. `MAX_STRANGERS` are there at a time, refused ones included until their connection is
closed; when one more comes, the oldest is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from understudy.xa.core.errors import AccessError
from understudy.xa.core.register.access import (
    MAX_HANDSHAKE_OCTETS,
    NONCE_OCTETS,
    Acceptor,
    Access,
    refusal,
    refused_line,
    unwanted,
)
from understudy.xa.core.register.wire import MAX_LINE_OCTETS, Refused, Request, line_of, request_of
from understudy.xa.sockets.peer import user_of
from understudy.xa.state_server.stores import say

HANDSHAKE_S: Final = 10.0
MAX_STRANGERS: Final = 512
"""A program of many threads opens as many connections at once. So many may be in the handshake of TLS, and as many behind it."""
BUFFER_OCTETS: Final = 1 << 16
"""Of what a client has sent and the server has not read: a longer line is read in parts."""
SAY_S: Final = 1.0
"""At most one refusal in this time is told to the operator, with the number of the others."""


class Visitor:
    """A client that is in.

    Args:
        reader, writer: of the connection.
        access: what the client may do.
        first: a line that has been read already; b"" is none.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, access: Access, first: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._access = access
        self._first = first

    async def request(self) -> Request | None:
        """The next request that this client may make; None if the connection has ended, or is to be closed.

        Another request is refused here. A line that is no request is refused, too, and is the last.

        Raises:
            ValueError: a line is longer than `MAX_LINE_OCTETS`.
            OSError: the connection is lost.
        """
        while line := await self.line():
            try:
                request = request_of(line)
            except msgspec.MsgspecError as error:
                self._writer.write(line_of(Refused("protocol", f"the line is no request: {error}")))
                break
            refused = refusal(self._access, request)
            if refused is None:
                return request
            self._writer.write(line_of(refused))
            await self._writer.drain()
        return None

    async def line(self) -> bytes:
        """The next line, whatever it holds; b"" at the end of the connection.

        Raises:
            ValueError: the line is longer than `MAX_LINE_OCTETS`.
        """
        first, self._first = self._first, b""
        return first or await read_line(self._reader, MAX_LINE_OCTETS)


OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OnVisitor = Callable[[Visitor, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """The door of one server.

    Args:
        secrets: what a client may do to the secret that proves it; empty: the server asks for none.
        inside: serves a client that is in.
    """

    def __init__(self, secrets: Mapping[Access, bytes], inside: OnVisitor) -> None:
        self._secrets = secrets
        self._inside = inside
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._visitors: set[asyncio.StreamWriter] = set()
        self._refusals = _Refusals()
        self._root_told = False

    async def open_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its first octet to its end."""
        try:
            visitor = await self._admitted(reader, writer)
            if visitor is not None:
                self._strangers.pop(writer, None)
                self._visitors.add(writer)
                await self._inside(visitor, writer)
        finally:
            self._visitors.discard(writer)
            try:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()  # of TLS for half a minute, if the stranger does not end it, too
            finally:
                self._strangers.pop(writer, None)

    def turn_out(self) -> None:
        """Abort the connections of all clients that are in: the server ends."""
        for writer in self._visitors:
            writer.transport.abort()

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Visitor | None:
        while len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._shaken_hands(reader, writer)
        except AccessError as error:
            self._refusals.tell(_peer_of(writer), str(error))
            writer.write(refused_line(str(error)))
        except TimeoutError:
            self._refusals.tell(_peer_of(writer), f"it has said nothing for {HANDSHAKE_S:g} s")
        except (OSError, EOFError, ValueError):  # ValueError: a line longer than the limit
            pass
        return None

    async def _shaken_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Visitor:
        if not self._secrets:
            line = await read_line(reader, MAX_LINE_OCTETS)
            self._check_user(writer)
            if reason := unwanted(line):
                raise AccessError(reason)
            return Visitor(reader, writer, Access.CHANGE, line)
        acceptor = Acceptor(self._secrets, secrets.token_bytes(NONCE_OCTETS))
        first = await self._said(reader)  # who is refused before a line of it is read does not see why
        self._check_user(writer)
        writer.write(acceptor.challenge(first))
        access, answer = acceptor.admit(await self._said(reader))
        writer.write(answer)
        return Visitor(reader, writer, access, b"")

    def _check_user(self, writer: asyncio.StreamWriter) -> None:
        """Raises AccessError for a client of another user. That root came in is told once."""
        peer: socket.socket = writer.get_extra_info("socket")
        if peer.family != socket.AF_UNIX:
            return
        user, own = user_of(peer), os.geteuid()
        if user not in (None, 0, own):
            raise AccessError(f"the client runs as user {user}, and this state server serves user {own} and root")
        if user == 0 != own and not self._root_told:
            say("a client of root comes in")
            self._root_told = True

    async def _said(self, reader: asyncio.StreamReader) -> bytes:
        """A line of the handshake."""
        line = await read_line(reader, MAX_HANDSHAKE_OCTETS)
        if not line:
            raise EOFError("the client has ended the connection")
        return line


async def read_line(reader: asyncio.StreamReader, most: int) -> bytes:
    """A whole line with its end; b"" at the end of the connection.

    Raises:
        ValueError: the line is longer than `most`.
    """
    parts: list[bytes] = []
    octets = 0
    while True:
        try:
            last = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            last = await reader.readexactly(error.consumed)
        except asyncio.IncompleteReadError:
            return b""
        octets += len(last)
        if octets > most:
            raise ValueError(f"a line of more than {most} octets")
        if last.endswith(b"\n"):
            return last if not parts else b"".join((*parts, last))
        parts.append(last)


class _Refusals:
    """Tells an operator of clients that were turned away, now and then."""

    def __init__(self) -> None:
        self._next = 0.0
        self._untold = 0

    def tell(self, peer: str, reason: str) -> None:
        now = time.monotonic()
        if now < self._next:
            self._untold += 1
            return
        more = f"; {self._untold} others were turned away since the last such line" if self._untold else ""
        say(f"a client at {peer} was turned away: {reason}{more}")
        self._next, self._untold = now + SAY_S, 0


def _peer_of(writer: asyncio.StreamWriter) -> str:
    peer: socket.socket = writer.get_extra_info("socket")
    if peer.family == socket.AF_UNIX:
        return f"the socket, of user {user_of(peer)}"
    host, port, *_ = writer.get_extra_info("peername")
    return f"{host}:{port}"
