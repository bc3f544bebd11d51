"""The HTTP responder answers one request and closes, whatever it is sent."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.server.fakes import FakeTransport
from understudy.broker.errors import AccessRefusedError, ResourceErrorHard
from understudy.broker.plugin_api.pages import BadQueryError, Page, Pages, Query
from understudy.broker.security import User
from understudy.broker.server.web import http_server
from understudy.broker.server.web.http_server import MAX_REQUEST_BYTES, HttpSession

pytestmark = pytest.mark.asyncio


def nobody() -> None:
    """Knows no users; a peer on this host needs none."""


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
    session, transport = HttpSession(PAGES, nobody), FakeTransport()
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
    session, transport = HttpSession(PAGES, nobody), FakeTransport()
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
        (b"GET /status?%s HTTP/1.0\r\n\r\n" % (b"a=1&" * 50_000), 400),
        (b"GET /broken HTTP/1.0\r\n\r\n", 500),
        (b"GET /picky?limit=x HTTP/1.0\r\n\r\n", 400),
    ],
)
async def test_what_is_not_answered_says_why(request_: bytes, expected: int) -> None:
    status, page, transport = await ask(request_)
    assert (status, transport.done) == (expected, ["close"])
    assert page["error"]


async def test_an_unfinished_head_waits() -> None:
    session, transport = HttpSession(PAGES, nobody), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /status HTTP/1.0\r\n")
    assert (transport.written, transport.done) == ([], [])
    session.connection_lost(None)


@pytest.mark.parametrize("request_", [b"GET /sta", b"GET /status HTTP/1.0\r\n\r\n"])
async def test_who_neither_asks_nor_reads_is_let_go(request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asked and did not read kept its socket, and its page, for as long as it liked."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.0)
    session, transport = HttpSession(PAGES, nobody), FakeTransport()
    session.connection_made(transport)
    session.data_received(request_)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.done[-1] == "abort"
    session.connection_lost(None)


async def test_a_page_that_takes_long_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may take longer than a request; others are answered meanwhile, and input behind the request is not read."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.02)
    done = asyncio.Event()

    async def slow(_: Query) -> Page:
        await done.wait()
        return Page(200, {"slow": 1})

    session, transport = HttpSession({"/slow": slow}, nobody), FakeTransport()
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

    session, transport = HttpSession({"/slow": slow}, nobody), FakeTransport()
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

    session, transport = HttpSession({"/slow": slow}, nobody), FakeTransport()
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

    session, transport = HttpSession({"/slow": slow}, nobody), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /slow HTTP/1.0\r\n\r\n")
    assert session.eof_received(), "the transport stays open"
    done.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert transport.done == ["close"]
    assert len(transport.written) == 1
    session.connection_lost(None)
    silent = HttpSession(PAGES, nobody)
    silent.connection_made(FakeTransport())
    assert not silent.eof_received(), "nothing is coming"
    silent.connection_lost(None)


async def test_a_page_is_not_made_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAKING_TIMEOUT_S", 0.0)

    async def endless(_: Query) -> Page:
        await asyncio.Event().wait()
        return Page(200, {})

    session, transport = HttpSession({"/endless": endless}, nobody), FakeTransport()
    session.connection_made(transport)
    session.data_received(b"GET /endless HTTP/1.0\r\n\r\n")
    for _ in range(3):
        await asyncio.sleep(0.001)
    assert transport.done == ["abort"]
    session.connection_lost(None)


# -- from other hosts -------------------------------------------------------------------------------------------------

MONITOR = User(name="m", permissions={}, vhosts=frozenset(), monitoring=True)
OTHER = User(name="o", permissions={}, vhosts=frozenset())


class Users:
    """Answers when the test says so; notes who was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.answer: Callable[[Any], None] = lambda user: None
        self.wanted: Callable[[], bool] = lambda: True

    def check(self, name: str, password: str, peer_is_loopback: bool, answer: Any, wanted: Any) -> None:
        self.asked.append((name, password, peer_is_loopback))
        self.answer, self.wanted = answer, wanted


def basic(login: str) -> bytes:
    return b"aUTHORIZATION:  bAsic " + base64.b64encode(login.encode()) + b"\r\n"


def from_afar(users: Users | None, head: bytes, peer: str = "192.0.2.7", here: str = "192.0.2.1") -> Any:
    session, transport = HttpSession(PAGES, lambda: users), FakeTransport((peer, 4000))
    transport._extra["sockname"] = (here, 8672)  # type: ignore[attr-defined]  # of asyncio.BaseTransport
    session.connection_made(transport)
    session.data_received(head)
    return session, transport


def status_of(transport: FakeTransport) -> int:
    return int(b"".join(transport.written).split()[1]) if transport.written else 0


@pytest.mark.parametrize("path", [b"/status", b"/nothing"])
@pytest.mark.parametrize(
    "more", [b"", b"Authorization: Basic !!\r\n", b"Authorization: Basic bQ==\r\n", b"X: Basic bTpw\r\n"]
)
async def test_who_shows_no_user_is_told_nothing(path: bytes, more: bytes) -> None:
    session, transport = from_afar(Users(), b"GET " + path + b" HTTP/1.1\r\n" + more + b"\r\n")
    assert (status_of(transport), transport.done) == (401, ["close"])
    assert b'\r\nWWW-Authenticate: Basic realm="understudy"' in transport.written[0]
    session.connection_lost(None)


@pytest.mark.parametrize(
    ("found", "status"),
    [(MONITOR, 200), (OTHER, 403), (AccessRefusedError("login refused"), 401), (ResourceErrorHard("try again"), 503)],
)
async def test_a_user_with_the_permission_is_answered(found: Any, status: int) -> None:
    users = Users()
    session, transport = from_afar(users, b"GET /status HTTP/1.1\r\nHost: h\r\n" + basic("m:p:q \N{SNOWMAN}") + b"\r\n")
    assert users.asked == [("m", "p:q \N{SNOWMAN}", False)]
    session.data_received(b"GET /status HTTP/1.1\r\n\r\n")
    assert transport.written == [], "nothing is said until the password is verified"
    users.answer(found)
    assert (status_of(transport), transport.done) == (status, ["close"])
    users.answer(MONITOR)
    assert len(transport.written) == 1
    session.connection_lost(None)


async def test_nobody_waits_for_the_password_of_a_peer_that_is_gone() -> None:
    users = Users()
    session, transport = from_afar(users, b"GET /status HTTP/1.1\r\n" + basic("m:p") + b"\r\n")
    assert users.wanted()
    session.connection_lost(None)
    assert not users.wanted()
    users.answer(MONITOR)
    assert transport.written == []


@pytest.mark.parametrize(("peer", "here"), [("127.0.0.9", "127.0.0.1"), ("::1", "::1"), ("192.0.2.1", "192.0.2.1")])
async def test_a_peer_on_this_host_needs_no_user(peer: str, here: str) -> None:
    session, transport = from_afar(None, b"GET /status HTTP/1.1\r\n\r\n", peer, here)
    assert status_of(transport) == 200
    session.connection_lost(None)


async def test_while_the_broker_starts_nobody_knows_the_users() -> None:
    session, transport = from_afar(None, b"GET /status HTTP/1.1\r\n" + basic("m:p") + b"\r\n")
    assert status_of(transport) == 503
    session.connection_lost(None)
