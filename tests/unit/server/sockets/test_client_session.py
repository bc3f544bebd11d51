"""ClientSession: one write a turn, reading stopped and resumed as the core wishes, a patient farewell."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.unit.server.fakes import FakeTransport
from understudy.broker.config import parse
from understudy.broker.core.clients.connection import Phase
from understudy.broker.core.life.building import build_broker
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.security import UserDirectory
from understudy.broker.server.sockets.client_session import JOIN_BYTES, ClientSession

pytestmark = pytest.mark.asyncio


class NoJournal:
    def append(self, frame: bytes) -> None:
        raise AssertionError

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


class NoGarbage:
    def ended(self) -> None:
        pass


class FakeDriver:
    """Driver, as far as a session needs one."""

    def __init__(self) -> None:
        self.limits = Limits(outgoing_bytes_per_client=1000)
        self.broker = build_broker(BrokerState(0), JournalGate(NoJournal()), self.limits, bytes)
        self.users = UserDirectory(parse(""))
        self.sessions: set[ClientSession] = set()
        self.stopping = False
        self.garbage = NoGarbage()
        self.awake: list[ClientSession] = []
        self.turns = 0
        self.crashes: list[str] = []

    def woken(self, session: ClientSession) -> None:
        self.awake.append(session)

    def request_turn(self) -> None:
        self.turns += 1

    def crashed(self, event: str, error: BaseException) -> None:
        self.crashes.append(event)

    def end_turn(self) -> None:
        awake, self.awake = self.awake, []
        for session in awake:
            session.flush()


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def connected(driver: FakeDriver) -> tuple[ClientSession, FakeTransport]:
    session, transport = ClientSession(driver), FakeTransport()  # type: ignore[arg-type]
    session.connection_made(transport)
    return session, transport


async def test_output_of_a_turn_is_one_write(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    for piece in (b"a", b"b", b"c"):
        session.connection.write(piece)
    assert transport.written == []
    driver.end_turn()
    assert transport.written == [b"abc"]
    driver.end_turn()
    assert transport.written == [b"abc"]


async def test_large_output_is_not_copied(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    session.connection.write(bytes(JOIN_BYTES))
    session.connection.write(b"x")
    driver.end_turn()
    assert (len(transport.written), transport.done) == (2, ["writelines"])


async def test_reading_follows_the_core(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    for paused, expected in ((True, ["pause"]), (True, ["pause"]), (False, ["pause", "resume"])):
        session.connection.paused = paused
        session.wake()
        driver.end_turn()
        assert transport.done == expected


async def test_a_stopping_broker_reads_no_more(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    driver.stopping = True
    session.stop_reading()
    session.connection.write(b"x")
    driver.end_turn()
    assert transport.done == ["pause"]


async def test_a_client_that_leaves_while_it_is_not_read_is_read_where_it_goes(driver: FakeDriver) -> None:
    """Its password was being verified: it has said more than start-ok without waiting for an answer."""
    session, transport = connected(driver)
    session.connection.paused = True
    session.connection.write(b"x")
    driver.end_turn()
    session.leave()
    assert [what for what in transport.done if what != "writelines"] == ["pause", "resume"]


async def test_a_client_that_a_stopping_broker_does_not_read_is_not_silent(driver: FakeDriver) -> None:
    session, _ = connected(driver)
    connection = session.connection
    connection.phase, connection.heartbeat_ms = Phase.RUNNING, 1_000
    driver.stopping = True
    session.stop_reading()
    driver.broker.tick(1_900, 0)
    connection.tick(60_000)
    assert connection.phase is Phase.RUNNING
    connection.unread = False
    connection.tick(60_000)
    connection.tick(60_050)
    assert "missed heartbeats" in connection.close_reason


@pytest.mark.parametrize("how", ["resume", "flush"])
async def test_a_disk_that_does_not_give_a_body_back_ends_the_broker_wherever_that_is_noticed(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A get that waits for room reads its body when the client takes bytes again. The loop takes an OSError for the network's."""
    session, transport = connected(driver)
    session.flush()

    def lost(congested: bool) -> None:
        if not congested:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(session.connection, "set_congested", lost)
    if how == "resume":
        session.pause_writing()
        session.resume_writing()
    else:
        session.connection.congested = True  # this turn's output was large
        session.connection.write(b"x")
        driver.end_turn()
    assert driver.crashes == [f"client {session.connection.name} takes bytes again"]
    assert transport.written == ([b"x"] if how == "flush" else [])


async def test_a_client_that_does_not_read_is_congested_until_it_does(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    assert transport.high == 1000
    session.pause_writing()
    assert session.connection.congested
    session.connection.write(b"x")
    driver.end_turn()
    assert session.connection.congested
    session.resume_writing()
    assert not session.connection.congested


async def test_the_output_of_one_turn_is_bounded(driver: FakeDriver) -> None:
    session, _ = connected(driver)
    session.connection.write(bytes(1001))
    congested = [session.connection.congested]
    turns = driver.turns
    driver.end_turn()
    congested.append(session.connection.congested)
    assert congested == [True, False]
    assert driver.turns > turns


async def test_finished_means_written_then_half_closed_then_deaf(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    session.data_received(b"GET / HTTP/1.0\r\n\r\n")
    driver.end_turn()
    assert transport.written == [b"AMQP\x00\x00\x09\x01"]
    assert transport.done == ["eof"]
    session.data_received(b"more")
    driver.end_turn()
    assert transport.written == [b"AMQP\x00\x00\x09\x01"]
    session.connection_lost(None)
    assert driver.sessions == set()


async def test_a_lost_socket_is_told_to_the_core_and_written_to_no_more(driver: FakeDriver) -> None:
    session, transport = connected(driver)
    session.connection_lost(ConnectionResetError("reset"))
    assert session.connection.finished
    assert "reset" in session.connection.close_reason
    session.connection.write(b"x")
    driver.end_turn()
    assert transport.written == []


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False)]
)
async def test_loopback_is_the_peers_address(driver: FakeDriver, host: str, loopback: bool) -> None:
    session, transport = ClientSession(driver), FakeTransport((host, 1))  # type: ignore[arg-type]
    session.connection_made(transport)
    assert session.connection._login._loopback is loopback


async def test_an_error_of_our_own_names_the_event(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = connected(driver)

    def wrong(data: Any) -> None:
        raise AssertionError("we are wrong")

    monkeypatch.setattr(session.connection, "receive", wrong)
    session.data_received(b"12345")
    assert "5 bytes from client 127.0.0.1:4000" in driver.crashes[0]


async def test_a_session_that_has_ended_is_freed_without_a_collector(driver: FakeDriver) -> None:
    gc.collect()
    gc.disable()
    try:
        session, transport = connected(driver)
        session.data_received(b"AMQP\0\0\x09\x01")
        driver.end_turn()
        assert transport.written
        connection = weakref.ref(session.connection)
        session.connection_lost(None)
        driver.end_turn()
        del session
        assert connection() is None
    finally:
        gc.enable()
