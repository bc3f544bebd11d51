"""One client connection: bytes in, bytes out.

The driver feeds :meth:`Connection.receive` and writes what :meth:`take_output` gives. The life of a connection is a line:
header, start, verifying, tune, open, running, closing, closed; a method that comes at another place ends it (503). An error
raised anywhere below becomes ``channel.close`` or ``connection.close`` here and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from understudy.broker.amqp.constants import FRAME_MIN_SIZE, HEARTBEAT, PROTOCOL_HEADER, ReplyCode
from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.amqp.errors import FrameError, ProtocolHeaderError
from understudy.broker.amqp.frames import Event, FrameParser, split_protocol_header
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_PUBLISH,
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
    CONNECTION_UPDATE_SECRET,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    encode_method,
    method_name,
)
from understudy.broker.core.clients.carrier_header import CarrierHeader, after_open
from understudy.broker.core.clients.channel import CLOSE_PATIENCE_MS, Channel
from understudy.broker.core.clients.login import Login, offered
from understudy.broker.core.clients.secret_update import update_secret
from understudy.broker.core.limits import CONNECTIONS, MANY_READS_BYTES
from understudy.broker.errors import (
    AmqpError,
    ChannelErrorHard,
    CommandInvalidError,
    HardError,
    NotAllowedError,
    PreconditionFailedError,
    ResourceErrorHard,
    SoftError,
    cut_text,
)
from understudy.broker.octets.chunks import LARGE_BYTES, flat

if TYPE_CHECKING:
    from understudy.broker.core.clients.login import Authenticator
    from understudy.broker.core.clients.port import ClientsPort
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.security import User

PRODUCT = "Understudy"
VERSION = "0.1.0"
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "understudy.outcomes": True,
    "understudy.dtx": True,
    "understudy.dtx.transaction": True,
}
_SERVER_PROPERTIES = {
    "product": PRODUCT,
    "version": VERSION,
    "platform": "Python",
    "capabilities": CAPABILITIES,
    "information": "Licensed under the Apache License 2.0",
}
REDIRECT = "understudy.redirect"
"""Capability of a client that wants to be told who leads (320), and not to be carried there."""
MANDATORY_AT_COMMIT = "understudy.mandatory_at_commit"
"""Capability of the broker: a mandatory message of a transaction comes back at the commit."""
EARLY_BYTES = 64 << 10
"""Of messages that are not whole, before connection.open-ok: of strangers no more is kept."""
WITH_ARGUMENTS = frozenset({EXCHANGE_DECLARE, QUEUE_DECLARE, QUEUE_BIND, BASIC_CONSUME})
"""Methods that are refused with 406 for an argument or a flag, and for nothing else while no answer is awaited."""
MESSAGES_AT_ONCE = 2
"""So many of the largest messages may be on their way on one connection, on whatever channels."""


@functools.lru_cache(8)
def _start_frame(cluster: str, founding: str, mandatory_at_commit: bool, mechanisms: str) -> bytes:
    """The first frame of each connection: encoded once."""
    told = {"cluster_name": cluster, "understudy_founding": founding}
    properties = {**_SERVER_PROPERTIES, **{key: value for key, value in told.items() if value}}
    properties["capabilities"] = {**CAPABILITIES, MANDATORY_AT_COMMIT: mandatory_at_commit}
    return encode_method(0, CONNECTION_START, 0, 9, properties, mechanisms, b"en_US")


class Phase(Enum):
    """Where on its line a connection is."""

    HEADER = "header"
    START = "start"
    VERIFYING = "answer about the password"
    TUNE = "tune"
    OPEN = "open"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class Transport(Protocol):
    """Calls of the core to the socket behind a connection."""

    def wake(self) -> None:
        """There is output, or the wish to read has changed: look at the connection when the turn ends."""


class _Gone:
    """The transport of a connection that has ended: whatever is still said interests nobody."""

    def wake(self) -> None:
        pass


_GONE = _Gone()


class Connection:
    """State of one client connection.

    Attributes:
        paused: do not read from the socket now (a bound is reached, or work is refused for want of brokers).
        unread: set by a driver that does not read the socket, for reasons of its own.
        congested: no deliveries now, nor answers to basic.get: ``outgoing_bytes_per_client`` are waiting to be written, or (set by
            the driver) were written and not taken by the client.
        finished: nothing more will be said: write what is left, then close the socket.
        unstable_bytes: of messages that were published and are not stable, and of frames that wait in channels.
        unfinished_bytes: of messages and frames that have not come whole, counted from connection.open on.
        published_to: the log's end after the last publish, or rejection to a dead-letter exchange, outside a transaction.
        published_plainly: in this turn something was published outside transactions, and without confirms.
        carried_by: the broker that carries the client to this one, "" for none.
        certificate: subject of the certificate that the client has shown, "" for none.
        external: the user's name in that certificate, or why it has none; None: EXTERNAL is not offered.
        secret_due: the user has another password than the connection has shown.
        secret_waits: a new secret of the user is being verified.
        may_leave: a broker that does not serve the client may carry it to the one that does.
    """

    def __init__(
        self, broker: ClientsPort, users: Authenticator, transport: Transport, name: str, loopback: bool
    ) -> None:
        self.broker = broker
        self._clock = broker.clock
        self._reception, self._unstable, self._work = broker.reception, broker.unstable, broker.work
        self._log, self._limits, self._complete = broker.log, broker.limits, broker.completions.complete
        self._batch = broker.batch
        self.transport = transport
        self.name = name
        self.phase = Phase.HEADER
        self.user: User | None = None
        self.vhost = ""
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: list[Queue] = []
        self.client_properties: dict[str, Any] = {}
        self.frame_max = FRAME_MIN_SIZE
        self.channel_max = broker.limits.channel_max
        self.heartbeat_ms = 0
        self.paused = self.unread = False
        self._closes_ms = 0
        self._draining = False
        self.congested = False
        self._congested_bytes = 0
        self.finished = False
        self.close_reason = ""
        self.unstable_bytes = 0
        self.unfinished_bytes = 0
        self.published_to = 0
        self.published_plainly = False
        self.routes: dict[tuple[str, str], list[Queue]] = {}
        self.routes_version = -1
        self.carried_by = self.certificate = ""
        self.external: str | AmqpError | None = None
        self.secret_due = self.secret_waits = False
        self.may_leave = True
        self._login = Login(users, loopback)
        self._parser = FrameParser(2 * FRAME_MIN_SIZE, broker.limits.message_bytes, EARLY_BYTES)
        self._early = b""  # before connection.open: what has come since the last frame that is done with
        self._held: list[Event] = []
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._turn_bytes = 0
        self._admitted = False
        self._refused = False
        self._blocked = ""
        self._heard = True  # something was read since the last tick
        self._heard_ms = self._clock.now_ms
        self._opened_ms: int | None = None  # what the handshake's time is counted from: the first tick that sees it
        self._doubted: Phase | None = None  # the last tick found it late, in this phase
        self._sent_ms = self._clock.now_ms
        self._reception.connections.add(self)

    # -- bytes ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take what one read brought. Errors of the peer end up in the output; nothing is raised for them."""
        self._heard = True  # when, the next tick says: after a pause of this process the clock has not moved yet
        if self.phase is not Phase.RUNNING:
            before_open = self._before_open(data)
            if before_open is None:
                return
            data = before_open
        channels = self.channels
        parser = self._parser
        for event in parser.feed(data):
            if self.phase is Phase.RUNNING and event[0] in channels:
                try:
                    channels[event[0]].take(event)
                except (AmqpError, FrameError) as fault:
                    self._raised(event[0], event[1], fault)
            elif self.phase is Phase.CLOSED:
                return
            else:
                self.take_event(event)
        if parser.incomplete or self.unfinished_bytes:
            unfinished = parser.buffered_bytes
            if unfinished != self.unfinished_bytes:
                self._note_unfinished(unfinished, len(data))
        error = parser.error
        if error is not None and self.phase not in (Phase.CLOSED, Phase.CLOSING):
            self._close_for(HardError(error.reply_code, error.text), error.key)

    def _before_open(self, data: bytes) -> bytes | None:
        """The part of ``data`` that the parser takes; None for nothing."""
        if self.phase is not Phase.HEADER:
            if self.phase is Phase.VERIFYING:
                self._early += data
            elif self.may_leave and self._reception.carrying is not None:
                self._early = self._parser.pending + data
            return data
        self._early += data
        try:
            rest = split_protocol_header(self._early)
        except ProtocolHeaderError:
            self.write(PROTOCOL_HEADER)
            self._finish("the client does not speak AMQP 0-9-1")
            return None
        if rest is not None:
            self._early = rest
            self._start()
        return rest

    def take_over(self, client: CarrierHeader, user: User | AmqpError, carrier: str, rest: bytes) -> None:
        """Begin at connection.open, with a client that a broker has authenticated.

        Args:
            client: what is known of it.
            user: whom the broker has authenticated, or why this one does not know that user.
            carrier: the broker that carries it here; "" if it has waited on this one. It is not carried on.
            rest: octets behind its connection.open.
        """
        self.may_leave = False
        self.carried_by = carrier
        self.certificate = client.certificate
        self.client_properties = client.client_properties
        self._parser.tune(self._limits.frame_max)
        self.phase = Phase.TUNE
        self.guard(0, CONNECTION_OPEN, self._open_taken_over, client, user)
        if rest:
            self.receive(rest)

    def _open_taken_over(self, client: CarrierHeader, user: User | AmqpError) -> None:
        if isinstance(user, AmqpError):
            raise user
        self.user = user
        self._tune(client.channel_max, client.frame_max, client.heartbeat_s)
        self._open(client.vhost)

    def _leave(self, vhost: str) -> bool:
        """Have the client carried to the broker that serves it; False if that cannot be."""
        carrying, user = self._reception.carrying, self.user
        if carrying is None or not self.may_leave or self._can(REDIRECT) or not carrying.has_room():
            return False
        assert user is not None
        client = CarrierHeader(
            host=self.name.rpartition(":")[0],
            port=int(self.name.rpartition(":")[2]),
            user=user.name,
            vhost=vhost,
            certificate=self.certificate,
            client_properties=self.client_properties,
            channel_max=self.channel_max,
            frame_max=self.frame_max,
            heartbeat_s=self.heartbeat_ms // 1_000,
        )
        transport, rest = self.transport, after_open(self._early)
        self._finish("the client is carried to the broker that serves it")
        carrying.leave(self._reception, transport, client, rest)
        return True

    # -- who it is ------------------------------------------------------------------------------------------------

    def proven(self, certificate: str, external: str | AmqpError | None) -> None:
        """TLS has shown ``certificate``; ``external``: the user of it, or why there is none, if users log in by certificates."""
        self.certificate = certificate
        self.external = external

    def serve_as(self, user: User) -> None:
        """Serve the client as ``user``, whose rights may be others than before."""
        self.user = user

    def expect_secret(self) -> None:
        """The user has another password than the connection has shown."""
        self.secret_due = True

    def verify_secret(self) -> None:
        """A new secret of the user is being verified."""
        self.secret_waits = True

    def secret_verified(self) -> None:
        """The secret has been verified, or refused."""
        self.secret_waits = False

    def secret_shown(self) -> None:
        """The connection has shown the user's newest password."""
        self.secret_due = False

    # -- output and time ------------------------------------------------------------------------------------------

    def leave_unread(self) -> None:
        """The driver reads no more of it."""
        self.unread = True

    def write(self, frames: bytes) -> None:
        """Queue bytes for the socket."""
        if not self._output:
            self.transport.wake()
        self._output.append(frames)
        self._output_bytes += len(frames)
        if self.congested:  # what is written nevertheless are answers, which its next questions would only make more
            self._congested_bytes += len(frames)
            if self._congested_bytes > self._limits.outgoing_bytes_per_client and not self.paused:
                self.check_bounds()
        elif self._output_bytes > self._limits.outgoing_bytes_per_client:
            self.congested = True  # in this turn; when the driver has written it knows more

    def take_output(self) -> list[bytes]:
        """The octets to write now, in order; the driver writes them at the end of the turn."""
        output = self._output
        if not output:
            return []
        large = self._output_bytes >= LARGE_BYTES
        self._output = []
        self._output_bytes = 0
        self._sent_ms = self._clock.now_ms
        return flat(output) if large else output

    def send(self, channel: int, key: int, *args: Any) -> None:
        self.write(encode_method(channel, key, *args))

    def lost(self, reason: str) -> None:
        """The socket is gone."""
        self._finish(reason)

    def tick(self, now_ms: int) -> None:
        """Heartbeats both ways, the handshake's time-out, idle transactions."""
        if self._heard:
            self._heard = False
            self._heard_ms = now_ms
        if self.phase is not Phase.RUNNING:
            if self.phase is not Phase.CLOSED:
                self._tick_beside(now_ms)
            return
        if self.heartbeat_ms:
            if now_ms - self._sent_ms >= self.heartbeat_ms // 2:
                self.write(HEARTBEAT_FRAME)
                self._sent_ms = now_ms
            # A socket that we do not read cannot be told dead by what we do not read from it.
            if not self.paused and not self.unread and now_ms - self._heard_ms >= 2 * self.heartbeat_ms:
                self._doubt(f"missed heartbeats, timeout {self.heartbeat_ms // 1000} s")
                if self.finished:
                    return
            else:
                self._doubted = None
        for channel in list(self.channels.values()):
            try:
                channel.tick()
            except SoftError as error:
                self._close_channel(channel, error, 0)
        self.close_when_drained()

    def _tick_beside(self, now_ms: int) -> None:
        """A tick during the handshake, or while a side closes."""
        if self._closes_ms:
            self.close_when_drained()
            return
        if self._opened_ms is None:
            self._opened_ms = now_ms
        if now_ms - self._opened_ms >= self._limits.handshake_timeout_ms:
            self._doubt(f"no {self.phase.value} within {self._limits.handshake_timeout_ms} ms")

    def _doubt(self, reason: str) -> None:
        """Give up at the second tick in a row, unless it has got on: after a pause of this process the first may precede the reads.

        To get on is to be heard, or in the handshake to reach another phase: who sends it octet by octet does not.
        """
        if self._doubted is self.phase:
            self._finish(reason)
        else:
            self._doubted = self.phase

    # -- events ---------------------------------------------------------------------------------------------------

    def take_event(self, event: Event) -> None:
        """Handle one parsed frame."""
        self.guard(event[0], event[1], self._dispatch, event)

    def guard(self, number: int, key: int, action: Callable[..., object], *args: Any) -> None:
        """Run ``action``; what it raises for the peer closes channel ``number`` or the connection."""
        try:
            action(*args)
        except (AmqpError, FrameError) as error:
            self._raised(number, key, error)

    def _raised(self, number: int, key: int, error: AmqpError | FrameError) -> None:
        """The one place where an error becomes a close."""
        if isinstance(error, FrameError):  # a table or property that is read late
            self._close_for(HardError(error.reply_code, error.text), key)
        elif isinstance(error, SoftError) and number and number in self.channels:
            self._close_channel(self.channels[number], error, key)
        else:
            self._close_for(error, key)

    def _dispatch(self, event: Event) -> None:
        number = event[0]
        if self.phase is Phase.VERIFYING:
            self._held.append(event)
        elif number == 0:
            if self.phase is Phase.CLOSING:
                if event[1] == CONNECTION_CLOSE_OK:
                    self._finish(self.close_reason)
                elif event[1] == CONNECTION_CLOSE and not self._closes_ms:
                    self.send(0, CONNECTION_CLOSE_OK)
            elif event[1] != HEARTBEAT:
                self._take_method(event[1], event[2])
        elif self.phase is Phase.RUNNING:
            channel = self.channels.get(number)
            if channel is not None:
                channel.take(event)
            else:
                self._open_channel(number, event[1])
        elif self.phase is not Phase.CLOSING:
            raise CommandInvalidError(f"{method_name(event[1])} on channel {number} before connection.open")

    def _open_channel(self, number: int, key: int) -> None:
        if key == CHANNEL_CLOSE_OK:
            return
        if key != CHANNEL_OPEN:
            raise ChannelErrorHard(f"{method_name(key)} on channel {number}, which is not open")
        if number > self.channel_max:
            raise NotAllowedError(f"number of channels opened reaches {number}, channel_max is {self.channel_max}")
        self.channels[number] = Channel(self, number)
        self.send(number, CHANNEL_OPEN_OK)

    def _take_method(self, key: int, args: tuple[Any, ...]) -> None:
        phase = self.phase
        if key == CONNECTION_CLOSE:
            self._closes_ms = self._clock.running_ms + CLOSE_PATIENCE_MS
            self.close_when_drained()
        elif phase is Phase.START and key == CONNECTION_START_OK:
            self.client_properties, mechanism, response, _ = args
            self._log_in(mechanism, response)
        elif phase is Phase.TUNE and key == CONNECTION_TUNE_OK:
            self._tune(*args)
        elif phase is Phase.OPEN and key == CONNECTION_OPEN:
            self._open(args[0])
        elif phase is Phase.RUNNING and key == CONNECTION_UPDATE_SECRET:
            update_secret(self, self._login, args[0])
        else:
            raise CommandInvalidError(f"{method_name(key)} is not expected in phase {phase.value}")

    def _start(self) -> None:
        mechanisms = offered(self.external)
        reception = self._reception
        self.write(_start_frame(reception.cluster, reception.founding, self._limits.mandatory_at_commit, mechanisms))
        self.phase = Phase.START

    def _log_in(self, mechanism: str, response: bytes) -> None:
        self.phase = Phase.VERIFYING
        self._login.begin(mechanism, response, self._logged_in, lambda: self.phase is Phase.VERIFYING, self.external)
        if self.phase is Phase.VERIFYING:
            self.paused = True  # what is read now would only be held
            self.transport.wake()

    def _logged_in(self, user: User | AmqpError) -> None:
        if self.phase is not Phase.VERIFYING:
            return  # it has not waited
        self.paused = False
        held, self._held = self._held, []
        if isinstance(user, AmqpError):
            self._close_for(user, CONNECTION_START_OK)
            return
        self.user = user
        limits = self._limits
        self._parser.tune(limits.frame_max)
        self.send(0, CONNECTION_TUNE, limits.channel_max, limits.frame_max, limits.heartbeat_s)
        self.phase = Phase.TUNE
        for event in held:
            if self.phase is not Phase.CLOSED:
                self.take_event(event)

    def _tune(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        limits = self._limits
        if channel_max > limits.channel_max:
            raise NotAllowedError(
                f"negotiated channel_max = {channel_max} is higher than the maximum allowed value ({limits.channel_max})"
            )
        if frame_max and frame_max < FRAME_MIN_SIZE:
            raise NotAllowedError(
                f"negotiated frame_max = {frame_max} is lower than the minimum allowed value ({FRAME_MIN_SIZE})"
            )
        if limits.frame_max and (frame_max > limits.frame_max or frame_max == 0):
            raise NotAllowedError(
                f"negotiated frame_max = {frame_max} is higher than the maximum allowed value ({limits.frame_max})"
            )
        self.channel_max = channel_max or limits.channel_max
        self.frame_max = frame_max or limits.frame_max
        self._parser.tune(self.frame_max)
        self.heartbeat_ms = heartbeat_s * 1000
        self.phase = Phase.OPEN

    def _open(self, vhost: str) -> None:
        assert self.user is not None
        broker = self.broker
        reception = self._reception
        if reception.refusal:
            if self._leave(vhost):
                return
            self._close(320, f"{reception.refusal_name} - {reception.refusal}", CONNECTION_OPEN)
            return
        self.user.require_vhost(vhost)
        if broker.counters.clients >= broker.limits.connections:
            self._work.count_limit(CONNECTIONS)
            raise NotAllowedError(f"connection refused: node connection limit ({broker.limits.connections}) is reached")
        self._admitted = True
        broker.counters.client_came()
        self.vhost = vhost
        self.phase = Phase.RUNNING
        self._early = b""
        self._parser.gather(MESSAGES_AT_ONCE * broker.limits.message_bytes)
        self.send(0, CONNECTION_OPEN_OK)

    # -- bounds ---------------------------------------------------------------------------------------------------

    def renew_routes(self, version: int) -> None:
        """Find routes anew: those that are kept are of an older topology than ``version``, or of other rights."""
        self.routes.clear()
        self.routes_version = version

    def answer_after(self, offset: int) -> None:
        """Answer what the client asks for next when the log is applied up to ``offset``, which a method of its own has added."""
        self.published_to = offset

    def published_outside(self, offset: int, size_bytes: int, *, confirmed: bool) -> None:
        """A message of that size has entered the log at ``offset``, outside transactions; ``confirmed``: the client is told."""
        self.published_to = offset
        if not confirmed:
            self.published_plainly = True
        self.published(size_bytes)

    def published(self, size_bytes: int) -> None:
        """A message of that size has entered the log on this connection."""
        if not self._turn_bytes:
            self._batch.publishers.append(self)
        self._turn_bytes += size_bytes
        if size_bytes >= MANY_READS_BYTES:
            self._batch.note_large(size_bytes)

    def keeps(self, size_bytes: int) -> None:
        """A message of that size has come whole and is not in the log yet; negative: it is, or is given up."""
        self.published(0)  # the bounds are looked at when the turn ends
        self.unstable_bytes += size_bytes
        if size_bytes > 0:
            self._unstable.keeps(size_bytes)
        else:
            self._unstable.settled(-size_bytes)

    def turn_ended(self, offset: int) -> None:
        """Messages published in this turn are outstanding until the log is applied up to ``offset``."""
        size = self._turn_bytes
        self._turn_bytes = 0
        if offset > self._log.applied:  # else it went to queues outside the log, and is there
            self.unstable_bytes += size
            self._unstable.keeps(size)
            self._complete(offset, self._settled, size)
        # Who publishes nothing may go on, and so may who can be told no: confirms are nacks, transactions end with 506.
        refused = self.published_plainly and bool(self._work.reason)
        if refused and not self._refused:
            self._work.count(self._work.reason)
        self._refused = refused
        self.published_plainly = False
        self.check_bounds()

    def _note_unfinished(self, size_bytes: int, read_bytes: int) -> None:
        """So much of messages that have not come whole is held, after a read of ``read_bytes``."""
        if self.phase is not Phase.RUNNING:
            return
        more = size_bytes - self.unfinished_bytes
        self.unfinished_bytes = size_bytes
        unstable = self._unstable
        unstable.keeps(more)
        if unstable.permit.holder is self:
            unstable.permit.received(read_bytes)
            if more < 0 and self.held_bytes <= self._limits.unstable_bytes_per_connection:
                unstable.permit.release(self)  # a message is whole: it is the turn of others
        self.check_bounds()

    @property
    def blocked(self) -> bool:
        """True while a bound of the broker keeps it from reading the connection; a slow client is no such case."""
        return bool(self._blocked)

    @property
    def held_bytes(self) -> int:
        """The octets that this connection has brought and that are not stable, in this turn and before."""
        return self.unstable_bytes + self._turn_bytes + self.unfinished_bytes

    @property
    def waits_for_client(self) -> bool:
        """True if this connection is read again, or a channel goes on, only when the client takes what it was sent."""
        unread = self._congested_bytes > self._limits.outgoing_bytes_per_client
        return unread or any(channel.waits_for_client for channel in self.channels.values())

    def stalled(self, size_bytes: int, waited_ms: int) -> None:
        """Others wait for the permit of this connection, which has brought only ``size_bytes`` in so long."""
        text = (
            f"{self.unfinished_bytes} bytes of unfinished messages are held while others wait for room, and "
            f"{size_bytes} bytes have come in the last {waited_ms} ms"
        )
        self._close_for(ResourceErrorHard(text), BASIC_PUBLISH)

    def _drop_unfinished(self) -> None:
        """Drop unfinished content, which will never count, and let others have its room."""
        self._parser.keep_no_content()
        size_bytes, self.unfinished_bytes = self.unfinished_bytes, 0
        if size_bytes:
            self._unstable.settled(size_bytes)
        self._unstable.permit.release(self)

    def _settled(self, size_bytes: int) -> None:
        self.unstable_bytes -= size_bytes
        self._unstable.settled(size_bytes)
        if self.paused or self._unstable.permit.holder is self:
            self.check_bounds()

    def postponed(self, size_bytes: int) -> None:
        """Frames of that size wait in a channel for an answer that comes before theirs.

        Negative: they wait no more. When all of them that may have been taken have been, :meth:`check_bounds` is due.
        """
        self.unstable_bytes += size_bytes
        if size_bytes > 0:
            self._unstable.keeps(size_bytes)
            self.check_bounds()
        else:
            self._unstable.settled(-size_bytes)

    def check_bounds(self) -> None:
        """Stop or resume reading this connection, and say so to a client that announced ``connection.blocked``."""
        limits = self._limits
        unstable = self._unstable
        permit = unstable.permit
        if (
            not self.paused
            and not self._blocked
            and not self._refused
            and not self._congested_bytes
            and permit.holder is None  # nor does this connection wait for the permit: it would not be read
            and unstable.held <= limits.unstable_bytes
            and self.held_bytes <= limits.unstable_bytes_per_connection
        ):
            return  # no bound is near: so it is with nearly every turn that publishes
        reason = self._bound_reached()
        if reason and self.unfinished_bytes:
            whole_bytes = self.held_bytes - self.unfinished_bytes
            if whole_bytes <= limits.unstable_bytes_per_connection and permit.ask(self):
                reason = ""
        elif self.held_bytes <= limits.unstable_bytes_per_connection:
            permit.release(self)
        if self._refused and not reason:
            reason = self._work.reason
            self._refused = bool(reason)
        unread = self._congested_bytes > limits.outgoing_bytes_per_client
        paused = ((bool(reason) or unread) and self.phase is not Phase.CLOSING) or self.phase is Phase.VERIFYING
        if self.paused and not paused:
            self._heard = True  # what came meanwhile is still to be read: its silence begins now
        self.paused = paused
        if bool(reason) != bool(self._blocked):
            self._blocked = reason
            self.transport.wake()
            if self.phase is Phase.RUNNING and self._can("connection.blocked"):
                if reason:
                    self.send(0, CONNECTION_BLOCKED, cut_text(reason))
                else:
                    self.send(0, CONNECTION_UNBLOCKED)

    def _bound_reached(self) -> str:
        """Why this connection holds too much, or all connections together do; "" if neither is so."""
        limits = self._limits
        held = self.held_bytes
        unstable = self._unstable
        if unstable.full:
            return f"{unstable.held} bytes wait to become stable, the limit is {limits.unstable_bytes}"
        if held > limits.unstable_bytes_per_connection:
            return (
                f"{held} bytes of this connection wait to become stable, "
                f"the limit is {limits.unstable_bytes_per_connection}"
            )
        return ""

    def set_congested(self, congested: bool) -> None:
        """The driver: the client takes bytes slower than we write them, or takes them again."""
        self.congested = congested
        if congested:
            return
        if self._congested_bytes:
            self._congested_bytes = 0
            self.check_bounds()
            self.transport.wake()
        channels = list(self.channels.values())
        for channel in channels:
            channel.consuming.schedule_all()
        for channel in channels:
            channel.go_on()

    def _can(self, capability: str) -> bool:
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    @property
    def wants_cancel_notify(self) -> bool:
        return self._can("consumer_cancel_notify")

    # -- closing --------------------------------------------------------------------------------------------------

    def fail_channel(self, channel: Channel, error: SoftError, key: int) -> None:
        """Close one channel for an error that came later than the method that caused it."""
        if self.channels.get(channel.number) is channel and self.phase is Phase.RUNNING:
            self._close_channel(channel, error, key)

    def _close_channel(self, channel: Channel, error: SoftError, key: int) -> None:
        if key in WITH_ARGUMENTS and isinstance(error, PreconditionFailedError) and not channel.awaiting:
            for told in self._reception.on_argument_refused:
                told(self, key, error.reply_text)
        channel.end(error.reply_text)
        self._parser.drop_content(channel.number)
        self.send(channel.number, CHANNEL_CLOSE, error.reply_code, error.reply_text, key >> 16, key & 0xFFFF)
        channel.begin_close()
        if channel.closes_ms:  # the two closes cross
            self.send(channel.number, CHANNEL_CLOSE_OK)

    def close_when_drained(self) -> None:
        """If the client has said connection.close: end when nothing that it has sent is under way, or after `CLOSE_PATIENCE_MS`.

        First the channels end, when none holds a command that is not carried out yet. Then close-ok waits until what was published
        here is in its queues: the client's next connection finds it there.
        """
        if not self._closes_ms or self._draining or self.phase is Phase.CLOSED:
            return
        patient = self._clock.running_ms < self._closes_ms
        if self.phase is Phase.RUNNING and not self._drained(patient):
            return
        if patient and self.published_to > self._log.applied:
            return
        self._closes_ms = 0
        self.send(0, CONNECTION_CLOSE_OK)
        self._finish("closed by the client")

    def _drained(self, patient: bool) -> bool:
        """End the channels, unless one holds a command and the broker is ``patient``; False if they go on."""
        self._draining = True
        try:
            for channel in list(self.channels.values()):
                channel.hurry()
        finally:
            self._draining = False
        if self.phase is not Phase.RUNNING:  # an error has ended the channels: the two closes cross
            return self.phase is Phase.CLOSING
        if patient and any(channel.held for channel in self.channels.values()):
            return False
        self.phase = Phase.CLOSING
        self._drop_unfinished()
        self.paused = False
        self._end_channels("closed by the client")
        if self.published_to > self._log.applied:
            self._complete(self._log.end, lambda _: self.close_when_drained(), None)
        return True

    def channel_closed(self, channel: Channel) -> None:
        """The channel is gone on both sides; its number is free."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            channel.release()

    def _close_for(self, error: AmqpError, key: int) -> None:
        self._close(error.reply_code, error.reply_text, key)

    def _close(self, code: int, text: str, key: int) -> None:
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            return
        refused = self.phase is Phase.VERIFYING and code == ReplyCode.ACCESS_REFUSED
        if refused and not self._can("authentication_failure_close"):
            self._finish(text)  # AMQP 0-9-1 section 2.2.4: without a word
            return
        self.phase = Phase.CLOSING
        self.secret_waits = False
        self._drop_unfinished()
        self.paused = False  # what comes now is close-ok or the end of the stream
        self._end_channels(text)
        self.send(0, CONNECTION_CLOSE, code, cut_text(text), key >> 16, key & 0xFFFF)
        self.close_reason = text
        self._opened_ms = None  # the peer has the handshake's time to answer close-ok

    def force_close(self, name: str, text: str) -> None:
        """The broker gives this connection up (320)."""
        if self.phase is Phase.RUNNING:
            self._close(320, f"{name} - {text}", 0)
        elif self.phase is not Phase.CLOSED:
            self._finish(text)

    def _end_channels(self, reason: str) -> None:
        for channel in list(self.channels.values()):
            channel.end(reason)
        ended = list(self.channels.values())
        self.channels.clear()
        for channel in ended:
            channel.release()
        for queue in list(self.exclusive_queues):
            self.broker.delete_queue(queue)

    def _finish(self, reason: str) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSING  # nothing more is said: not even that it may publish again
        self._drop_unfinished()
        self._end_channels(reason)
        if self._admitted:
            self._admitted = False
            self.broker.counters.client_left()
        self.phase = Phase.CLOSED
        self.secret_waits = False
        self.close_reason = self.close_reason or reason
        self.finished = True
        self.paused = False
        self._reception.connections.discard(self)
        self._held.clear()
        self.routes.clear()  # to exclusive queues, whose owner this is
        self.transport.wake()
        self.transport = _GONE  # its session has it, and lives for as long as the socket
