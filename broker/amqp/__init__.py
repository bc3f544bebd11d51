"""The codec of AMQP 0-9-1, both directions, for brokers and for clients: bytes in, events out, values in, bytes out.

Nothing here knows a socket, a clock or what a method means. A `FrameParser` turns what was read into events; the
functions of `encode` make the frames of messages, `encode_method` all others; `methods` is the one table of all methods
and has a constant for each (`methods.QUEUE_DECLARE`); `properties` reads single properties out of raw octets
(`properties.expiration(raw)`). Messages pass with their properties unread and their bodies untouched.

What a peer does wrong is a `FrameError` with the reply code for `connection.close`, kept as a value by the parser; what
we do wrong in encoding is an `UnencodableValueError`. Speed is a feature of this room: figures stand in the files that
paid for them, and what is done by hand for it has a plain twin that a property test compares it with.
"""

from understudy.broker.amqp import methods, properties
from understudy.broker.amqp.constants import (
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    SOFT_ERRORS,
    ReplyCode,
)
from understudy.broker.amqp.encode import (
    HEARTBEAT_FRAME,
    ack_frame,
    deliver_frames,
    get_ok_frames,
    nack_frame,
    publish_frames,
    return_frames,
)
from understudy.broker.amqp.errors import (
    FrameError,
    MalformedFrameError,
    ProtocolHeaderError,
    UnencodableValueError,
)
from understudy.broker.amqp.field_table import FieldTable, FieldValue, Timestamp, decode_table, encode_table
from understudy.broker.amqp.frames import ContentEvent, Event, FrameParser, MethodEvent, split_protocol_header
from understudy.broker.amqp.methods import decode_method, encode_method, method_name
from understudy.broker.amqp.properties import PERSISTENT, decode_properties, encode_properties
from understudy.broker.amqp.shortstr import encode_shortstr

__all__ = [
    "FRAME_MIN_SIZE",
    "FRAME_OVERHEAD",
    "HEARTBEAT",
    "HEARTBEAT_FRAME",
    "PERSISTENT",
    "PROTOCOL_HEADER",
    "SOFT_ERRORS",
    "ContentEvent",
    "Event",
    "FieldTable",
    "FieldValue",
    "FrameError",
    "FrameParser",
    "MalformedFrameError",
    "MethodEvent",
    "ProtocolHeaderError",
    "ReplyCode",
    "Timestamp",
    "UnencodableValueError",
    "ack_frame",
    "decode_method",
    "decode_properties",
    "decode_table",
    "deliver_frames",
    "encode_method",
    "encode_properties",
    "encode_shortstr",
    "encode_table",
    "get_ok_frames",
    "method_name",
    "methods",
    "nack_frame",
    "properties",
    "publish_frames",
    "return_frames",
    "split_protocol_header",
]
