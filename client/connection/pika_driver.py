"""Driver for threads, on pika."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid

import pika

from understudy.client.connection.core.addresses import Brokers, ListedBrokers, named, with_option
from understudy.client.connection.core.port import CONNECT_TIMEOUT_S, HEARTBEAT_S
from understudy.client.connection.pika_link import PikaLink

_log = logging.getLogger("understudy.client")
logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells each broken connection in twenty lines


class PikaDriver:
    """See `understudy.client.connection.core.port.Driver`.

    Args:
        name: shown to brokers as connection_name.
    """

    def __init__(self, brokers: Brokers, name: str) -> None:
        self._brokers = brokers
        self._name = name

    def find(self) -> list[str]:
        if isinstance(self._brokers, ListedBrokers):
            return list(self._brokers.urls)
        from understudy.client.connection.zookeeper import find_brokers  # noqa: PLC0415  # an extra

        return find_brokers(self._brokers)

    def open(self, url: str) -> PikaLink:
        parameters = pika.URLParameters(with_option(url, "heartbeat", str(HEARTBEAT_S)))
        parameters.client_properties = {"connection_name": self._name}
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = CONNECT_TIMEOUT_S
        link = PikaLink(parameters)
        _log.info("%s is connected to %s", self._name, named(url))
        return link

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def now_s(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()  # noqa: S311  # spreads clients, hides nothing

    def token(self) -> str:
        return uuid.uuid4().hex

    def warn(self, text: str) -> None:
        _log.warning("%s: %s", self._name, text)
