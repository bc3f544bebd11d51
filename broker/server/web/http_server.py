"""A GET-only HTTP/1.0 responder for the pages of ``status_report`` and of plugins.

One request a connection, nothing read but its first line and ``Authorization``. Peers on this host need no
login. Others log in as a user with the permission ``monitoring`` (HTTP basic authentication, RFC 7617), before anything is said of
the page.

aiohttp was refused here: importing it costs 265 ms and 15 MB (measured on this machine), for five pages of JSON, in a process
that should serve within a second and live in 60 MB.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import parse_qsl

from understudy.broker.config import is_loopback_host
from understudy.broker.core.clients.login import PasswordCheck
from understudy.broker.errors import AccessRefusedError, AmqpError
from understudy.broker.plugin_api.pages import BadQueryError, Making, Page, Pages, Query
from understudy.broker.security import User

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
"""For a request, and as much again for its answer."""
MAKING_TIMEOUT_S: Final = 600.0
"""For a page that takes long. Whoever asked may have gone without a word."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


_CHALLENGE: Final = 'WWW-Authenticate: Basic realm="understudy", charset="UTF-8"\r\n'
_BASIC: Final = re.compile(
    rb"^authorization:[ \t]*basic[ \t]+([A-Za-z0-9+/=]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)


class HttpSession(asyncio.Protocol):
    """One connection: reads a request's head, answers, closes.

    Args:
        pages: by path; each is made when it is asked for.
        users: tells of the users that may log in, None while there is nobody who knows them.
    """

    __slots__ = ("_ends", "_head", "_making", "_pages", "_transport", "_users", "_verifying")

    def __init__(self, pages: Pages, users: Callable[[], PasswordCheck | None]) -> None:
        self._pages = pages
        self._users = users
        self._verifying = False
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._limit(REQUEST_TIMEOUT_S)

    def _limit(self, timeout_s: float) -> None:
        """From now on there is so much time."""
        assert self._transport is not None
        if self._ends is not None:
            self._ends.cancel()
        # Not close: that waits for as long as a client does not read what it has asked for.
        self._ends = asyncio.get_running_loop().call_later(timeout_s, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ends is not None:
            self._ends.cancel()
        if self._making is not None:
            self._making.cancel()

    def eof_received(self) -> bool:
        """Keep the connection of a peer that sends nothing more (``nc -N``) while its page is being made."""
        return self._making is not None

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._making is not None or self._verifying:
            return
        self._head += data
        if (
            len(self._head) > MAX_REQUEST_BYTES
        ):  # whole or not: to take 256 KiB of parameters apart holds the loop for 100 ms
            self._send(Page(400, {"error": f"a request is at most {MAX_REQUEST_BYTES} bytes"}), head_only=False)
        elif b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._respond()

    def _respond(self) -> None:
        words = self._head.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) < 2 or not words[1].startswith("/"):
            self._send(Page(400, {"error": "not an HTTP request"}), head_only=False)
        elif self._is_local():
            self._answer(words)
        else:
            self._verify(words)

    def _is_local(self) -> bool:
        """True if the peer is on this host: it has a loopback address, or the very address that it has connected to."""
        assert self._transport is not None
        peer: Any = self._transport.get_extra_info("peername")
        here: Any = self._transport.get_extra_info("sockname")
        return bool(peer) and (is_loopback_host(peer[0]) or (bool(here) and peer[0] == here[0]))

    def _verify(self, words: list[str]) -> None:
        """Answer the request if it carries the name and password of a user who may ask."""
        found = _credentials(self._head)
        users = self._users()
        if found is None:
            text = "log in as a user with the permission monitoring (HTTP basic authentication)"
            self._send(Page(401, {"error": text}), head_only=False)
        elif users is None:
            self._send(Page(503, {"error": "the broker is starting"}), head_only=False)
        else:
            self._verifying = True
            users.check(*found, False, lambda user: self._verified(words, user), lambda: self._transport is not None)

    def _verified(self, words: list[str], user: User | AmqpError) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(user, AmqpError):
            status = 401 if isinstance(user, AccessRefusedError) else 503
            self._send(Page(status, {"error": user.text}), head_only=False)
        elif not user.monitoring:
            self._send(Page(403, {"error": f"user '{user.name}' lacks the permission monitoring"}), head_only=False)
        else:
            self._answer(words)

    def _answer(self, words: list[str]) -> None:
        method = words[0]
        path, _, asked = words[1].partition("?")
        page = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            answer = Page(405, {"error": f"{method} is not allowed, GET is"})
        elif page is None:
            answer = Page(404, {"error": f"no page {path}; there are {', '.join(self._pages)}"})
        else:
            query = dict(parse_qsl(asked, keep_blank_values=True, errors="surrogateescape"))
            made = self._made(page, query)
            if not isinstance(made, Page):
                self._limit(MAKING_TIMEOUT_S)
                self._making = asyncio.get_running_loop().create_task(self._send_when_made(made, method == "HEAD"))
                # Cancelled before its first step, the page was not begun.
                self._making.add_done_callback(lambda _: made.close())
                return
            answer = made
        self._send(answer, head_only=method == "HEAD")

    @staticmethod
    def _made(page: Callable[[Query], Page | Making], query: Query) -> Page | Making:
        try:
            return page(query)
        except Exception as error:  # noqa: BLE001  # looking at a broker must not end it
            return _broken(error)

    async def _send_when_made(self, making: Making, head_only: bool) -> None:
        try:
            page = await making
        except Exception as error:  # noqa: BLE001  # as above
            page = _broken(error)
        if self._transport is not None:
            self._limit(REQUEST_TIMEOUT_S)
            self._send(page, head_only=head_only)

    def _send(self, page: Page, *, head_only: bool) -> None:
        assert self._transport is not None
        body = page.body if isinstance(page.body, bytes) else json.dumps(page.body, default=str).encode() + b"\n"
        head = (
            f"HTTP/1.0 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{_CHALLENGE if page.status == 401 else ''}"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n"
            "\r\n"
        )
        self._transport.write(head.encode() if head_only else head.encode() + body)
        self._transport.close()


def _credentials(head: bytes) -> tuple[str, str] | None:
    """Name and password of a request, None if it carries none that can be read."""
    found = _BASIC.search(head)
    if found is None:
        return None
    try:
        name, colon, password = base64.b64decode(found[1], validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None


def _broken(error: Exception) -> Page:
    if isinstance(error, BadQueryError):
        return Page(400, {"error": str(error)})
    return Page(500, {"error": f"{type(error).__name__}: {error}"})
