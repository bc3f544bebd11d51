"""Carrying: which clients wait, which are dialed for, and when one is refused, taken in or parted. No sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from tests.unit.core.core_kit import CAPABILITIES, Client, Core
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.methods import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    encode_method,
)
from understudy.broker.core.clients.carrier_header import CarrierHeader
from understudy.broker.core.clients.carrying import (
    DIALS,
    PARTING_MS,
    RETRY_MS,
    Carried,
    Carrying,
    Destination,
    clients_are,
)
from understudy.broker.core.clients.connection import Connection, Phase
from understudy.broker.core.clients.reception import Reception
from understudy.broker.errors import AccessRefusedError
from understudy.testing.coordinator_kit.kit_client import AnyUser

B1, B3 = Destination("b1", "127.0.0.1:1"), Destination("b3", "127.0.0.1:3")
WAIT_MS = 10_000
HEADER = CarrierHeader(
    host="127.0.0.1",
    port=4000,
    user="guest",
    vhost="/",
    client_properties={},
    channel_max=7,
    frame_max=131_072,
    heartbeat_s=4,
)
HANDSHAKE = (
    PROTOCOL_HEADER,
    encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US"),
    encode_method(0, CONNECTION_TUNE_OK, 2047, 131_072, 60),
    encode_method(0, CONNECTION_OPEN, "/"),
)


class Place:
    """The edge of one process, and the broker that takes its clients."""

    def __init__(self, connections: int = 100, wait_ms: int = WAIT_MS) -> None:
        self.carrying = Carrying(self, connections, wait_ms)
        self.reception = Reception()
        self.reception.refuse("b2 is a backup")
        self.reception.carried_by(self.carrying)
        self.clients: list[Carried] = []
        self.told: list[tuple[str, int]] = []
        self.now_ms = 0

    def leave(self, transport: Any, carried: Carried) -> Any:
        self.clients.append(carried)
        number = len(self.clients) - 1

        def tell(what: str) -> Any:
            return lambda *_: self.told.append((what, number))

        return SimpleNamespace(**{what: tell(what) for what in ("dial", "cancel_dial", "beat", "hand_back", "cut")})

    def arrive(self, **changes: Any) -> Carried:
        self.carrying.leave(self.reception, self, attrs.evolve(HEADER, **changes), b"")
        return self.clients[-1]

    def wake(self) -> None:
        pass

    def pass_ms(self, duration_ms: int) -> list[tuple[str, int]]:
        """Time passes in ticks; returns what the edge is told meanwhile, without heartbeats."""
        self.told.clear()
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 50)
            self.carrying.look(self.reception, self.now_ms)
        return [each for each in self.told if each[0] != "beat"]


def test_a_client_is_dialed_for_at_once_if_the_primary_is_known() -> None:
    place = Place()
    place.reception.served_by(B1)
    client = place.arrive()
    assert (place.told, client.to) == ([("dial", 0)], B1)
    place.carrying.accepted(client)
    assert place.pass_ms(2 * WAIT_MS) == []
    assert (place.carrying.statistics().carried, place.carrying.statistics().accepted) == (1, 1)
    place.carrying.gone(client)
    assert not place.carrying.busy


def test_a_client_waits_for_a_primary_with_heartbeats_and_is_refused_in_the_end() -> None:
    place = Place()
    place.arrive()
    assert place.pass_ms(WAIT_MS - 50) == []
    assert len(place.told) == 4  # every two seconds
    assert place.pass_ms(50) == [("hand_back", 0)]
    assert (place.carrying.busy, place.carrying.statistics().refused) == (False, 1)


def test_a_primary_that_comes_in_time_gets_the_client() -> None:
    place = Place()
    client = place.arrive()
    place.pass_ms(WAIT_MS // 2)
    place.reception.served_by(B3)
    assert place.pass_ms(50) == [("dial", 0)]
    assert client.to == B3


def test_a_broker_that_begins_to_serve_takes_its_waiting_clients_in() -> None:
    place = Place()
    place.arrive()
    place.reception.served_by(B1)
    place.arrive()
    place.reception.admit()
    place.reception.served_by(None)
    told = place.pass_ms(50)
    assert sorted(told) == [("cancel_dial", 0), ("cancel_dial", 1), ("hand_back", 0), ("hand_back", 1)]
    assert place.carrying.statistics().refused == 0


def test_a_dial_that_fails_is_made_again_after_a_pause_for_all_who_wait() -> None:
    place = Place()
    place.reception.served_by(B1)
    for _ in range(3 * DIALS):
        place.arrive()
    assert place.told == [("dial", number) for number in range(DIALS)]
    for number in range(DIALS):
        place.carrying.failed(place.clients[number], "refused", final=False)
    assert place.pass_ms(RETRY_MS - 50) == []
    assert place.pass_ms(50) == [("dial", number) for number in range(DIALS)]


def test_a_new_primary_is_dialed_without_a_pause_and_the_old_dial_is_cancelled() -> None:
    place = Place()
    place.reception.served_by(B1)
    first, second = place.arrive(), place.arrive()
    place.carrying.failed(first, "refused", final=False)
    place.reception.served_by(B3)
    assert place.pass_ms(50) == [("cancel_dial", 1), ("dial", 0), ("dial", 1)]
    assert first.to == second.to == B3


def test_a_dial_that_can_never_succeed_ends_the_wait() -> None:
    place = Place()
    place.reception.served_by(B1)
    client = place.arrive()
    place.told.clear()
    place.carrying.failed(client, "group differs", final=True)
    place.carrying.go_on(place.reception)
    assert place.told == []  # not dialed for again meanwhile
    assert place.pass_ms(50) == [("hand_back", 0)]


def test_with_no_time_to_wait_a_client_has_one_dial() -> None:
    place = Place(wait_ms=0)
    place.reception.served_by(B1)
    client = place.arrive()
    assert place.pass_ms(100) == []
    place.carrying.failed(client, "refused", final=False)
    assert place.pass_ms(50) == [("hand_back", 0)]


def test_many_clients_are_dialed_for_a_few_at_a_time() -> None:
    place = Place()
    place.reception.served_by(B1)
    for _ in range(100):
        place.arrive()
    for number in range(100):
        assert place.told[-1] == ("dial", min(99, number + DIALS - 1))
        place.carrying.accepted(place.clients[number])
        place.carrying.go_on(place.reception)
    assert [number for _, number in place.told] == list(range(100))


def test_no_more_clients_than_the_bound() -> None:
    place = Place(connections=2)
    clients = [place.arrive(), place.arrive()]
    assert not place.carrying.has_room()
    assert place.carrying.statistics().refused == 1
    place.carrying.gone(clients[0])
    assert place.carrying.has_room()


def test_a_client_that_goes_while_it_is_dialed_for_makes_room_for_the_next() -> None:
    place = Place()
    place.reception.served_by(B1)
    clients = [place.arrive() for _ in range(DIALS + 1)]
    place.carrying.gone(clients[0])
    place.carrying.go_on(place.reception)
    assert place.told[-2:] == [("cancel_dial", 0), ("dial", DIALS)]


def test_connections_to_a_former_primary_are_cut_when_it_has_had_time_to_end_them() -> None:
    place = Place()
    place.reception.served_by(B1)
    place.carrying.accepted(place.arrive())
    place.reception.served_by(None)
    assert place.pass_ms(PARTING_MS) == []  # nobody knows who leads: it may be the same
    place.reception.served_by(B3)
    place.carrying.accepted(place.arrive())
    assert place.pass_ms(PARTING_MS) == []
    assert place.pass_ms(50) == [("cut", 0)]


def test_a_broker_that_leads_itself_cuts_what_it_carries() -> None:
    place = Place()
    place.reception.served_by(B1)
    place.carrying.accepted(place.arrive())
    place.reception.admit()
    place.reception.served_by(None)
    assert place.pass_ms(PARTING_MS + 50) == [("cut", 0)]


def test_the_end_of_the_process_refuses_who_waits_and_cuts_who_is_carried() -> None:
    place = Place()
    place.reception.served_by(B1)
    place.carrying.accepted(place.arrive())
    place.arrive()
    assert place.carrying.destinations() == [B1]
    place.told.clear()
    place.carrying.stop()
    place.carrying.cut_all()
    assert place.told == [("cancel_dial", 1), ("hand_back", 1), ("cut", 0)]
    assert not place.carrying.has_room()  # for one whose password is verified only now


def test_what_a_load_balancer_is_told() -> None:
    place = Place()
    said = [clients_are(place.reception)]
    place.reception.served_by(B1)
    said.append(clients_are(place.reception))
    place.reception.carried_by(None)
    said.append(clients_are(place.reception))
    place.reception.admit()
    said.append(clients_are(place.reception))
    assert said == ["waiting", "carried", "refused", "served"]


# -------------------------------------------------------------------------------------------- connections that leave


class Leaving(Client):
    """A client of a broker that serves nobody."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.connection = Connection(core.broker, core.users, self, "192.0.2.7:4000", loopback=False)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def core(place: Place) -> Core:
    core = Core()
    core.broker.reception.refuse("b2 is a backup", "NOT_PRIMARY")
    core.broker.reception.carried_by(place.carrying)
    return core


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_a_client_leaves_at_open_with_all_that_it_has_said(core: Core, place: Place, step: int) -> None:
    client = Leaving(core)
    said = b"".join(HANDSHAKE) + encode_method(1, CHANNEL_OPEN) + b"\1\0"
    fed = b""
    while not place.clients:
        read = said[len(fed) : len(fed) + step]
        fed += read
        client.connection.receive(read)
    (carried,) = place.clients
    assert carried.client == CarrierHeader(
        host="192.0.2.7",
        port=4000,
        user="guest",
        vhost="/",
        client_properties=CAPABILITIES,
        channel_max=2047,
        frame_max=131_072,
        heartbeat_s=60,
    )
    assert fed == b"".join(HANDSHAKE) + carried.rest
    assert client.connection.phase is Phase.CLOSED
    assert client.connection not in core.broker.reception.connections


def test_without_room_or_carrying_a_client_is_refused(core: Core, place: Place) -> None:
    core.broker.reception.carried_by(Carrying(place, 1, WAIT_MS))
    for expected in ([], ["connection.close"]):
        client = Leaving(core)
        client.send(*HANDSHAKE)
        assert client.heard()[2:] == expected
    core.broker.reception.carried_by(None)
    client = Leaving(core)
    client.send(*HANDSHAKE)
    assert client.events()[-1][2][:2] == (320, "NOT_PRIMARY - b2 is a backup")


def test_a_client_that_wants_to_be_told_who_leads_is_not_carried(core: Core, place: Place) -> None:
    client = Leaving(core)
    told = {"capabilities": {"understudy.redirect": True}}
    start_ok = encode_method(0, CONNECTION_START_OK, told, "PLAIN", b"\0guest\0guest", "en_US")
    client.send(HANDSHAKE[0], start_ok, *HANDSHAKE[2:])
    assert client.events()[-1][2][:2] == (320, "NOT_PRIMARY - b2 is a backup")
    assert place.clients == []


def taken_over(core: Core, user: Any = None, carrier: str = "b3", **changes: Any) -> Client:
    client = Client(core)
    known: Any = AnyUser() if user is None else user
    client.connection.take_over(attrs.evolve(HEADER, **changes), known, carrier, b"")
    core.turn()
    return client


def test_a_carried_client_is_never_carried_on(core: Core, place: Place) -> None:
    """Two brokers that each take the other for the primary."""
    place.reception.served_by(B1)
    client = taken_over(core)
    assert client.events()[-1][2][:2] == (320, "NOT_PRIMARY - b2 is a backup")
    assert place.clients == []


def test_a_client_that_is_taken_over_goes_on_at_open(core: Core) -> None:
    core.broker.reception.admit()
    client = taken_over(core, heartbeat_s=60, channel_max=7)
    assert client.heard() == ["connection.open-ok"]
    connection = client.connection
    assert (connection.heartbeat_ms, connection.channel_max, connection.carried_by) == (60_000, 7, "b3")
    client.send(encode_method(1, CHANNEL_OPEN))
    assert client.heard() == ["channel.open-ok"]


@pytest.mark.parametrize(
    ("changes", "user", "code"),
    [
        ({"frame_max": 100}, None, 530),
        ({"channel_max": 65_535}, None, 530),
        ({}, AccessRefusedError("login refused: user 'guest' can only connect via localhost"), 403),
    ],
)
def test_what_the_primary_does_not_grant_is_told_to_the_client(
    core: Core, changes: dict[str, Any], user: Any, code: int
) -> None:
    core.broker.reception.admit()
    client = taken_over(core, user, **changes)
    assert client.events()[-1][2][0] == code
