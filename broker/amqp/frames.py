"""Bytes in, events out: finds the frames in what a peer sent and assembles content.

`FrameParser.feed` takes whatever one read brought and returns the events it completes, as plain tuples, since an object
per message would cost more than the parsing:

    (channel, key, args)                     a method without content
    (channel, key, args, properties, body)   basic.publish, deliver, get-ok, return; `len(event)` tells the two apart
    (0, HEARTBEAT, ())                       a heartbeat
    (channel, TOO_LARGE, (size, most))       basic.publish whose header announces more than ``max_body``

`properties` are the octets of the content header after the body size, flags and list, unread: most messages are routed,
stored and delivered without a look at them (`properties.py` reads single ones). `body` is `bytes`, or a `LargeBuffer` if it is
large and came in several frames (`broker.octets.chunks`).

Two ways lead through a buffer. `_take_frame` reads one frame of any kind, knows all the rules and finds all the errors.
`_parse` tries first whether the next frame is one of the few hot methods and, for content, whether method, header and
one body frame lie whole and sound in this buffer; if so it picks the event out of it at fixed offsets, without a step
per frame. In any doubt it leaves the frame to `_take_frame`. So the fast way can be taken out and nothing but speed
changes; a property test does that. It is worth having: 0.8 us a message of 1 KB against 3.8.

Errors are values. What came before a wrong frame was said correctly and is returned; then `error` is set and no byte is
read any more, for nobody knows where the next frame would begin. Frames on channel 0 or on channels that are not open
are not judged here, except content: which channels exist is the core's knowledge.

Cost of memory: what is incomplete is copied once while more arrives and, unless it is large, once when it is complete, however
small the pieces are (no re-slicing); a declared body size allocates nothing. `buffered_bytes` tells how much is held.

A message that is too large is no error of the stream: its event comes with its header, before an octet of the body is
kept, and the body's frames are dropped as they come. A method on its channel ends it: a client that is told
channel.close may answer in the middle of a body.

Sources: AMQP 0-9-1 sections 2.3.5, 4.2.3 to 4.2.7; which error gets which code follows RabbitMQ where the specification
is silent, with two differences: a body larger than announced is 505 here, 501 there; a message larger than its
``max_message_size`` is refused there when all of it has been received (``check_msg_size`` in rabbit_channel.erl). As
there, a frame is read whose payload alone has frame_max bytes (`FRAME_SIZE_FUDGE` in its rabbit_reader.erl): some clients
do not count the 8 around it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, ClassVar, Final, TypeAlias

from understudy.broker.amqp.constants import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    TOO_LARGE,
    ReplyCode,
)
from understudy.broker.amqp.errors import FrameError, MalformedFrameError, ProtocolHeaderError
from understudy.broker.amqp.hot_arguments import ROUTES, deliver_args, publish_args
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_PUBLISH,
    METHODS,
    TX_COMMIT,
    TX_COMMIT_OK,
    decode_method,
    method_name,
)
from understudy.broker.octets.chunks import LARGE_BYTES, LargeBuffer, named_bytes

MethodEvent: TypeAlias = tuple[int, int, tuple[Any, ...]]
ContentEvent: TypeAlias = tuple[int, int, tuple[Any, ...], bytes, bytes]
Event: TypeAlias = MethodEvent | ContentEvent

DEFAULT_MAX_BODY: Final = 512 * 1024 * 1024
"""Bytes of the largest message accepted; RabbitMQ's hard limit too."""

CONTENT_BYTES: Final = 512
"""What a message that is not whole counts for beside its bytes: what Python needs for it."""

_UNLIMITED: Final = 1 << 32

_head: Final = Struct(">BHI").unpack_from
_method_head: Final = Struct(">BHII").unpack_from
_header_head: Final = Struct(">BHIIQ").unpack_from
_seam: Final = Struct(">BBHI").unpack_from
_ack: Final = Struct(">QB").unpack_from

_BASIC: Final = BASIC_PUBLISH >> 16 << 16
"""Class 60 and weight 0, as they lie together in a content header."""

_BARE: Final = frozenset({TX_COMMIT, TX_COMMIT_OK})
"""Hot methods without arguments."""

_WITHOUT_CONTENT: Final = frozenset(key for key, method in METHODS.items() if not method.content)
_OTHER_WITH_CONTENT: Final = frozenset(METHODS) - _WITHOUT_CONTENT - {BASIC_PUBLISH, BASIC_DELIVER}


def split_protocol_header(data: bytes) -> bytes | None:
    """Take the protocol header off the first bytes a client sends.

    Args:
        data: all bytes received so far.

    Returns: The bytes after the header, for the parser; None while fewer than 8 bytes are here and those are right so far.

    Raises:
        ProtocolHeaderError: this is not AMQP 0-9-1. Noticed at the first wrong octet: whoever speaks TLS or HTTP to us
            may wait for an answer after fewer than 8 bytes.
    """
    start = data[:8]
    if not PROTOCOL_HEADER.startswith(start):
        raise ProtocolHeaderError(start)
    return data[8:] if len(data) >= 8 else None


class _Content:
    """A message whose method has arrived and whose header or body has not, or not all.

    Attributes:
        held: what it counts for.
        dropped: nobody wants it: what still comes of it is not kept.
    """

    __slots__ = ("args", "body", "body_size", "dropped", "held", "key", "properties")

    def __init__(self, key: int, args: tuple[Any, ...]) -> None:
        self.key = key
        self.args = args
        self.held = 0
        self.dropped = False
        self.properties: bytes | None = None  # None until the header is here.
        self.body_size = 0
        self.body = bytearray()


class FrameParser:
    """The reading half of one connection, of either side.

    Attributes:
        error: the first thing that was wrong, or None. Once set it stays.
        incomplete: False only if nothing is held (`buffered_bytes` is 0). A slot, since each read is followed by a look.
        max_gathered: bytes of messages that are not whole, on all channels together, which are the most.

    Invariant: the events and the error do not depend on how the stream is cut into `feed` calls.
    """

    __slots__ = (
        "_contents",
        "_frame_max",
        "_gathered",
        "_max_body",
        "_max_payload",
        "_max_single_body",
        "_needed",
        "_pending",
        "error",
        "incomplete",
        "max_gathered",
    )

    def __init__(
        self, frame_max: int, max_body: int = DEFAULT_MAX_BODY, max_gathered: int = 2 * DEFAULT_MAX_BODY
    ) -> None:
        """Make a parser at the beginning of the stream, after the protocol header if there is one.

        Args:
            frame_max: bytes of the largest frame, its 8 bytes of overhead included or, for clients that do not count
                them, not; 0 for no limit. Before tuning a client may send up to 4096.
            max_body: bytes of the largest body accepted.
            max_gathered: see above.
        """
        self.error: FrameError | None = None
        self.incomplete = False
        self._max_body = max_body
        # The beginning of a frame, or of a message, of which `_needed` bytes make the whole or tell its size.
        self._pending = bytearray()
        self._needed = 0
        # By channel; a channel is here from its method to the end of its body.
        self._contents: dict[int, _Content] = {}
        self._gathered = 0
        self.max_gathered = max_gathered
        self.tune(frame_max)

    def gather(self, max_gathered: int) -> None:
        """Keep so many bytes of messages that are not whole at most."""
        self.max_gathered = max_gathered

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame, 0 for no limit."""
        return self._frame_max

    def tune(self, frame_max: int) -> None:
        """Refuse larger frames from the next `feed` on: bytes, 0 for no limit (AMQP 0-9-1, connection.tune)."""
        assert frame_max == 0 or frame_max > FRAME_OVERHEAD, f"frame_max {frame_max} leaves no room for a payload"
        self._frame_max = frame_max
        self._max_payload = frame_max or _UNLIMITED  # not less the overhead: see the sources above
        self._max_single_body = min(self._max_payload, self._max_body)

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of frames and messages that are not complete."""
        return len(self._pending) + self._gathered

    @property
    def pending(self) -> bytes:
        """A copy of the octets that no event has been made of: the beginning of a frame."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[Event]:
        """Read on with ``data``, and return what it completes, in the order of the stream.

        Args:
            data: the next bytes of the stream, any number; `bytes`, since pieces of it are looked up in caches. Events
                hold copies, so that a small message does not keep a large buffer.

        A wrong frame ends the list and sets `error`; look at it after each call. With `error` set the call returns nothing.
        """
        events: list[Event] = []
        if self.error is not None:
            return events
        pending = self._pending
        if pending:
            if len(pending) + len(data) < self._needed:
                pending += data
                return events
            data = b"".join((pending, data))
            pending.clear()
        try:
            at = self._parse(data, events)
        except FrameError as error:
            self.error = error.with_traceback(None)
            self.error.__cause__ = self.error.__context__ = None  # They hold frames, and those the buffers.
            self._contents.clear()
            self._gathered = 0
            return events
        if at < len(data):
            pending += memoryview(data)[at:]
            self.incomplete = True
        elif self.incomplete:
            self.incomplete = self._gathered > 0
        return events

    def drop_content(self, channel: int) -> None:
        """Keep nothing of a message that has not come whole on ``channel``, nor of the rest of it when that comes."""
        content = self._contents.get(channel)
        if content is not None and not content.dropped:
            self._drop(content)

    def keep_no_content(self) -> None:
        """The same on all channels, and for every message that begins from now on."""
        self._max_body = self._max_single_body = 0
        for channel in self._contents:
            self.drop_content(channel)

    # One function: a further call per message costs 0.1 us of 0.8.
    def _parse(self, buf: bytes, events: list[Event]) -> int:  # noqa: C901, PLR0912
        """Append the events of all whole frames in ``buf`` to ``events``; return where the first incomplete frame begins."""
        at = 0
        end = len(buf)
        max_payload = self._max_payload
        max_single_body = self._max_single_body
        contents = self._contents
        append = events.append
        while True:
            # 12 is the shortest method frame; a heartbeat or a beginning may be shorter.
            if end - at >= 12:
                kind, channel, size, key = _method_head(buf, at)
                stop = at + 7 + size
                if kind == 1 and stop < end and size <= max_payload and buf[stop] == 0xCE and channel not in contents:
                    args = None
                    if key == BASIC_PUBLISH:
                        args = ROUTES.get(buf[at + 11 : stop]) or publish_args(buf, at, stop)
                    elif key == BASIC_ACK and size == 13:
                        tag, multiple = _ack(buf, at + 11)
                        append((channel, key, (tag, multiple & 1 == 1)))
                        at = stop + 1
                        continue
                    elif key == BASIC_DELIVER:
                        args = deliver_args(buf, at, stop)
                    elif size == 4 and key in _BARE:
                        append((channel, key, ()))
                        at = stop + 1
                        continue
                    elif key in _WITHOUT_CONTENT:
                        append((channel, *decode_method(buf[at + 7 : stop])))
                        at = stop + 1
                        continue
                    elif key in _OTHER_WITH_CONTENT:
                        args = decode_method(buf[at + 7 : stop])[1]
                    # 22 is the shortest content header frame, 14 the shortest payload of one, 8 a body frame's
                    # overhead.
                    if args is not None and end - stop > 22:
                        kind, header_channel, size, class_and_weight, body_size = _header_head(buf, stop + 1)
                        seam = stop + 8 + size  # The end octet of the header; the body frame follows it.
                        if (
                            kind == 2
                            and header_channel == channel != 0
                            and class_and_weight == _BASIC
                            and 14 <= size <= max_payload
                            and 0 < body_size <= max_single_body  # Without body there is no body frame either.
                            and seam + 8 < end
                            and _seam(buf, seam) == (0xCE, 3, channel, body_size)
                        ):
                            last = seam + 8 + body_size
                            if last >= end:
                                # Only the rest of the body is missing: wait for it, and come this way again.
                                self._needed = last + 1 - at
                                return at
                            if buf[last] == 0xCE:
                                append((channel, key, args, buf[stop + 20 : seam], buf[seam + 8 : last]))
                                at = last + 1
                                continue
            elif at == end:
                return at
            after = self._take_frame(buf, at, events)
            if after < 0:
                return at
            at = after

    def _take_frame(self, buf: bytes, at: int, events: list[Event]) -> int:
        """Read the frame at ``at``, of any kind; return the position after it, or -1 after setting `_needed` if it is not whole."""
        rest = len(buf) - at
        if rest < 7:
            self._needed = 7
            return -1
        kind, channel, size = _head(buf, at)
        take = self._TAKERS.get(kind)
        if take is None:
            raise FrameError(ReplyCode.FRAME_ERROR, f"unknown frame type {kind} on channel {channel}")
        if size > self._max_payload:
            raise FrameError(
                ReplyCode.FRAME_ERROR,
                f"frame of {size + FRAME_OVERHEAD} bytes on channel {channel}, {self._frame_max} is the most",
            )
        stop: int = at + 7 + size
        if stop >= len(buf):
            self._needed = size + FRAME_OVERHEAD
            return -1
        if buf[stop] != FRAME_END:
            raise FrameError(ReplyCode.FRAME_ERROR, f"frame on channel {channel} ends with 0x{buf[stop]:02x}")
        event = take(self, channel, buf, at + 7, stop)
        if event is not None:
            events.append(event)
        return stop + 1

    def _take_method(self, channel: int, buf: bytes, start: int, stop: int) -> Event | None:
        content = self._contents.get(channel)
        if content is not None and content.dropped:
            del self._contents[channel]
        elif content is not None:
            key = int.from_bytes(buf[start : min(stop, start + 4)])
            raise FrameError(
                ReplyCode.UNEXPECTED_FRAME,
                f"{method_name(key)} on channel {channel} in the middle of the content of {method_name(content.key)}",
                content.key,
            )
        key, args = decode_method(buf[start:stop])
        if not METHODS[key].content:
            return (channel, key, args)
        self._contents[channel] = content = _Content(key, args)
        self._gather(content, CONTENT_BYTES + stop - start)
        return None

    def _take_header(self, channel: int, buf: bytes, start: int, stop: int) -> Event | None:
        content = self._content_of(channel, "content header")
        key = content.key
        if content.properties is not None:
            raise FrameError(ReplyCode.UNEXPECTED_FRAME, f"second content header on channel {channel}", key)
        if stop - start < 14:
            raise MalformedFrameError(f"content header of {stop - start} octets on channel {channel}", key)
        class_and_weight = int.from_bytes(buf[start : start + 4])
        if class_and_weight != key >> 16 << 16:
            raise FrameError(
                ReplyCode.UNEXPECTED_FRAME,
                f"content header of class {class_and_weight >> 16}, weight {class_and_weight & 0xFFFF}, after {method_name(key)} "
                f"on channel {channel}",
                key,
            )
        content.body_size = int.from_bytes(buf[start + 4 : start + 12])
        content.properties = b""
        if content.dropped:
            self._pass_over(channel, content, 0)
            return None
        if content.body_size > self._max_body and key == BASIC_PUBLISH:
            self._drop(content)
            return (channel, TOO_LARGE, (content.body_size, self._max_body))
        if content.body_size > self._max_body:
            raise FrameError(
                ReplyCode.FRAME_ERROR,
                f"body of {content.body_size} bytes on channel {channel}, {self._max_body} is the most",
                key,
            )
        content.properties = buf[start + 12 : stop]
        if content.body_size >= LARGE_BYTES:
            content.body = LargeBuffer()
        if content.body_size == 0:
            return self._complete(channel, content, b"")
        self._gather(content, stop - start)
        return None

    def _take_body(self, channel: int, buf: bytes, start: int, stop: int) -> Event | None:
        content = self._content_of(channel, "content body")
        if content.properties is None:
            raise FrameError(
                ReplyCode.UNEXPECTED_FRAME, f"content body without header on channel {channel}", content.key
            )
        missing = content.body_size - len(content.body)
        if content.dropped:
            self._pass_over(channel, content, stop - start)
            return None
        if stop - start > missing:
            raise FrameError(
                ReplyCode.UNEXPECTED_FRAME,
                f"content body of {stop - start} bytes on channel {channel}, {missing} of {content.body_size} are missing",
                content.key,
            )
        if stop - start == content.body_size:
            return self._complete(channel, content, buf[start:stop])
        gathered = content.body
        if isinstance(gathered, LargeBuffer):
            gathered.take(memoryview(buf)[start:stop])
        else:
            gathered += memoryview(buf)[start:stop]
        if stop - start == missing:
            body = named_bytes(gathered) if isinstance(gathered, LargeBuffer) else bytes(gathered)
            return self._complete(channel, content, body)
        self._gather(content, stop - start)
        return None

    def _take_heartbeat(self, channel: int, _buf: bytes, start: int, stop: int) -> Event | None:
        if channel != 0:
            raise FrameError(ReplyCode.UNEXPECTED_FRAME, f"heartbeat on channel {channel}, it belongs on channel 0")
        if stop != start:
            raise FrameError(ReplyCode.FRAME_ERROR, f"heartbeat of {stop - start} octets on channel {channel}")
        return (0, HEARTBEAT, ())

    def _content_of(self, channel: int, frame: str) -> _Content:
        if channel == 0:
            raise FrameError(ReplyCode.FRAME_ERROR, f"{frame} on channel 0")
        content = self._contents.get(channel)
        if content is None:
            raise FrameError(ReplyCode.UNEXPECTED_FRAME, f"{frame} without a method on channel {channel}")
        return content

    def _gather(self, content: _Content, size_bytes: int) -> None:
        """So much of a message has come which waits for the rest of it."""
        content.held += size_bytes
        self._gathered += size_bytes
        self.incomplete = True
        if self._gathered > self.max_gathered:
            raise FrameError(
                ReplyCode.RESOURCE_ERROR,
                f"{self._gathered} bytes of messages that are not whole on {len(self._contents)} channels, "
                f"{self.max_gathered} are the most",
                content.key,
            )

    def _drop(self, content: _Content) -> None:
        content.dropped = True
        content.body_size -= len(content.body)
        content.body = bytearray()
        self._gathered -= content.held
        content.held = 0

    def _pass_over(self, channel: int, content: _Content, size_bytes: int) -> None:
        """So much more has come of a body that is not kept."""
        content.body_size -= size_bytes
        if content.body_size <= 0:
            del self._contents[channel]

    def _complete(self, channel: int, content: _Content, body: bytes) -> Event:
        del self._contents[channel]
        self._gathered -= content.held
        assert content.properties is not None
        return (channel, content.key, content.args, content.properties, body)

    _TAKERS: ClassVar[dict[int, Callable[[FrameParser, int, bytes, int, int], Event | None]]] = {
        FRAME_METHOD: _take_method,
        FRAME_HEADER: _take_header,
        FRAME_BODY: _take_body,
        FRAME_HEARTBEAT: _take_heartbeat,
    }
