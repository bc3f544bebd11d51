"""The HTTP responder answers one request and closes, whatever it is sent."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from tests.unit.server.fakes import FakeTransport
from understudy.broker.pages import BadQueryError, Page, Pages, Query
from understudy.broker.server import http_server
from understudy.broker.server.http_server import MAX_REQUEST_BYTES, HttpSession

pytestmark = pytest.mark.asyncio


def broken(_: Query) -> Page:
    raise KeyError("nobody")


def picky(_: Query) -> Page:
    raise BadQueryError("limit is a number")


PAGES: Pages = {
    "/status": lambda query: Page(200, {"a": 1}),
    "/readyz": lambda query: Page(503, {"why": "x"}),
    "/broken": broken,
    "/asked": lambda query: Page(200, dict(query)),
    "/picky": picky,
    "/text": lambda query: Page(200, b"up 1\n", "text/plain"),
}


async def ask(*pieces: bytes) -> tuple[int, dict[str, object], FakeTransport]:
    session, transport = HttpSession(PAGES), FakeTransport()
    session.connection_made(transport)
    for piece in pieces:
        session.data_received(piece)
    session.connection_lost(None)
    await asyncio.sleep(0)
    answer = b"".join(transport.written)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else {}, transport


async def test_a_page() -> None:
    status, page, transport = await ask(b"GET /status?x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (status, page, transport.done) == (200, {"a": 1}, ["close"])


async def test_the_parameters_of_a_request_reach_its_page() -> None:
    _, page, _ = await ask(b"GET /asked?vhost=%2F&after=a%20b+c&empty= HTTP/1.0\r\n\r\n")
    assert page == {"vhost": "/", "after": "a b c", "empty": ""}


async def test_a_page_may_be_something_else_than_json() -> None:
    session, transport = HttpSession(PAGES), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /text HTTP/1.0\r\n\r\n")
    session.connection_lost(None)
    assert b"\r\nContent-Type: text/plain\r\n" in transport.written[0]
    assert transport.written[0].endswith(b"\r\n\r\nup 1\n")


async def test_a_head_in_pieces_is_answered_once() -> None:
    status, page, transport = await ask(b"GET /rea", b"dyz HTTP/1.0\r\n", b"\r\n", b"GET /status HTTP/1.0\r\n\r\n")
    assert (status, page, len(transport.written)) == (503, {"why": "x"}, 1)


async def test_head_has_no_body() -> None:
    status, page, transport = await ask(b"HEAD /status HTTP/1.0\r\n\r\n")
    assert (status, page) == (200, {})
    assert b"Content-Length: 9\r\n" in transport.written[0]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"POST /status HTTP/1.0\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.0\r\n\r\n", 404),
        (b"\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.0\r\n\r\n", 400),
        (b"x" * (MAX_REQUEST_BYTES + 1), 400),
        (b"GET /broken HTTP/1.0\r\n\r\n", 500),
        (b"GET /picky?limit=x HTTP/1.0\r\n\r\n", 400),
    ],
)
async def test_what_is_not_answered_says_why(request_: bytes, expected: int) -> None:
    status, page, transport = await ask(request_)
    assert (status, transport.done) == (expected, ["close"])
    assert page["error"]


async def test_an_unfinished_head_waits() -> None:
    session, transport = HttpSession(PAGES), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /status HTTP/1.0\r\n")
    assert (transport.written, transport.done) == ([], [])
    session.connection_lost(None)


@pytest.mark.parametrize("request_", [b"GET /sta", b"GET /status HTTP/1.0\r\n\r\n"])
async def test_who_neither_asks_nor_reads_is_let_go(request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked and did not read kept its socket, and its page, for as long as it liked."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.0)
    session, transport = HttpSession(PAGES), FakeTransport()
    session.connection_made(transport)
    session.data_received(request_)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.done[-1] == "abort"
    session.connection_lost(None)


async def test_a_page_that_takes_long_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than a request; others are answered meanwhile, and what is sent after the request is not read."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.02)
    done = asyncio.Event()

    async def slow(_: Query) -> Page:
        await done.wait()
        return Page(200, {"slow": 1})

    session, transport = HttpSession({"/slow": slow}), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    await asyncio.sleep(0.1)
    assert (transport.written, transport.done) == ([], [])
    assert (await ask(b"GET /status HTTP/1.0\r\n\r\n"))[0] == 200
    done.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(transport.written) == 1
    assert transport.written[0].endswith(b'\r\n\r\n{"slow": 1}\n')
    assert transport.done == ["close"]
    await asyncio.sleep(0.1)
    assert transport.done == ["close", "abort"], "who does not read the answer is let go"
    session.connection_lost(None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("turns", [0, 1])
async def test_nobody_waits_for_a_page_that_takes_long(turns: int) -> None:
    """Whoever asked has gone, before it was begun or after: it is not made any further."""
    heard: list[str] = []

    async def slow(_: Query) -> Page:
        heard.append("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            heard.append("ended")
        return Page(200, {})

    session, transport = HttpSession({"/slow": slow}), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    for _ in range(turns):
        await asyncio.sleep(0)
    session.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert heard == ["begun", "ended"] * turns
    assert transport.written == []


async def test_a_page_that_takes_long_may_fail() -> None:
    async def slow(_: Query) -> Page:
        await asyncio.sleep(0)
        raise KeyError("nobody")

    session, transport = HttpSession({"/slow": slow}), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    for _ in range(4):
        await asyncio.sleep(0)
    assert transport.written[0].startswith(b"HTTP/1.0 500 ")
    assert transport.done == ["close"]
    session.connection_lost(None)


async def test_who_has_said_all_may_still_wait() -> None:
    """``nc -N`` was answered with nothing."""
    done = asyncio.Event()

    async def slow(_: Query) -> Page:
        await done.wait()
        return Page(200, {})

    session, transport = HttpSession({"/slow": slow}), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    assert session.eof_received(), "the transport stays open"
    done.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert transport.done == ["close"]
    assert len(transport.written) == 1
    session.connection_lost(None)
    silent = HttpSession(PAGES)
    silent.connection_made(FakeTransport())
    assert not silent.eof_received(), "nothing is coming"
    silent.connection_lost(None)


async def test_a_page_is_not_made_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAKING_TIMEOUT_S", 0.0)

    async def endless(_: Query) -> Page:
        await asyncio.Event().wait()
        return Page(200, {})

    session, transport = HttpSession({"/endless": endless}), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /endless HTTP/1.0\r\n\r\n")
    for _ in range(3):
        await asyncio.sleep(0.001)
    assert transport.done == ["abort"]
    session.connection_lost(None)
