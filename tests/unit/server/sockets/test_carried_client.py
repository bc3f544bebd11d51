"""Relay and CarriedClient: octets go to and fro, each end holds the other back, and no end outlives the other for long."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from tests.unit.core.clients.test_carrying import B1, HEADER
from tests.unit.server.fakes import FakeTransport
from tests.unit.server.sockets.test_client_session import FakeDriver
from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import method_name
from understudy.broker.config import CarryConfig
from understudy.broker.core.clients.carrier_header import encode_farewell, encode_header
from understudy.broker.core.clients.carrying import Carrying
from understudy.broker.core.clients.connection import EARLY_BYTES
from understudy.broker.server.sockets import carried_client
from understudy.broker.server.sockets.carriage import Carriage, take_carried
from understudy.broker.server.sockets.carried_client import CarriedClient
from understudy.broker.server.sockets.logins import Logins

pytestmark = pytest.mark.asyncio


class Transport(FakeTransport):
    """One that can be given another protocol."""

    protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def text(self) -> bytes:
        return b"".join(self.written)


class Scene:
    """One client that waits on a broker, and the dial for it."""

    def __init__(self) -> None:
        self.dials: list[tuple[str, str, bytes]] = []
        self.cancelled = 0
        self.taken_back: list[bytes] = []
        self.broker: Any = SimpleNamespace(refusal="a backup", elsewhere=B1, carrying=None)
        self.client = Transport()
        self.carrying = Carrying(self, 10, 1_000)
        self.carrying.leave(self.broker, None, HEADER, b"early ")  # type: ignore[arg-type]

    def leave(self, transport: Any, carried: Any) -> CarriedClient:
        self.end = CarriedClient(
            self.client,
            carried,
            self.carrying,
            self._dial,
            lambda _, each: self.taken_back.append(each.rest),
            lambda: self.carrying.go_on(self.broker),
        )
        self.client.set_protocol(self.end)
        return self.end

    def _dial(self, broker: str, address: str, header: bytes, end: Any) -> Any:
        self.dials.append((broker, address, header))

        def cancel() -> None:
            self.cancelled += 1

        return cancel

    def connected(self) -> Transport:
        upstream = Transport()
        self.end.connected(upstream, b"open-ok ")
        return upstream


async def test_octets_go_to_and_fro_from_the_first_to_the_last() -> None:
    scene = Scene()
    assert scene.dials == [("b1", B1.address, encode_header(HEADER))]
    scene.client.protocol.data_received(b"more ")
    upstream = scene.connected()
    upstream.protocol.data_received(b"delivery")
    scene.client.protocol.data_received(b"ack")
    assert (scene.client.text(), upstream.text()) == (b"open-ok delivery", b"early more ack")
    assert scene.carrying.statistics().carried == 1


async def test_an_end_that_cannot_write_holds_the_other_back() -> None:
    scene = Scene()
    upstream = scene.connected()
    scene.client.protocol.pause_writing()
    scene.client.protocol.resume_writing()
    assert upstream.done == ["pause", "resume"]
    upstream.protocol.pause_writing()
    assert scene.client.done == ["pause"]
    assert scene.client.high == upstream.high == carried_client.BUFFER_BYTES


async def test_when_one_end_is_lost_the_other_is_closed() -> None:
    for lost in ("client", "upstream"):
        scene = Scene()
        upstream = scene.connected()
        ends = {"client": scene.client, "upstream": upstream}
        ends.pop(lost).protocol.connection_lost(None)
        (other,) = ends.values()
        assert other.done == ["close"]
        other.protocol.data_received(b"too late")
        other.protocol.connection_lost(None)
        assert not scene.carrying.busy


@pytest.mark.parametrize("how", ["waits", "carried", "handed back"])
async def test_nothing_of_a_client_that_is_gone_stays(how: str) -> None:
    """The collector is not asked for it."""
    gc.disable()
    try:
        scene = Scene()
        upstream = scene.connected() if how == "carried" else None
        if how == "handed back":
            scene.carrying.stop()
        else:
            scene.client.protocol.connection_lost(None)
        if upstream is not None:
            upstream.protocol.connection_lost(None)
            upstream.protocol = None  # as transports do then
        left = weakref.ref(scene.end)
        scene.client.protocol = None
        del scene.end
        assert left() is None
    finally:
        gc.enable()


async def test_the_end_of_one_direction_is_passed_on_and_that_of_both_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried_client, "LINGER_S", 0.01)
    scene = Scene()
    upstream = scene.connected()
    assert upstream.protocol.eof_received() is True
    assert scene.client.done == ["eof"]
    assert scene.client.protocol.eof_received() is False  # the transport closes itself
    await asyncio.sleep(0.03)
    assert upstream.done == ["abort"]  # nor is a client waited for that does not close


async def test_a_client_that_says_much_while_it_waits_is_read_no_more() -> None:
    scene = Scene()
    scene.client.protocol.data_received(b"x" * EARLY_BYTES)
    scene.client.protocol.data_received(b"y")
    assert scene.client.done == ["pause"]
    upstream = scene.connected()
    assert scene.client.done == ["pause", "resume"]
    assert upstream.text() == b"early " + b"x" * EARLY_BYTES + b"y"


async def test_a_client_that_goes_while_it_waits_ends_its_dial() -> None:
    scene = Scene()
    scene.client.protocol.connection_lost(None)
    assert (scene.cancelled, scene.carrying.busy) == (1, False)


async def test_a_client_that_waits_is_kept_alive_and_handed_back_with_what_it_said() -> None:
    scene = Scene()
    scene.end.failed("not now", final=False)
    for now_ms in (500, 950, 1_000):
        scene.carrying.look(scene.broker, now_ms)
    assert scene.taken_back == [b"early "]
    other = Scene()
    other.carrying.look(other.broker, 999)
    other.end.beat()
    assert other.client.text() == HEARTBEAT_FRAME


# ----------------------------------------------------------------------------------------------- at the other end of it


class Driver(FakeDriver):
    """Of a broker that serves."""

    def __init__(self) -> None:
        super().__init__()
        self.broker.reception.admit()
        self.users = Logins(self.users)  # type: ignore[assignment]


def arrives(driver: Driver, octets: bytes, carrier: str = "b3") -> Any:
    return take_carried(driver, carrier, octets, lambda: True)  # type: ignore[arg-type]


def said(transport: Transport) -> Any:
    return FrameParser(0).feed(transport.text())[-1]


async def test_a_client_of_another_broker_is_served_and_shown_with_its_own_address() -> None:
    driver = Driver()
    upstream = Transport(("10.0.0.3", 1))
    arrives(driver, encode_header(HEADER))(upstream)
    driver.end_turn()
    (session,) = driver.sessions
    assert (session.connection.name, session.connection.carried_by) == ("127.0.0.1:4000", "b3")
    assert upstream.protocol is session
    assert session.connection.user.name == "guest"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host": "192.0.2.7"}, "login refused: user 'guest' can only connect via localhost"),
        ({"host": ""}, "login refused: user 'guest' can only connect via localhost"),
        ({"user": "ann"}, "login refused: the broker that leads has no user 'ann'"),
    ],
)
async def test_guest_stays_a_matter_of_loopback(changes: dict[str, Any], text: str) -> None:
    driver = Driver()
    upstream = Transport(("127.0.0.1", 1))
    arrives(driver, encode_header(attrs.evolve(HEADER, **changes)))(upstream)
    driver.end_turn()
    assert said(upstream)[2][:2] == (403, f"ACCESS_REFUSED - {text}")


async def test_who_is_not_served_is_told_why() -> None:
    driver = Driver()
    assert (
        arrives(driver, b"\0") == "a carrier header of 1 octets is no table: length at octet 0 goes past the end at 1"
    )
    assert take_carried(driver, "b3", encode_header(HEADER), lambda: False) == "file descriptors run short"  # type: ignore[arg-type]
    driver.stopping = True
    assert arrives(driver, encode_header(HEADER)) == "this broker is shutting down"
    driver.broker.reception.refuse("b1 is a backup")
    assert arrives(driver, encode_header(HEADER)) == "this broker does not serve clients: b1 is a backup"


async def test_two_brokers_that_take_each_other_for_the_primary_make_no_loop() -> None:
    """The other one carries nobody on: the client waits, is dialed for now and then, and is handed back to be refused."""
    scene, other = Scene(), Driver()
    other.broker.reception.refuse("b1 is a backup")
    carrying_of_other = other.broker.reception.carrying
    for now_ms in range(50, 1_050, 50):
        for _, _, header in scene.dials[scene.carrying.statistics().failed :]:
            scene.end.failed(arrives(other, header, "b2"), final=False)
        scene.carrying.look(scene.broker, now_ms)
    assert scene.taken_back == [b"early "]
    assert 3 <= len(scene.dials) <= 6
    assert (other.sessions, carrying_of_other) == (set(), None)
    assert scene.carrying.statistics().refused == 1


async def test_a_carrier_that_stops_has_its_clients_told_and_no_others() -> None:
    driver = Driver()
    transports = []
    for carrier in ("b2", "b3"):
        transports.append(Transport())
        arrives(driver, encode_header(HEADER), carrier)(transports[-1])
    farewell = Transport()
    arrives(driver, encode_farewell("b3 stops"), "b3")(farewell)
    driver.end_turn()
    assert farewell.done == ["close"]
    assert said(transports[1])[2][:2] == (320, "CONNECTION_FORCED - b3 stops")
    assert method_name(said(transports[0])[1]) == "connection.open-ok"


async def test_descriptors_that_the_broker_needs_are_not_dialed_with() -> None:
    failures: list[tuple[str, bool]] = []
    dials: list[str] = []

    def dial(broker: str, *_: Any) -> Any:
        dials.append(broker)
        return lambda: None

    room = [False]
    carriage = Carriage(Driver(), dial, lambda: room[0], CarryConfig())  # type: ignore[arg-type]
    end: Any = SimpleNamespace(failed=lambda reason, *, final: failures.append((reason, final)))
    carriage._dial_for("b1", B1.address, b"", end)()  # cancelled
    carriage._dial_for("b1", B1.address, b"", end)
    assert failures == []
    await asyncio.sleep(0)
    assert (failures, dials) == ([("file descriptors run short", True)], [])
    room[0] = True
    carriage._dial_for("b1", B1.address, b"", end)
    assert dials == ["b1"]
