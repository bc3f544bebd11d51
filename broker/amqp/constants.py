"""The fixed numbers of AMQP 0-9-1: frame types, sizes, the protocol header and the reply codes.

Source: AMQP 0-9-1 sections 1.2 (constants), 2.3.5 (general frame format) and 4.2.2 (protocol header). 312 is
RabbitMQ's: it is the code of `basic.return` when a mandatory message has no queue.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
"""The octet that closes every frame; anything else there means that the two sides no longer agree where frames begin."""

FRAME_END_BYTES: Final = b"\xce"

FRAME_MIN_SIZE: Final = 4096
"""Bytes; what every peer must accept before `connection.tune`, and the least a peer may ask for in it."""

FRAME_HEAD_SIZE: Final = 7
"""Bytes of type, channel and payload size, before the payload."""

FRAME_OVERHEAD: Final = 8
"""Bytes of a frame that are not payload: the head and the end octet. `frame_max` counts them."""

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

HEARTBEAT: Final = FRAME_HEARTBEAT
"""Stands in the place of the method key in the event of a heartbeat. No method has it: class 0 is not in use."""

TOO_LARGE: Final = 0
"""Likewise, in the event of a basic.publish whose content header announces more than a body may have."""

BASIC_CLASS: Final = 60
"""The one class whose methods carry content."""


class ReplyCode(IntEnum):
    """Why a method was refused, or a channel or connection closed. The name is how RabbitMQ begins its reply text."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT_ERRORS: Final = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
"""The codes that close a channel; all others above 200 close the connection (AMQP 0-9-1 section 1.2)."""
