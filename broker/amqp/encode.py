"""The frames that are sent most, written by hand: content of all four kinds, ack and nack, the heartbeat.

Each function returns the octets of whole frames, ready to be sent: a method with content as method frame, header frame
and as many body frames as the peer's `frame_max` asks for. They lie in one `bytes`, because one join of six parts is
cheaper than what an event loop spends on six buffers. `with_large_body` gives those of a large body without a copy of it.

`properties` are the octets of a content header after the body size, as `FrameParser` hands them out and `properties.py`
makes them. `frame_max` counts the 8 bytes around a payload; 0 is no limit. Only bodies can be split: a header whose
properties alone exceed a peer's `frame_max` is sent as it is, as RabbitMQ does. The core must not accept more than it
can say to everybody.

Arguments are not checked one by one, these are our own numbers: a channel is 0..65535, a delivery tag 0..2**64-1. Names
come from clients of the library and are: what has no short string raises `UnencodableValueError`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from understudy.broker.amqp.constants import (
    BASIC_CLASS,
    FRAME_BODY,
    FRAME_END,
    FRAME_END_BYTES,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
)
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_RETURN,
)
from understudy.broker.amqp.shortstr import encode_shortstr
from understudy.broker.octets.chunks import Chunks, named_bytes

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_CACHE_ENTRIES: Final = 4096
"""Routes remembered, each at most 530 octets; a full cache is emptied, see `hot_arguments.py`."""

# Type, channel, size, key.
_method_head: Final = Struct(">BHII").pack
# End octet of the method; type, channel, size, class, weight, body size of the header.
_to_header: Final = Struct(">BBHIHHQ").pack
# End octet of the header; type, channel, size of the body frame.
_to_body: Final = Struct(">BBHI").pack
_body_head: Final = Struct(">BHI").pack
_tag_and_bit: Final = Struct(">Q?").pack
_u32: Final = Struct(">I").pack
_u16: Final = Struct(">H").pack
_tag_frame: Final = Struct(">BHIIQBB").pack

_routes: Final[dict[tuple[str, str], bytes]] = {}
"""(exchange, routing key) -> both as short strings."""

_publish_frames: Final[dict[tuple[int, str, str, bool, bool], bytes]] = {}
"""(channel, exchange, routing key, mandatory, immediate) -> the method frame without its end octet."""


def publish_frames(
    channel: int,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max: int,
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    """Return a basic.publish with its content.

    Raises:
        UnencodableValueError: ``exchange`` or ``routing_key`` has more than 255 octets, or no UTF-8 form.
    """
    key = (channel, exchange, routing_key, mandatory, immediate)
    method = _publish_frames.get(key)
    if method is None:
        route = _route(exchange, routing_key)
        method = b"".join(
            (
                _method_head(FRAME_METHOD, channel, len(route) + 7, BASIC_PUBLISH),
                b"\x00\x00",
                route,
                bytes((bool(mandatory) | bool(immediate) << 1,)),
            )
        )
        if len(_publish_frames) >= _CACHE_ENTRIES:
            _publish_frames.clear()
        _publish_frames[key] = method
    return _with_content((method,), channel, properties, body, frame_max)


def deliver_frames(
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Return a basic.deliver with its content.

    Args:
        channel: of the consumer.
        consumer_tag: as a short string, `encode_shortstr(tag)`; a consumer keeps it, for it never changes.
        delivery_tag: of the channel, from 1.
        redelivered: True if the message was delivered before.
        exchange: where the message was published.
        routing_key: with which it was published.
        properties: the raw octets.
        body: of any size.
        frame_max: of the connection.
    """
    route = _routes.get((exchange, routing_key)) or _route(exchange, routing_key)
    method = (
        _method_head(FRAME_METHOD, channel, len(consumer_tag) + len(route) + 13, BASIC_DELIVER),
        consumer_tag,
        _tag_and_bit(delivery_tag, redelivered),
        route,
    )
    return _with_content(method, channel, properties, body, frame_max)


def get_ok_frames(
    channel: int,
    delivery_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    message_count: int,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Return a basic.get-ok with its content; ``message_count`` is how many messages stay in the queue, 0..2**32-1."""
    route = _route(exchange, routing_key)
    method = (
        _method_head(FRAME_METHOD, channel, len(route) + 17, BASIC_GET_OK),
        _tag_and_bit(delivery_tag, redelivered),
        route,
        _u32(message_count),
    )
    return _with_content(method, channel, properties, body, frame_max)


def return_frames(
    channel: int,
    reply_code: int,
    reply_text: str,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Return a basic.return with its content; ``reply_code`` says why, 312 (no route) or 313 (no consumers)."""
    arguments = _u16(reply_code) + encode_shortstr(reply_text) + _route(exchange, routing_key)
    method = (_method_head(FRAME_METHOD, channel, len(arguments) + 4, BASIC_RETURN), arguments)
    return _with_content(method, channel, properties, body, frame_max)


def with_large_body(frames: bytes, channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Return ``frames``, those of a message with ``properties`` and no body, with a large ``body``, which is not copied."""
    size = len(body)
    method = frames[: -(len(properties) + 20)]
    header = _to_header(FRAME_END, FRAME_HEADER, channel, len(properties) + 12, BASIC_CLASS, 0, size)[1:]
    between = b"".join((method, header, properties, FRAME_END_BYTES))
    whole = memoryview(body)
    most = frame_max - FRAME_OVERHEAD if frame_max else size
    parts: list[bytes | memoryview] = []
    for start in range(0, size, most):
        piece = whole[start : start + most]
        parts += (between + _body_head(FRAME_BODY, channel, len(piece)), piece)
        between = FRAME_END_BYTES
    parts.append(between)
    return named_bytes(Chunks(parts))


def ack_frame(channel: int, delivery_tag: int, multiple: bool = False) -> bytes:
    """Return a basic.ack; with ``multiple`` for all deliveries (or confirms) up to the tag, tag 0 for all."""
    return _tag_frame(FRAME_METHOD, channel, 13, BASIC_ACK, delivery_tag, bool(multiple), FRAME_END)


def nack_frame(channel: int, delivery_tag: int, multiple: bool = False, requeue: bool = False) -> bytes:
    """Return a basic.nack; ``requeue`` has no meaning in a broker's answer to a publisher."""
    bits = bool(multiple) | bool(requeue) << 1
    return _tag_frame(FRAME_METHOD, channel, 13, BASIC_NACK, delivery_tag, bits, FRAME_END)


def _route(exchange: str, routing_key: str) -> bytes:
    route = _routes.get((exchange, routing_key))
    if route is None:
        route = encode_shortstr(exchange) + encode_shortstr(routing_key)
        if len(_routes) >= _CACHE_ENTRIES:
            _routes.clear()
        _routes[(exchange, routing_key)] = route
    return route


def _with_content(method: tuple[bytes, ...], channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Join the parts of a method frame, without end octet, and the content."""
    size = len(body)
    header = _to_header(FRAME_END, FRAME_HEADER, channel, len(properties) + 12, BASIC_CLASS, 0, size)
    if size == 0:
        return b"".join((*method, header, properties, FRAME_END_BYTES))
    if frame_max == 0 or size + FRAME_OVERHEAD <= frame_max:
        to_body = _to_body(FRAME_END, FRAME_BODY, channel, size)
        return b"".join((*method, header, properties, to_body, body, FRAME_END_BYTES))
    parts: list[bytes | memoryview] = [*method, header, properties, FRAME_END_BYTES]
    whole = memoryview(body)
    most = frame_max - FRAME_OVERHEAD
    for start in range(0, size, most):
        piece = whole[start : start + most]
        parts += (_body_head(FRAME_BODY, channel, len(piece)), piece, FRAME_END_BYTES)
    return b"".join(parts)
