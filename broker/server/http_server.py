"""A GET-only HTTP/1.0 responder for the pages of ``status_report`` and of plugins.

One request a connection, nothing read but its first line.

aiohttp was refused here: importing it costs 265 ms and 15 MB (measured on this machine), for five pages of JSON, in a process
that should serve within a second and live in 60 MB.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import parse_qsl

from understudy.broker.pages import BadQueryError, Making, Page, Pages, Query

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
"""For a request, and as much again for its answer."""
MAKING_TIMEOUT_S: Final = 600.0
"""For a page that takes long. Whoever asked may have gone without a word."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpSession(asyncio.Protocol):
    """One connection: reads a request's head, answers, closes.

    Args:
        pages: by path; each is made when it is asked for.
    """

    __slots__ = ("_ends", "_head", "_making", "_pages", "_transport")

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
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
        """Who says that it sends nothing more (``nc -N``) may still wait for a page that takes long."""
        return self._making is not None

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._making is not None:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._respond()
        elif len(self._head) > MAX_REQUEST_BYTES:
            self._send(Page(400, {"error": f"a request's head is at most {MAX_REQUEST_BYTES} bytes"}), head_only=False)

    def _respond(self) -> None:
        words = self._head.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) < 2 or not words[1].startswith("/"):
            self._send(Page(400, {"error": "not an HTTP request"}), head_only=False)
            return
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
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n"
            "\r\n"
        )
        self._transport.write(head.encode() if head_only else head.encode() + body)
        self._transport.close()


def _broken(error: Exception) -> Page:
    if isinstance(error, BadQueryError):
        return Page(400, {"error": str(error)})
    return Page(500, {"error": f"{type(error).__name__}: {error}"})
