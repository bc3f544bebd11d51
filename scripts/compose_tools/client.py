"""Client: one that knows all addresses, and commits one transaction after another at whichever broker lets it in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

QUEUES: Final = ("left", "right")
CONNECT_TIMEOUT_S: Final = 0.2
"""For each address: the host of a killed container may say nothing, so a client tries the next broker after so long."""
ANSWER_TIMEOUT_S: Final = 2.0
HEARTBEAT_S: Final = 2
"""A connection to a host that is cut off is silent: without heartbeats the client would wait for its answer for ever."""


class Client:
    """One connection at a time.

    Args:
        hosts: the brokers' addresses.
        user, password: who it is.

    Attributes:
        committed: names of the transactions that were told committed.
    """

    def __init__(self, hosts: Sequence[str], user: str, password: str) -> None:
        self._hosts = list(hosts)
        self._credentials = pika.PlainCredentials(user, password)
        self._next = 0
        self._channel: BlockingChannel | None = None
        self._number = 0
        self.committed: list[str] = []

    def commit(self, deadline_s: float) -> float:
        """Commit one new transaction over two queues, wherever that works; returns when (monotonic) it was told committed.

        Raises:
            TimeoutError: that did not work until ``deadline_s``.
        """
        while time.monotonic() < deadline_s:
            name = f"tx-{self._number}"
            self._number += 1
            try:
                channel = self._channel or self._connect()
                for queue in QUEUES:
                    channel.basic_publish("", queue, name.encode(), pika.BasicProperties(delivery_mode=2))
                channel.tx_commit()
            except (AMQPError, AMQPConnectorException, OSError):
                self._channel = None
                time.sleep(0.01)
            else:
                self.committed.append(name)
                return time.monotonic()
        raise TimeoutError("no broker has committed a transaction")

    def drain(self, deadline_s: float) -> dict[str, list[str]]:
        """Take everything out of both queues.

        Raises:
            TimeoutError: no broker lets this client in until ``deadline_s``.
        """
        channel = self._connect_anew(deadline_s)
        found: dict[str, list[str]] = {}
        for queue in QUEUES:
            found[queue] = []
            while True:
                method, _, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    break
                found[queue].append(body.decode())
        return found

    def _connect_anew(self, deadline_s: float) -> BlockingChannel:
        """A connection that stood idle, and sent no heartbeats, may have been closed by its broker."""
        while time.monotonic() < deadline_s:
            try:
                return self._connect()
            except (AMQPError, AMQPConnectorException, OSError):
                time.sleep(0.01)
        raise TimeoutError("no broker lets a client in")

    def _connect(self) -> BlockingChannel:
        host = self._hosts[self._next]
        self._next = (self._next + 1) % len(self._hosts)
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                host,
                credentials=self._credentials,
                heartbeat=HEARTBEAT_S,
                socket_timeout=CONNECT_TIMEOUT_S,
                stack_timeout=ANSWER_TIMEOUT_S,
                blocked_connection_timeout=ANSWER_TIMEOUT_S,
            )
        )
        channel = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
        channel.tx_select()
        self._channel = channel
        return channel
