"""Simulated AMQP clients: real frames over a simulated socket, written as generators.

A client's program says ``event = yield from client.call(frames, WANTED)`` and goes on when an answer has come; a lost
connection raises :class:`Lost` at that place, a closed channel or connection :class:`Closed`.

What a broker says is parsed when it is *sent*, so that checkers can compare it with what the brokers hold at that moment,
and given to the client when it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulator.story import describe_event
from tests.simulator.world import MS, Place, World
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import Event, FrameParser
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_RECOVER_OK,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    CONNECTION_UNBLOCKED,
    encode_method,
)
from understudy.broker.core.clients.connection import Connection

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

Program = Generator[tuple[str, Any], Any, Any]
FRAME_MAX = 131072
ANSWER_TIMEOUT_MS = 20_000
CAPABILITIES = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True, "basic.nack": True}}
_NOTED = frozenset(
    (
        BASIC_ACK,
        BASIC_CANCEL,
        BASIC_DELIVER,
        BASIC_NACK,
        BASIC_RECOVER_OK,
        BASIC_RETURN,
        CHANNEL_CLOSE,
        CONNECTION_BLOCKED,
        CONNECTION_CLOSE,
        CONNECTION_UNBLOCKED,
    )
)
"""What means something to every client, whatever its program waits for."""
LOGIN = encode_method(0, CONNECTION_START_OK, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US")
TUNE = encode_method(0, CONNECTION_TUNE_OK, 2047, FRAME_MAX, 0)
OPEN = encode_method(0, CONNECTION_OPEN, "/")


_NOTHING: frozenset[int] = frozenset()
_STARTS: dict[bytes, list[Event]] = {}


class Lost(Exception):  # noqa: N818  # what happened, not whose mistake it was
    """The connection is gone: what was not answered is unknown."""


class Closed(Exception):  # noqa: N818
    """The broker closed the channel or the connection, with a code and a text."""

    def __init__(self, code: int, text: str, connection: bool) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.connection = connection


def _untold(_: bytes) -> str:
    """Empty text: what a broker sends to a client is told in the story when it arrives."""
    return ""


class Overhearer(Protocol):
    """The listener that is told what brokers say to clients, at the moment of saying it."""

    def said(self, session: Session, event: Event) -> None:
        """``session.node`` sends ``event`` to ``session.client``."""


class Session:
    """One connection between a client and a broker: the broker's end of it, and the wire between.

    Attributes:
        awake: the core has something to write, to read on or to end.
        unread: what the client has sent and the core does not take yet.
    """

    def __init__(self, client: SimClient, node: SimNode) -> None:
        self.client = client
        self.node = node
        self.world = node.world
        self.incarnation = node.incarnation
        self.awake = False
        self.connection = Connection(node.node.broker, node.users, self, client.name, True)
        self.dead = False
        self._broker_to_client = f"{node.name} -> {client.name}"
        self._parser = FrameParser(0)
        self._started = False
        self._to_client_us = 0
        self._to_broker_us = 0
        self.unread: deque[bytes] = deque()
        node.clients.append(self)

    def wake(self) -> None:
        """Asked by the core."""
        self.awake = True
        self.node.turns.wake_clients()

    def flush(self) -> None:
        """The broker's turn has ended: its output goes on its way, and it may read again."""
        self.awake = False
        output = self.connection.take_output()
        if output:
            self._send_to_client(b"".join(output))
        if self.connection.finished and not self.dead:
            self.reset("closed by the broker")
        elif self.unread and not self.connection.paused:
            self.world.at(0, self._read_on)

    def _delay_us(self) -> int:
        return self.client.rng.randrange(50, 800)

    def _send_to_client(self, data: bytes) -> None:
        world = self.world
        world.note_bytes(self._broker_to_client, data, _untold)
        events = self._parser.feed(data) if self._started else self._start_events(data)
        said = self.client.overhearer.said
        for event in events:
            said(self, event)
        arrival = max(self._to_client_us, world.now_us + self._delay_us())
        self._to_client_us = arrival
        world.at(arrival - world.now_us, self._client_receives, events)

    def _start_events(self, data: bytes) -> list[Event]:
        """connection.start, which comes first and is the same on every connection, is parsed once."""
        self._started = True
        events = _STARTS.get(data)
        if events is None:
            events = self._parser.feed(data)
            if not self._parser.buffered_bytes:
                _STARTS[data] = events
        return events

    def _client_receives(self, events: list[Event]) -> None:
        if self.client.session is self:
            self.client.received(events)

    def send(self, data: bytes) -> None:
        """The client's bytes go on their way."""
        world = self.world
        arrival = max(self._to_broker_us, world.now_us + self._delay_us())
        self._to_broker_us = arrival
        world.at(arrival - world.now_us, self._broker_receives, data)

    def _broker_receives(self, data: bytes) -> None:
        if self.dead or self.node.incarnation != self.incarnation:
            return
        if self.unread or self.connection.paused:
            self.unread.append(data)
            self.node.turns.woken = True
        else:
            self.node.run(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self.dead:
            self.connection.receive(data)

    def _read_on(self) -> None:
        if self.unread and not self.dead and not self.connection.paused and self.node.incarnation == self.incarnation:
            self.node.run(self._receive, self.unread.popleft())

    def congest(self, congested: bool) -> None:
        """The client takes what it is sent slowly, or quickly again; the driver tells the core so."""
        if not self.dead and self.node.incarnation == self.incarnation:
            self.node.run(lambda: self.connection.set_congested(congested))

    def reset(self, reason: str) -> None:
        """The connection is gone; both sides hear of it."""
        if self.dead:
            return
        self.dead = True
        world = self.world
        arrival = max(self._to_client_us, world.now_us + self._delay_us())
        world.at(arrival - world.now_us, self._client_loses, reason)
        if self in self.node.clients:
            self.node.clients.remove(self)
        if self.node.up and self.node.incarnation == self.incarnation:
            self.node.run(lambda: self.connection.lost(reason))

    def _client_loses(self, reason: str) -> None:
        if self.client.session is self:
            self.client.lost(reason)


class SimClient:
    """One client process: runs one program over one connection at a time.

    Attributes:
        deliveries: what consumers were sent and the program has not taken yet.
        newest_tag: of what was delivered, or got, on this connection (programs use one channel).
        recovered_tag: what came before the last basic.recover-ok, up to this tag, is not held any more.
        returned: what came back as unroutable on this connection.
        cancelled: tags of consumers that the broker has cancelled on this connection.
        on_confirm: told of acks and nacks of the broker (tag, multiple, acknowledged).
        expected: notes of the program for checkers: what it waits to be told.
    """

    def __init__(self, world: World, name: str, nodes: list[SimNode], overhearer: Overhearer) -> None:
        self.world = world
        self.name = name
        self.nodes = nodes
        self.overhearer = overhearer
        self.rng = world.stream(f"client {name}")
        self.session: Session | None = None
        self.on_confirm: Callable[[int, bool, bool], None] | None = None
        self.deliveries: deque[Any] = deque()
        self.newest_tag = self.recovered_tag = 0
        self.returned: list[Any] = []
        self.cancelled: list[str] = []
        self.finished = False
        self.expected: Any = None
        self._program: Program | None = None
        self._wanted: frozenset[int] = frozenset()
        self._next_node = self.rng.randrange(len(nodes))
        self._waiting = 0
        self._last_wait: tuple[Place, int] = ((0, 0), 0)
        self._watched = False
        self._refusals = 0
        self._corked: list[bytes] | None = None

    # -- running the program --------------------------------------------------------------------------------------------

    def run(self, program: Program, delay_us: int = 0) -> None:
        self._program = program
        self.world.at(delay_us, self._step, None, None)

    def _step(self, value: Any, error: Exception | None) -> None:
        assert self._program is not None
        self._wanted = _NOTHING
        self._waiting += 1
        try:
            kind, argument = self._program.throw(error) if error is not None else self._program.send(value)
        except StopIteration:
            self.finished = True
            self.disconnect("the client has finished")
            return
        if kind == "sleep":
            self.world.at(argument, self._woken, self._waiting)
        elif kind == "doze":
            us, self._wanted = argument
            self.world.at(us, self._woken, self._waiting)
        elif kind != "park":  # a parked program waits for nothing but wake()
            self._wanted = argument
            self._times_out(self._waiting)

    def _woken(self, waiting: int) -> None:
        if waiting == self._waiting:
            self._step(None, None)

    def _times_out(self, waiting: int) -> None:
        """The wait times out unless an answer comes. Nearly always one does: of all those times only one is in the queue."""
        self._last_wait = (self.world.place(ANSWER_TIMEOUT_MS * MS), waiting)
        if not self._watched:
            self._watched = True
            self.world.at_place(self._last_wait[0], self._timed_out, waiting)

    def _timed_out(self, waiting: int) -> None:
        """No answer for long: the client gives the connection up, as its heartbeats would."""
        self._watched = False
        place, last = self._last_wait
        if last != waiting:
            if last == self._waiting:
                self._watched = True
                self.world.at_place(place, self._timed_out, last)
        elif waiting == self._waiting and self._wanted:
            self.disconnect("the client timed out")
            self._step(None, Lost("timed out"))

    # -- the wire -------------------------------------------------------------------------------------------------------

    def received(self, events: list[Event]) -> None:
        session = self.session
        for event in events:
            if self.session is not session:
                return  # the program has given the connection up meanwhile
            if self.world.story is not None:
                self._tell(event)
            if not self._take(event):
                return

    def _tell(self, event: Event) -> None:
        words = describe_event(event)
        if words:
            self.world.tell(f"-> {self.name}", words)

    def _take(self, event: Event) -> bool:
        """Take one event; False if none after it counts."""
        key, args = event[1], event[2]
        if key not in _NOTED:
            pass
        elif key == BASIC_DELIVER:
            self.deliveries.append(event)
            self.newest_tag = args[1]
        elif key in (BASIC_ACK, BASIC_NACK):
            if self.on_confirm is not None:
                self.on_confirm(args[0], args[1], key == BASIC_ACK)
        elif key == BASIC_RETURN:
            self.returned.append(event)
        elif key == BASIC_RECOVER_OK:
            self.recovered_tag = self.newest_tag
        elif key == CHANNEL_CLOSE:
            self.write(encode_method(event[0], CHANNEL_CLOSE_OK))
            return self._closed(args, False)
        elif key == CONNECTION_CLOSE:
            self.write(encode_method(0, CONNECTION_CLOSE_OK))
            self.session = None
            return self._closed(args, True)
        elif key in (CONNECTION_BLOCKED, CONNECTION_UNBLOCKED):
            return True
        elif key == BASIC_CANCEL:
            self.cancelled.append(args[0])
            return True
        if key in self._wanted:
            self._step(event, None)
        return True

    def _closed(self, args: tuple[Any, ...], connection: bool) -> bool:
        self.world.note(self.name, f"{'connection' if connection else 'channel'} closed {args[0]} {args[1]}")
        if self._wanted:
            self._step(None, Closed(args[0], args[1], connection))
        elif not connection:
            self.disconnect("the channel was closed")
        return False

    def lost(self, reason: str) -> None:
        self.session = None
        if self._wanted:
            self._step(None, Lost(reason))

    def write(self, data: bytes) -> None:
        if self._corked is not None:
            self._corked.append(data)
        elif data and self.session is not None:
            self.session.send(data)

    @contextmanager
    def corked(self) -> Iterator[None]:
        """Octets written meanwhile go out as one piece."""
        pieces: list[bytes] = []
        self._corked = pieces
        try:
            yield
        finally:
            self._corked = None
            self.write(b"".join(pieces))

    # -- for programs ---------------------------------------------------------------------------------------------------

    def sleep(self, us: int) -> Program:
        yield ("sleep", us)

    def park(self) -> Program:
        """Rest until :meth:`wake`: an idle client costs no events."""
        yield ("park", None)

    def wake(self, us: int) -> None:
        """End a program's :meth:`park` in ``us`` microseconds."""
        self.world.at(us, self._woken, self._waiting)

    def pause(self, least_ms: int, most_ms: int) -> Program:
        """Sleep for a while by chance."""
        yield ("sleep", self.rng.randrange(least_ms * MS, most_ms * MS + 1))

    def doze(self, most_ms: int, *wanted: int) -> Program:
        """Sleep until one of the wanted methods comes, at most so long; the event, or None."""
        if self.session is None:
            raise Lost("no connection")
        return (yield ("doze", (self.rng.randrange(most_ms * MS // 2, most_ms * MS + 1), frozenset(wanted))))

    def call(self, frames: bytes, *wanted: int) -> Program:
        """Send, and wait for one of the wanted methods."""
        if self.session is None:
            raise Lost("no connection")
        self.write(frames)
        return (yield ("call", frozenset(wanted)))

    def wait(self, *wanted: int) -> Program:
        """Wait for one of the wanted methods."""
        return (yield from self.call(b"", *wanted))

    def connected(self) -> bool:
        return self.session is not None

    def connect(self, channels: int = 1) -> Program:
        """Try broker after broker until one lets us in; returns with channels 1 to ``channels`` open."""
        while True:
            self._next_node = (self._next_node + 1) % len(self.nodes)
            node = self.nodes[self._next_node]
            if self._refusals >= len(self.nodes):
                yield from self.pause(20, 40 + min(self._refusals * 10, 200))
            else:
                yield from self.pause(1, 5)
            if not node.up or node.paused:
                self._refusals += 1
                continue
            self.deliveries.clear()
            self.newest_tag = self.recovered_tag = 0
            self.returned.clear()
            self.cancelled.clear()
            self.session = Session(self, node)
            try:
                yield from self.call(PROTOCOL_HEADER, CONNECTION_START)
                yield from self.call(LOGIN, CONNECTION_TUNE)
                yield from self.call(TUNE + OPEN, CONNECTION_OPEN_OK)
                for number in range(1, channels + 1):
                    yield from self.call(encode_method(number, CHANNEL_OPEN), CHANNEL_OPEN_OK)
            except (Lost, Closed):
                self._refusals += 1
                self.disconnect("refused")
            else:
                self._refusals = 0
                return

    def disconnect(self, reason: str) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.reset(reason)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        self.write(publish_frames(1, exchange, routing_key, properties, body, FRAME_MAX, mandatory, immediate))
