"""Driver for asyncio, on aio-pika.

aio-pika's robust connection was refused: it replays publishes and acknowledgements, and an undecided commit must never be
replayed by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection

from understudy.client.connection.aio_pika_channel import AioPikaChannel
from understudy.client.connection.aio_pika_errors import closed, errors_as_ours
from understudy.client.connection.core.addresses import Brokers, ListedBrokers, named, with_option
from understudy.client.connection.core.numbers import ChannelNumbers
from understudy.client.connection.core.port import CONNECT_TIMEOUT_S, HEARTBEAT_S, capabilities_of
from understudy.client.connection.odd_values import read_odd_values

read_odd_values()

_log = logging.getLogger("understudy.client")


class AioPikaDriver:
    """See `understudy.client.connection.core.port.Driver`.

    Args:
        name: shown to brokers as connection_name.
        log: for its lines.
    """

    def __init__(self, brokers: Brokers, name: str, log: logging.Logger = _log) -> None:
        self._brokers = brokers
        self._name = name
        self._log = log
        self._warned = ""

    async def find(self) -> list[str]:
        if isinstance(self._brokers, ListedBrokers):
            return list(self._brokers.urls)
        from understudy.client.connection.zookeeper import find_brokers  # noqa: PLC0415  # an extra

        return await asyncio.to_thread(find_brokers, self._brokers)

    async def open(self, url: str) -> AioPikaLink:
        async with errors_as_ours(CONNECT_TIMEOUT_S, opening=True):
            opened = await aio_pika.connect(
                with_option(url, "heartbeat", str(HEARTBEAT_S)),
                timeout=CONNECT_TIMEOUT_S,
                client_properties={"connection_name": self._name},
            )
        self._warned = ""
        self._log.info("%s is connected to %s", self._name, named(url))
        return AioPikaLink(opened)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def now_s(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()  # noqa: S311  # spreads clients, hides nothing

    def token(self) -> str:
        return uuid.uuid4().hex

    def warn(self, text: str) -> None:
        if text != self._warned:  # once for all tasks that wait
            self._warned = text
            self._log.warning("%s: %s", self._name, text)


class AioPikaLink:
    """See `understudy.client.connection.core.port.Link`."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        transport: Any = connection.transport
        self._wire = transport.connection
        self._numbers = ChannelNumbers(self._wire.connection_tune.channel_max)
        self._opening: set[int] = set()
        self.capabilities = capabilities_of(self._wire.server_properties)

    @property
    def lives(self) -> bool:
        return not self._connection.is_closed

    async def channel(self, *, spare: bool = False) -> AioPikaChannel:
        number = self._numbers.free(self._wire.channels, self._opening, spare=spare)
        self._opening.add(number)
        try:
            async with errors_as_ours():
                opened = await self._wire.channel(number, publisher_confirms=False, on_return_raises=False)
                return AioPikaChannel(self, opened)
        finally:
            self._opening.discard(number)

    async def close(self) -> None:
        await closed(self._connection)
