"""Carriage: puts `core.clients.carrying` between the sockets and the dials of one process, and takes clients of other brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from understudy.broker.config import milliseconds
from understudy.broker.core.clients.carrier_header import CarrierHeaderError, decode_header, encode_farewell
from understudy.broker.core.clients.carrying import Carried, Carrying
from understudy.broker.server.sockets.carried_client import CarriedClient, CarrierDial, Farewell
from understudy.broker.server.sockets.client_session import ClientSession

if TYPE_CHECKING:
    from understudy.broker.config import CarryConfig
    from understudy.broker.core.clients.connection import Transport
    from understudy.broker.server.turn.node_driver import NodeDriver

FAREWELL_S: Final = 1.0
"""So long clients that are carried have to take their leave."""
LOOK_S: Final = 0.005


class Carriage:
    """Implements ``core.clients.carrying.CarrierPort``.

    Attributes:
        carrying: decides what becomes of clients.
    """

    def __init__(
        self, driver: NodeDriver, dial: CarrierDial, has_room: Callable[[], bool], config: CarryConfig
    ) -> None:
        self.carrying = Carrying(self, config.connections, milliseconds(config.wait_s))
        self._driver = driver
        self._dial = dial
        self._has_room = has_room

    def leave(self, transport: Transport, carried: Carried) -> CarriedClient:
        stream = cast("ClientSession", transport).leave()
        client = CarriedClient(stream, carried, self.carrying, self._dial_for, self._take_back, self._go_on)
        stream.set_protocol(client)
        return client

    def look(self, now_ms: int) -> None:
        """Time passes."""
        self.carrying.look(self._driver.broker.reception, now_ms)

    def _dial_for(self, broker: str, address: str, header: bytes, end: CarriedClient | Farewell) -> Callable[[], None]:
        """Dial, if the descriptors that the broker itself needs are not touched by it."""
        if self._has_room():
            return self._dial(broker, address, header, end)
        refused = asyncio.get_running_loop().call_soon(lambda: end.failed("file descriptors run short", final=True))
        return refused.cancel

    def _go_on(self) -> None:
        self.carrying.go_on(self._driver.broker.reception)

    def _take_back(self, transport: asyncio.Transport, carried: Carried) -> None:
        ClientSession(self._driver).take_over(transport, carried.client, "", carried.rest)

    async def farewell(self, broker: str) -> None:
        """The process stops: refuse clients that wait, have those that are carried told why, and end what is left."""
        carrying = self.carrying
        carrying.stop()
        text = f"broker {broker}, which carries this connection, is shutting down"
        for to in carrying.destinations():
            self._dial(to.broker, to.address, encode_farewell(text), Farewell())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while carrying.count:  # noqa: ASYNC110  # a stop waits like this for everybody
                    await asyncio.sleep(LOOK_S)
        carrying.cut_all()


def take_carried(
    driver: NodeDriver, carrier: str, octets: bytes, has_room: Callable[[], bool]
) -> str | Callable[[asyncio.Transport], None]:
    """Judge a client that ``carrier`` carries here.

    Returns:
        Why it is not served, or what its connection is given to.
    """
    try:
        client = decode_header(octets)
    except CarrierHeaderError as error:
        return str(error)
    if isinstance(client, str):
        _end_clients(driver, carrier, client)
        return lambda transport: transport.close()
    broker = driver.broker
    if broker.reception.refusal:
        return f"this broker does not serve clients: {broker.reception.refusal}"
    if driver.stopping:
        return "this broker is shutting down"
    if not has_room():
        return "file descriptors run short"
    return lambda transport: ClientSession(driver).take_over(transport, client, carrier, b"")


def _end_clients(driver: NodeDriver, carrier: str, text: str) -> None:
    """A carrier stops: those whom it carries are told so while it still can pass it on."""
    for session in list(driver.sessions):
        if session.connection.carried_by == carrier:
            session.connection.force_close("CONNECTION_FORCED", text)
    driver.request_turn()
