"""KitClient: one client that speaks frames to the core, with one channel in transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.clients.connection import Connection, Transport
from understudy.broker.core.clients.transacting import TX_NAME_HEADER
from understudy.broker.core.life.node import BrokerNode

FRAME_MAX: Final = 131072
CHANNEL: Final = 1
PLAIN_CHANNEL: Final = 2


class Answer(Enum):
    """The outcome of a transaction as its client knows it."""

    NONE = "no answer"
    COMMITTED = "tx.commit-ok"
    ROLLED_BACK = "channel.close"


class AnyUser:
    """The users of the kit: each name and each password is good, and may do everything."""

    name = "guest"

    def check(
        self,
        name: str,
        password: str,
        peer_is_loopback: bool,
        answer: Callable[[Any], None],
        wanted: Callable[[], bool],
    ) -> None:
        """Implements ``core.clients.login.Authenticator``."""
        answer(self)

    def require_vhost(self, vhost: str) -> None:
        """Implements ``security.User``."""

    def require(self, vhost: str, action: str, kind: str, resource: str) -> None:
        """Implements ``security.User``."""

    def may(self, vhost: str, action: str, resource: str) -> bool:
        """Implements ``security.User``."""
        return True


USERS: Final[Any] = AnyUser()


def connect(node: BrokerNode, transport: Transport, name: str) -> Connection:
    """A connection that has got through the handshake."""
    connection = Connection(node.broker, USERS, transport, name, True)
    connection.receive(
        PROTOCOL_HEADER
        + encode_method(0, CONNECTION_START_OK, {}, "PLAIN", b"\0guest\0guest", "en_US")
        + encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0)
        + encode_method(0, CONNECTION_OPEN, "/")
    )
    return connection


class KitTransaction:
    """One transaction as its client sees it.

    Attributes:
        name: given by the client; no other transaction of the run has it.
        bodies: what it brings to each queue, in order.
        asked: True if the client has sent ``tx.commit``.
        answers: how many answers to that have come.
        answer: the first of them.
        reply_code, reason: of ``channel.close``, if it was that.
        answered_ms: the broker's clock at the first answer.
    """

    def __init__(self, name: str, bodies: dict[str, list[bytes]]) -> None:
        self.name = name
        self.bodies = bodies
        self.asked = False
        self.asked_ms = self.answered_ms = 0
        self.answers = 0
        self.answer = Answer.NONE
        self.reply_code = 0
        self.reason = ""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.answer.value}>"


class KitClient:
    """One connection; implements the core's ``Transport``.

    The client writes at once, and reads what the broker has said when :meth:`read` is called.
    """

    def __init__(self, node: BrokerNode, name: str) -> None:
        self.name = name
        self.connection = connect(node, self, name)
        self.transaction: KitTransaction | None = None
        self._node = node
        self._parser = FrameParser(0)
        self._has_plain_channel = False
        self._open_channel()

    def wake(self) -> None:
        """There is output; the kit asks for it at its own time."""

    def _open_channel(self) -> None:
        self.connection.receive(encode_method(CHANNEL, CHANNEL_OPEN) + encode_method(CHANNEL, TX_SELECT))

    def declare(self, queue: str) -> None:
        """Declare a durable queue."""
        self.connection.receive(encode_method(CHANNEL, QUEUE_DECLARE, queue, False, True, False, False, False, {}))

    def delete_if_empty(self, queue: str) -> None:
        """Ask for a deletion that is refused if messages come: the broker has to know what the commits of this turn bring."""
        self.connection.receive(encode_method(CHANNEL, QUEUE_DELETE, queue, False, True, False))

    def publish_outside(self, name: str, queue: str) -> None:
        """Publish a message that is part of no transaction."""
        if not self._has_plain_channel:
            self._has_plain_channel = True
            self.connection.receive(encode_method(PLAIN_CHANNEL, CHANNEL_OPEN))
        properties, body = encode_properties(delivery_mode=2), f"{name}/{queue}/0".encode()
        self.connection.receive(publish_frames(PLAIN_CHANNEL, "", queue, properties, body, FRAME_MAX))

    def publish(self, name: str, messages: Mapping[str, int], headers: Mapping[str, Any]) -> KitTransaction:
        """Begin a transaction: publish so many messages to each queue.

        Args:
            name: of the transaction; the log tells transactions apart by it.
            messages: queue to number of messages.
            headers: of each message, beside the name of the transaction.
        """
        assert self.transaction is None or self.transaction.answer is not Answer.NONE
        bodies = {queue: [f"{name}/{queue}/{i}".encode() for i in range(count)] for queue, count in messages.items()}
        properties = encode_properties(delivery_mode=2, headers={**headers, TX_NAME_HEADER: name})
        self.transaction = KitTransaction(name, bodies)
        self.connection.receive(
            b"".join(
                publish_frames(CHANNEL, "", queue, properties, body, FRAME_MAX)
                for queue, each in bodies.items()
                for body in each
            )
        )
        return self.transaction

    def commit(self) -> None:
        """Send ``tx.commit``."""
        assert self.transaction is not None
        self.transaction.asked = True
        self.transaction.asked_ms = self._node.broker.clock.now_ms
        self.connection.receive(encode_method(CHANNEL, TX_COMMIT))

    def read(self) -> None:
        """Take in what the broker has said; after ``channel.close`` the channel is opened again."""
        for event in self._parser.feed(b"".join(self.connection.take_output())):
            key = event[1]
            if key == TX_COMMIT_OK:
                self._answered(Answer.COMMITTED)
            elif key == CHANNEL_CLOSE:
                self._answered(Answer.ROLLED_BACK, *event[2][:2])
                self.connection.receive(encode_method(CHANNEL, CHANNEL_CLOSE_OK))
                self._open_channel()

    def _answered(self, answer: Answer, reply_code: int = 0, reason: str = "") -> None:
        tx = self.transaction
        if tx is None:
            return
        tx.answers += 1
        if tx.answers == 1:
            tx.answer, tx.reply_code, tx.reason = answer, reply_code, reason
            tx.answered_ms = self._node.broker.clock.now_ms
