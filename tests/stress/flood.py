"""Clients that leave a broker's loop no pause: each always has a round of transactions under way.

One thread serves all of them, and no library stands between: what is sent is made once, so nearly all of the work is the broker's.
"""

from __future__ import annotations

import selectors
import struct
import time

import pika

from tests.stress.clients import PERSISTENT, connect_to, socket_of

CLIENTS = 32
CHANNELS = 8
"""Of a client: a channel has one commit under way. A round is a transaction on each, and a purge, so that nothing piles up."""
BODY = b"x" * 1_024
COMMIT_OK, PURGE_OK = (90, 21), (50, 31)
FRAME_HEAD = struct.Struct(">BHL")
METHOD = struct.Struct(">HH")
SILENCE_S = 30.0


class FloodClient:
    """One client, with a durable queue of its own.

    Attributes:
        committed: transactions that were answered.
        under_way: a round was sent and is not answered.
    """

    def __init__(self, port: int, queue: str) -> None:
        self._connection = connect_to(port)  # kept: it closes its socket when it goes
        purging = self._connection.channel()
        purging.queue_declare(queue, durable=True)
        committing = [self._connection.channel() for _ in range(CHANNELS)]
        for channel in committing:
            channel.tx_select()
        self.socket = socket_of(self._connection)
        self.socket.settimeout(SILENCE_S)
        transactions = b"".join(_transaction(queue, channel.channel_number) for channel in committing)
        self._round = transactions + _purge(queue, purging.channel_number)
        self._received = b""
        self._answers = 0
        self.committed = 0

    @property
    def under_way(self) -> bool:
        return self._answers > 0

    def begin(self) -> None:
        self._answers = CHANNELS + 1
        self.socket.sendall(self._round)

    def take(self) -> None:
        """Read what has come."""
        received = self.socket.recv(65_536)
        assert received, "the broker has closed the connection"
        self._received += received
        while len(self._received) >= FRAME_HEAD.size:
            _, _, size = FRAME_HEAD.unpack_from(self._received)
            if len(self._received) < FRAME_HEAD.size + size + 1:
                break
            method = METHOD.unpack_from(self._received, FRAME_HEAD.size)
            assert method in (COMMIT_OK, PURGE_OK), self._received[:300]
            self.committed += method == COMMIT_OK
            self._answers -= 1
            self._received = self._received[FRAME_HEAD.size + size + 1 :]


def _transaction(queue: str, channel: int) -> bytes:
    return b"".join(
        frame.marshal()
        for frame in (
            pika.frame.Method(channel, pika.spec.Basic.Publish(exchange="", routing_key=queue)),
            pika.frame.Header(channel, len(BODY), pika.BasicProperties(delivery_mode=PERSISTENT)),
            pika.frame.Body(channel, BODY),
            pika.frame.Method(channel, pika.spec.Tx.Commit()),
        )
    )


def _purge(queue: str, channel: int) -> bytes:
    frame: bytes = pika.frame.Method(channel, pika.spec.Queue.Purge(queue=queue)).marshal()
    return frame


def flood(port: int, seconds: float, clients: int = CLIENTS) -> int:
    """Keep the broker busy for so long; returns how many transactions it has committed. All are answered at the end."""
    crowd = [FloodClient(port, f"flood.{number}") for number in range(clients)]
    until_s = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for each in crowd:
            selector.register(each.socket, selectors.EVENT_READ, each)
            each.begin()
        while any(each.under_way for each in crowd):
            ready = selector.select(SILENCE_S)
            assert ready, f"the broker has answered nothing for {SILENCE_S} s"
            for key, _ in ready:
                key.data.take()
                if not key.data.under_way and time.monotonic() < until_s:
                    key.data.begin()
    for each in crowd:
        each.socket.close()
    return sum(each.committed for each in crowd)
