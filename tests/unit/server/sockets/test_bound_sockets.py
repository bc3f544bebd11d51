"""Listening on a name: the addresses that this machine has, all on one port."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

import pytest

from tests.unit.replicator.direct_driver_kit import Owner
from understudy.broker.server.sockets.bound_sockets import bound_sockets
from understudy.broker.server.sockets.listener import Listener, PortError

pytestmark = pytest.mark.integration  # loopback sockets

ELSEWHERE = ("192.0.2.1", "192.0.2.2")
NO_FAMILY = "192.0.2.3"


class PickySocket(socket.socket):
    """Has only the addresses of loopback. A kernel may be told to bind any, so the test says it."""

    def bind(self, address: Any) -> None:
        if address[0] in ELSEWHERE:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if address[0] == NO_FAMILY:  # real ones know it earlier, of the family
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        super().bind(address)


@pytest.fixture
def stands_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that every name stands for, in order; to be filled by the test."""
    addresses: list[str] = []

    def found(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(socket, "socket", PickySocket)
    return addresses


def connect(port: int) -> None:
    """Raises if nobody listens on loopback."""
    with socket.socket() as client:
        client.connect(("127.0.0.1", port))


@pytest.mark.parametrize(
    "addresses", [[ELSEWHERE[0], "127.0.0.1"], ["127.0.0.1", ELSEWHERE[0]], [NO_FAMILY, ELSEWHERE[1], "127.0.0.1"]]
)
def test_an_address_that_is_not_this_machines_is_left_out(stands_for: list[str], addresses: list[str]) -> None:
    """Such an address used to stop the start: localhost is ::1, too, where IPv6 is switched off."""
    stands_for.extend(addresses)
    listener = Listener("amqp", "localhost", 0)
    connect(listener.port)
    listener.abandon()


def test_if_none_is_left_it_says_which_there_were(stands_for: list[str]) -> None:
    stands_for.extend(ELSEWHERE)
    with pytest.raises(PortError, match=r"amqp cannot listen on elsewhere:0: .* \(192\.0\.2\.1, 192\.0\.2\.2\)$"):
        Listener("amqp", "elsewhere", 0)


def test_one_that_is_in_use_is_an_error_as_ever(stands_for: list[str]) -> None:
    stands_for.append("127.0.0.1")
    (taken,) = bound_sockets("localhost", 0, 1)
    port = taken.getsockname()[1]
    stands_for.insert(0, "127.0.0.2")
    with pytest.raises(OSError, match="in use"):
        bound_sockets("localhost", port, 1)
    taken.close()
    stands_for.extend(["127.0.0.2", "127.0.0.1"])  # a name may stand for one twice
    both = bound_sockets("localhost", port, 1)
    assert [bound.getsockname() for bound in both] == [("127.0.0.2", port), ("127.0.0.1", port)]
    for bound in both:
        bound.close()


@pytest.mark.asyncio
async def test_so_do_links(stands_for: list[str]) -> None:
    stands_for.extend([ELSEWHERE[0], "127.0.0.1"])
    async with asyncio.TaskGroup() as tasks:
        fabric = Owner("b1", tasks).fabric
        port = await fabric.listen("localhost", 0)
        connect(port)
        fabric.close()
