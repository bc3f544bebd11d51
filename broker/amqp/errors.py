"""Errors of bytes that arrived, and of values that shall become bytes.

A `FrameError` is the peer's mistake and ends its connection with `connection.close(reply_code, text)`: after it nobody
knows where the next frame begins, or what the peer believes was said. It is never our crash: the parser keeps it as a
value. An `UnencodableValueError` is the mistake of whoever called an encoder. It is a `MalformedFrameError` too, since
a broker that encodes what a peer sent it (a header table, a name) must treat both alike, and a caller that only guards
against the one is still safe.
"""

from __future__ import annotations

from understudy.broker.amqp.constants import ReplyCode


class FrameError(Exception):
    """The peer broke the rules of framing; its connection has to be closed.

    Attributes:
        reply_code: 501 frame error, 502 syntax error, 503 command invalid, 505 unexpected frame, 506 resource error, 540 not
            implemented.
        text: the reason, naming the channel and the values; may be cut to fit a short string.
        key: the method (`class_id << 16 | method_id`) that was at fault, 0 if none was; `connection.close` names it.
    """

    def __init__(self, reply_code: int, text: str, key: int = 0) -> None:
        super().__init__(reply_code, text)
        self.reply_code = int(reply_code)
        self.text = text
        self.key = key

    def __str__(self) -> str:
        return f"{self.reply_code} {self.text}"


class MalformedFrameError(FrameError):
    """502: a frame of the right size whose arguments, table or properties cannot be read."""

    def __init__(self, text: str, key: int = 0) -> None:
        super().__init__(ReplyCode.SYNTAX_ERROR, text, key)


class UnencodableValueError(MalformedFrameError):
    """A value given to an encoder has no form on the wire: wrong type, out of range, too long, nested too deep."""


class ProtocolHeaderError(FrameError):
    """The first bytes of a connection ask for something else than AMQP 0-9-1.

    The answer is our own protocol header and the end of the connection, without `connection.close` (AMQP 0-9-1 section 4.2.2).

    Attributes:
        received: the bytes that are not the beginning of our protocol header, at most 8.
    """

    def __init__(self, received: bytes) -> None:
        super().__init__(ReplyCode.FRAME_ERROR, f"protocol header {received!r} is not AMQP 0-9-1")
        self.received = received
