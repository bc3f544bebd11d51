"""AmqpCaller: one AMQP connection with one channel, blocking, for commands that have a single thing to say to the leader.

A command needs neither heartbeats nor consumers nor another thread: it logs in, calls a method, reads its answer and goes. A
client library was refused: the product depends on none, and none of them knows class 100.

What matters is how a call ends. Its answer came; or it was refused, and nothing was done (`CallRefusedError`:
``channel.close``, or a ``connection.close`` that names this very method); or nobody knows (`OutcomeUnknownError`): the connection
ended, for whatever reason, after the method was sent. Before that a failure is a failure (`NotConnectedError`), and only then
another broker is tried: a broker that does not lead turns a client away at ``connection.open``, with 320 and the address of the
leader.

TLS is not spoken.

Sources: AMQP 0-9-1 sections 2.2.4 and 4.2.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from types import TracebackType
from typing import Any, Final, Self

import attrs

from understudy import __version__
from understudy.broker.amqp.constants import FRAME_MIN_SIZE, HEARTBEAT, PROTOCOL_HEADER, ReplyCode
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.errors import UnencodableValueError
from understudy.broker.amqp.frames import Event, FrameParser
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_DELIVER,
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
    METHODS,
    QUEUE_DECLARE,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.command_line.amqp_address import GUEST, AmqpAddress, AmqpUrlError
from understudy.broker.errors import UnderstudyError

CONNECT_TIMEOUT_S: Final = 10.0
"""For everything up to channel.open-ok."""
ANSWER_TIMEOUT_S: Final = 30.0
"""For the answer of a call: it may have to wait until the leader expels a broker that does not answer."""
GOODBYE_TIMEOUT_S: Final = 2.0
MAX_REDIRECTS: Final = 2
CHANNEL: Final = 1

_FRAME_MAX: Final = 131072
_READ_BYTES: Final = 65536
_NOTICES: Final = frozenset({HEARTBEAT, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED})
REDIRECT: Final = "understudy.redirect"
"""Capability: a broker that does not lead is to name the leader, and not to carry this client there."""
_LEADER: Final = re.compile(r"NOT_PRIMARY - .*\bprimary is (amqp://\S+)")


class NotConnectedError(UnderstudyError):
    """No connection came about, or it ended before anything was asked of the broker: nothing was done."""

    retriable = True


class CallRefusedError(UnderstudyError):
    """The broker refused the call, and did nothing.

    Attributes:
        reply_code: of the close.
    """

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(text)
        self.reply_code = reply_code


class OutcomeUnknownError(UnderstudyError):
    """The method was sent and its answer did not come: it may have been carried out, or may yet be.

    Attributes:
        said: the text with which the broker closed the connection, "" if it said nothing.
    """

    def __init__(self, text: str, said: str = "") -> None:
        super().__init__(text)
        self.said = said


class _ClosedError(Exception):
    """The broker closed the connection or the channel (``by``), for the method ``key`` or, with 0, for none."""

    def __init__(self, by: int, reply_code: int, reply_text: str, key: int) -> None:
        super().__init__(reply_code, reply_text)
        self.by = by
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.key = key


class _LostError(Exception):
    """Nothing more can be read: the broker ended the stream, or it is not what AMQP 0-9-1 says it is."""


class AmqpCaller:
    """A context manager: leaving it closes the connection, politely if nothing was wrong.

    Attributes:
        address: of the broker that serves: not the one that was asked for, if that does not lead.
        capabilities: what the broker said that it can do.
    """

    def __init__(self, address: AmqpAddress) -> None:
        """Connect, log in and open a channel; :func:`connect` does this and is led on to the leader.

        Raises:
            NotConnectedError: nobody is there, or it does not let us in.
        """
        self.address = address
        self.capabilities: dict[str, Any] = {}
        self._events: list[Event] = []
        self._lost = False
        self._parser = FrameParser(_FRAME_MAX)
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            raise NotConnectedError(f"no broker takes a connection at {address}: {_reason(error)}") from error
        self._deadline = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            self._log_in()
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self) -> None:
        address = self.address
        user = GUEST if address.user is None else address.user
        password = GUEST if address.password is None else address.password
        try:
            self.send(PROTOCOL_HEADER)
            properties = self._expect(CONNECTION_START)[2]
            capabilities = properties.get("capabilities")
            self.capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}
            ours = {"product": "understudy command line", "version": __version__,
                    "capabilities": {"authentication_failure_close": True, REDIRECT: True}}  # fmt: skip
            response = f"\0{user}\0{password}".encode(errors="surrogateescape")  # as the terminal gave it
            self.send(encode_method(0, CONNECTION_START_OK, ours, "PLAIN", response, "en_US"))
            channel_max, frame_max, _ = self._expect(CONNECTION_TUNE)
            self._parser.tune(max(frame_max, FRAME_MIN_SIZE) if frame_max else 0)
            self.send(encode_method(0, CONNECTION_TUNE_OK, channel_max, frame_max, 0))  # 0: no heartbeats
            self.send(encode_method(0, CONNECTION_OPEN, address.vhost))
            self._expect(CONNECTION_OPEN_OK)
            self.send(encode_method(CHANNEL, CHANNEL_OPEN))
            self._expect(CHANNEL_OPEN_OK)
        except _ClosedError as closed:
            if (leader := _LEADER.match(closed.reply_text)) is not None:
                raise _ElsewhereError(closed.reply_text, leader[1]) from None
            raise NotConnectedError(
                f"{address} refused the connection of user '{user}': {closed.reply_code} {closed.reply_text}"
            ) from None
        except UnencodableValueError as error:
            raise NotConnectedError(f"{address} cannot be asked for vhost {address.vhost!r}: {error.text}") from error
        except (OSError, _LostError) as error:
            raise NotConnectedError(
                f"{address} does not serve AMQP 0-9-1 clients without TLS: {_reason(error)}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, key: int, *args: Any) -> tuple[Any, ...]:
        """Send a method that has an answer, and return the answer's arguments.

        Raises:
            CallRefusedError: the broker closed the channel or the connection for it; nothing was done. The caller is of no
                use any more.
            OutcomeUnknownError: the answer did not come within ANSWER_TIMEOUT_S, or not at all.
        """
        (answer,) = METHODS[key].answers
        return self._answered(key, encode_method(CHANNEL, key, *args), answer)[2]

    def ask(self, exchange: str, body: bytes) -> bytes:
        """Send a request to a reserved exchange of the broker, and return the body of the answer.

        Raises:
            CallRefusedError, OutcomeUnknownError: as :meth:`call`.
        """
        (queue, _, _) = self.call(QUEUE_DECLARE, "", False, False, True, False, False, {})
        self.call(BASIC_CONSUME, queue, "", False, True, True, False, {})
        properties = encode_properties(reply_to=queue)
        frames = publish_frames(CHANNEL, exchange, "", properties, body, self._parser.frame_max or _FRAME_MAX)
        event: tuple[Any, ...] = self._answered(BASIC_PUBLISH, frames, BASIC_DELIVER)
        return bytes(event[4])

    def _answered(self, key: int, frames: bytes, answer: int) -> Event:
        """Send the method ``key`` and wait for ``answer``; :meth:`call` has the errors."""
        method = METHODS[key]
        said = ""
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_S
        try:
            self.send(frames)
            return self._expected(answer)
        except _ClosedError as closed:
            said = f"{closed.reply_code} {closed.reply_text}"
            # A close for another reason, such as a leader that steps down, says nothing about the method: it may be in the log.
            if closed.by == CHANNEL_CLOSE or (closed.key == key and closed.reply_code != ReplyCode.INTERNAL_ERROR):
                self._lost = closed.by == CONNECTION_CLOSE
                raise CallRefusedError(closed.reply_code, f"{self.address} refused {method.name}: {said}") from None
            reason = f"{self.address} closed the connection: {said}"
            self._lost = True
        except (OSError, _LostError) as error:
            reason = f"{self.address}: {_reason(error)}"
            self._lost = True
        raise OutcomeUnknownError(
            f"it is not known what became of {method.name}: its answer did not come ({reason})", said
        )

    def send(self, frames: bytes) -> None:
        """Send whole frames, of the channel `CHANNEL` or of the connection."""
        self._socket.settimeout(self._left())
        self._socket.sendall(frames)

    def close(self) -> None:
        """Say goodbye and close the socket. Whoever is not there any more is not waited for."""
        self._deadline = time.monotonic() + GOODBYE_TIMEOUT_S
        try:
            if not self._lost:
                self.send(encode_method(0, CONNECTION_CLOSE, 200, "goodbye", 0, 0))
                self._expect(CONNECTION_CLOSE_OK)
        except (OSError, _LostError, _ClosedError):
            pass  # a goodbye that does not arrive changes nothing
        finally:
            self._socket.close()

    # -- reading --------------------------------------------------------------------------------------------------

    def _expect(self, key: int) -> tuple[Any, ...]:
        """The arguments of the next method, which has to be this one; notices are passed over."""
        args: tuple[Any, ...] = self._expected(key)[2]
        return args

    def _expected(self, key: int) -> Event:
        while True:
            event = self._next()
            number, found, args = event[0], event[1], event[2]
            if found == key:
                return event
            if found in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                code, text, class_id, method_id = args
                with contextlib.suppress(OSError):  # it need not wait for that, and has said what counts
                    self.send(encode_method(number, CONNECTION_CLOSE_OK if number == 0 else CHANNEL_CLOSE_OK))
                raise _ClosedError(found, code, text, class_id << 16 | method_id)
            if found not in _NOTICES:
                raise _LostError(f"it said {method_name(found)} where {method_name(key)} must come")

    def _next(self) -> Event:
        while not self._events:
            if self._parser.error is not None:
                raise _LostError(f"what it says is no frame of AMQP 0-9-1: {self._parser.error}")
            self._socket.settimeout(self._left())
            received = self._socket.recv(_READ_BYTES)
            if not received:
                raise _LostError("it ended the connection")
            self._events = self._parser.feed(received)
        return self._events.pop(0)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _ElsewhereError(NotConnectedError):
    """The broker does not lead; it named the leader."""

    def __init__(self, text: str, leader: str) -> None:
        super().__init__(text)
        self.leader = leader


def connect(address: AmqpAddress) -> AmqpCaller:
    """A caller on the leader of the group of the broker at ``address``, with the same user, password and vhost.

    Raises:
        NotConnectedError: nobody is there, it does not let us in, or after MAX_REDIRECTS others still nobody leads.
    """
    for redirects in range(MAX_REDIRECTS + 1):
        try:
            return AmqpCaller(address)
        except _ElsewhereError as other:
            if redirects == MAX_REDIRECTS:
                raise NotConnectedError(f"no primary found; {address} was the last asked: {other}") from None
            try:
                leader = AmqpAddress.parse(other.leader)
            except AmqpUrlError as error:
                raise NotConnectedError(f"{address} named a primary that cannot be used: {error}") from None
            address = attrs.evolve(address, host=leader.host, port=leader.port)
    raise AssertionError("unreachable")


def _reason(error: BaseException) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
