"""One real core with a journal that syncs when the test says so, and clients that speak frames to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import Event, FrameParser
from understudy.broker.amqp.methods import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    QUEUE_DECLARE,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.coordinators import CoordinatorChoice
from understudy.broker.core.clients.connection import Connection
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.topology.policies import Policies
from understudy.broker.errors import AmqpError
from understudy.broker.log.journal_gate import JournalPort
from understudy.testing.coordinator_kit.kit_client import AnyUser

FRAME_MAX = 131072
PERSISTENT = encode_properties(delivery_mode=2)
CAPABILITIES = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True, "basic.nack": True}}


class HeldJournal:
    """``journal_gate.JournalPort`` that keeps nothing."""

    def append(self, frame: bytes) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


def end_turn(node: BrokerNode, flush: bool = False) -> bool:
    """A turn, without what a driver writes in between, and those that follow at once. Returns whether something was left."""
    while True:
        node.answer()
        left = node.gather(flush)
        if not node.after_turn():
            node.state.put_off.finish()
            return left


class Core:
    """A standalone broker that serves; time stands still unless a test moves it."""

    def __init__(
        self,
        limits: Limits | None = None,
        journal: JournalPort | None = None,
        coordinator: CoordinatorChoice | None = None,
        policies: Policies | None = None,
        node: BrokerNode | None = None,
    ) -> None:
        """``node``: one that has been recovered, in place of one that ``limits``, ``coordinator`` and ``policies`` describe."""
        self.node = node or BrokerNode("b1", limits or Limits(), bytes, coordinator=coordinator, policies=policies)
        self.node.open(journal or HeldJournal(), 0, 1_700_000_000_000)
        self.users: Any = AnyUser()
        self.known: Any = self.users
        self.turn()
        self.sync()
        self.broker = self.node.broker
        assert self.broker.role.answering

    def turn(self) -> None:
        """End a turn; what it closed is not on the disk yet."""
        end_turn(self.node, flush=True)

    def sync(self) -> None:
        """Everything that was written is on the disk, and what follows from it is done."""
        self.turn()
        self.node.durable_to(self.node.gate.appended)
        self.turn()

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes while the broker runs: it ticks meanwhile. A single tick after so long is a pause of the process."""
        broker = self.broker
        end_ms = broker.clock.now_ms + duration_ms
        while broker.clock.now_ms < end_ms:
            now_ms = min(end_ms, broker.clock.now_ms + 500)
            self.node.tick(now_ms, broker.clock.wall_ms + now_ms - broker.clock.now_ms)

    def client(self, channels: int = 1) -> Client:
        """A client that has got through the handshake and has opened channels 1 to ``channels``."""
        client = Client(self)
        client.send(
            PROTOCOL_HEADER,
            encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US"),
            encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0),
            encode_method(0, CONNECTION_OPEN, "/"),
            *(encode_method(number, CHANNEL_OPEN) for number in range(1, channels + 1)),
        )
        assert client.heard()[-1] == "channel.open-ok"
        return client

    def queue(
        self, client: Client, name: str, arguments: dict[str, Any] | None = None, *, exclusive: bool = False
    ) -> None:
        """Declare a durable queue and wait for it."""
        client.method(QUEUE_DECLARE, name, False, True, exclusive, False, False, arguments or {})
        self.sync()
        assert client.heard() == ["queue.declare-ok"]


class LateUsers:
    """Implements ``login.Authenticator``; answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.answer: Callable[[Any], None] = print
        self.wanted: Callable[[], bool] = bool

    def check(
        self, name: str, password: str, loopback: bool, answer: Callable[[Any], None], wanted: Callable[[], bool]
    ) -> None:
        self.asked.append((name, password, loopback))
        self.answer, self.wanted = answer, wanted

    def certified(self, name: Any, loopback: bool) -> Any:
        """At once: the error that is given as name, or everybody's friend."""
        if isinstance(name, AmqpError):
            return name
        self.asked.append((name, "", loopback))
        return AnyUser()


class Client:
    """One connection; implements the core's ``Transport``."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.wakes = 0
        self.connection = Connection(core.node.broker, core.users, self, "test", True)
        self._parser = FrameParser(0)

    def wake(self) -> None:
        self.wakes += 1

    def paused(self) -> bool:
        """True if the core wants this connection not to be read."""
        return self.connection.paused

    def send(self, *frames: bytes) -> None:
        """One read brings all these frames; then the turn ends, without a sync."""
        self.connection.receive(b"".join(frames))
        self.core.turn()

    def method(self, key: int, *args: Any, channel: int = 1) -> None:
        self.send(encode_method(channel, key, *args))

    def publish(self, queue: str, body: bytes, *, channel: int = 1) -> None:
        self.send(publish(queue, body, channel=channel))

    def events(self) -> list[Event]:
        """Parsed output of the broker since the last call."""
        return self._parser.feed(b"".join(self.connection.take_output()))

    def heard(self) -> list[str]:
        """The same, as names of methods."""
        return [method_name(event[1]) for event in self.events()]


def publish(queue: str, body: bytes, *, channel: int = 1) -> bytes:
    """basic.publish of a persistent message through the default exchange."""
    return publish_frames(channel, "", queue, PERSISTENT, body, FRAME_MAX)
