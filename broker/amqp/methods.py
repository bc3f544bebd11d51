"""The methods of AMQP 0-9-1 as one table, and the generic way to read and write each of them.

A row below is everything the codec knows of a method: its numbers, name, arguments, whether content follows, and which
methods of its class may answer it. The row is also the module's constant for the method's key, `class_id << 16 |
method_id`, which stands for the method everywhere.

Sources: AMQP 0-9-1, the class reference; RabbitMQ's extensions: exchange to exchange bindings, `auto_delete` and
`internal` exchanges, `basic.nack`, `confirm`, `connection.blocked` and `update-secret`; our own class 100, `dtx`
(docs/dtx.md). Mind the odd numbers: `exchange.unbind-ok` is 51, not 41.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any, Final

import attrs

from understudy.broker.amqp.constants import FRAME_END_BYTES, FRAME_METHOD, HEARTBEAT, TOO_LARGE, ReplyCode
from understudy.broker.amqp.errors import FrameError, MalformedFrameError, UnencodableValueError
from understudy.broker.amqp.layouts import Field, Layout, compile_layout, parse_fields


@attrs.frozen(kw_only=True)
class Method:
    """One row of the table.

    Attributes:
        key: `class_id << 16 | method_id`.
        name: such as `queue.declare-ok`.
        fields: all arguments on the wire, the reserved ones too.
        content: True if a content header and body frames follow.
        answers: keys of the methods that may answer; empty if the sender expects no answer. `no_wait` is the core's affair.
        layout: reads and writes the arguments.
    """

    key: int
    name: str
    fields: tuple[Field, ...]
    content: bool
    answers: tuple[int, ...]
    layout: Layout

    @property
    def synchronous(self) -> bool:
        """True if the sender expects an answer."""
        return bool(self.answers)


METHODS: Final[dict[int, Method]] = {}
"""The table, by key."""

_METHOD_HEAD: Final = Struct(">BHII")
"""Type, channel, payload size, key."""


_CACHE_ENTRIES: Final = 1024
_REPEATED_BYTES: Final = 64
_REPEATED: Final[set[int]] = set()
"""Methods that say names and flags, and no numbers that count up: most of their payloads have come before."""
_decoded: Final[dict[bytes, tuple[int, tuple[Any, ...]]]] = {}
"""Such payloads, and what they say."""


def define(
    class_id: int, method_id: int, name: str, fields: str = "", *, answers: tuple[int, ...] = (), content: bool = False
) -> int:
    """Add a row to the table.

    Args:
        class_id: 1..65535.
        method_id: 1..65535, unique in the class.
        name: `class.method`, as in the specification.
        fields: the layout as text, see `layouts.py`.
        answers: method ids, of the same class, that may answer.
        content: True if content follows.

    Returns:
        The key of the method.
    """
    key = class_id << 16 | method_id
    assert key not in METHODS, f"{name} and {METHODS[key].name} have the same numbers"
    parsed = parse_fields(fields)
    METHODS[key] = Method(
        key=key,
        name=name,
        fields=parsed,
        content=content,
        answers=tuple(class_id << 16 | answer for answer in answers),
        layout=compile_layout(parsed),
    )
    if not content and all(field.type in ("shortstr", "bit", "short") for field in parsed):
        _REPEATED.add(key)
    return key


def method_name(key: int) -> str:
    """Return a name for people: `queue.declare`, `heartbeat`, or `method 60.99` if there is none."""
    method = METHODS.get(key)
    if method is not None:
        return method.name
    if key == TOO_LARGE:
        return "basic.publish"
    return "heartbeat" if key == HEARTBEAT else f"method {key >> 16}.{key & 0xFFFF}"


def decode_method(payload: bytes) -> tuple[int, tuple[Any, ...]]:
    """Read the payload of a method frame.

    Returns:
        The key, and the arguments in the order of the layout without the reserved ones: numbers as int, bits as
        bool, short strings as str, long strings as bytes, tables as dict.

    Raises:
        FrameError: 503 if nobody knows the class, 540 if the class has no such method.
        MalformedFrameError: 502, the arguments cannot be read.
    """
    known = _decoded.get(payload)
    if known is not None:
        return known
    if len(payload) < 4:
        raise MalformedFrameError(f"method frame of {len(payload)} octets has no method")
    key = int.from_bytes(payload[:4])
    method = METHODS.get(key)
    if method is None:
        class_known = any(known >> 16 == key >> 16 for known in METHODS)
        raise FrameError(
            ReplyCode.NOT_IMPLEMENTED if class_known else ReplyCode.COMMAND_INVALID, f"unknown {method_name(key)}", key
        )
    try:
        decoded = key, method.layout.read(payload, 4)
    except MalformedFrameError as malformed:
        raise MalformedFrameError(f"{method.name}: {malformed.text}", key) from malformed
    if key in _REPEATED and len(payload) <= _REPEATED_BYTES:
        if len(_decoded) >= _CACHE_ENTRIES:
            _decoded.clear()
        _decoded[payload] = decoded
    return decoded


def encode_method(channel: int, key: int, *args: Any) -> bytes:
    """Return a whole method frame.

    Args:
        channel: 0..65535.
        key: a method of the table.
        args: as `decode_method` returns them; a long string may be str (UTF-8) or bytes, a table any mapping.

    Raises:
        UnencodableValueError: an argument is missing, too many, out of range or of a wrong type.
        KeyError: there is no such method.

    The frame may be longer than a peer's `frame_max`; a method cannot be split. Content has to be sent in the same
    breath, which the functions of `encode.py` do.
    """
    method = METHODS[key]
    try:
        octets = method.layout.write(args)
        head = _METHOD_HEAD.pack(FRAME_METHOD, channel, 4 + len(octets), key)
    except UnencodableValueError as wrong:
        raise UnencodableValueError(f"{method.name}: {wrong.text}", key) from wrong
    except struct.error:
        raise UnencodableValueError(f"{method.name}: no channel {channel}", key) from None
    return b"".join((head, octets, FRAME_END_BYTES))


# fmt: off
_CLOSE = "reply_code:short reply_text:shortstr class_id:short method_id:short"
_TUNE = "channel_max:short frame_max:long heartbeat:short"
_XID = "format_id:long global_id:longstr branch_id:longstr"
_BIND = "reserved_1:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table"

CONNECTION_START: Final = define(10, 10, "connection.start",
    "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr", answers=(11,))
CONNECTION_START_OK: Final = define(10, 11, "connection.start-ok",
    "client_properties:table mechanism:shortstr response:longstr locale:shortstr")
CONNECTION_SECURE: Final = define(10, 20, "connection.secure", "challenge:longstr", answers=(21,))
CONNECTION_SECURE_OK: Final = define(10, 21, "connection.secure-ok", "response:longstr")
CONNECTION_TUNE: Final = define(10, 30, "connection.tune", _TUNE, answers=(31,))
CONNECTION_TUNE_OK: Final = define(10, 31, "connection.tune-ok", _TUNE)
CONNECTION_OPEN: Final = define(10, 40, "connection.open",
    "virtual_host:shortstr reserved_1:shortstr reserved_2:bit", answers=(41,))
CONNECTION_OPEN_OK: Final = define(10, 41, "connection.open-ok", "reserved_1:shortstr")
CONNECTION_CLOSE: Final = define(10, 50, "connection.close", _CLOSE, answers=(51,))
CONNECTION_CLOSE_OK: Final = define(10, 51, "connection.close-ok")
CONNECTION_BLOCKED: Final = define(10, 60, "connection.blocked", "reason:shortstr")
CONNECTION_UNBLOCKED: Final = define(10, 61, "connection.unblocked")
CONNECTION_UPDATE_SECRET: Final = define(10, 70, "connection.update-secret", "new_secret:longstr reason:shortstr", answers=(71,))
CONNECTION_UPDATE_SECRET_OK: Final = define(10, 71, "connection.update-secret-ok")

CHANNEL_OPEN: Final = define(20, 10, "channel.open", "reserved_1:shortstr", answers=(11,))
CHANNEL_OPEN_OK: Final = define(20, 11, "channel.open-ok", "reserved_1:longstr")
CHANNEL_FLOW: Final = define(20, 20, "channel.flow", "active:bit", answers=(21,))
CHANNEL_FLOW_OK: Final = define(20, 21, "channel.flow-ok", "active:bit")
CHANNEL_CLOSE: Final = define(20, 40, "channel.close", _CLOSE, answers=(41,))
CHANNEL_CLOSE_OK: Final = define(20, 41, "channel.close-ok")

EXCHANGE_DECLARE: Final = define(40, 10, "exchange.declare",
    "reserved_1:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit "
    "no_wait:bit arguments:table", answers=(11,))
EXCHANGE_DECLARE_OK: Final = define(40, 11, "exchange.declare-ok")
EXCHANGE_DELETE: Final = define(40, 20, "exchange.delete",
    "reserved_1:short exchange:shortstr if_unused:bit no_wait:bit", answers=(21,))
EXCHANGE_DELETE_OK: Final = define(40, 21, "exchange.delete-ok")
EXCHANGE_BIND: Final = define(40, 30, "exchange.bind", _BIND, answers=(31,))
EXCHANGE_BIND_OK: Final = define(40, 31, "exchange.bind-ok")
EXCHANGE_UNBIND: Final = define(40, 40, "exchange.unbind", _BIND, answers=(51,))
EXCHANGE_UNBIND_OK: Final = define(40, 51, "exchange.unbind-ok")

QUEUE_DECLARE: Final = define(50, 10, "queue.declare",
    "reserved_1:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit no_wait:bit "
    "arguments:table", answers=(11,))
QUEUE_DECLARE_OK: Final = define(50, 11, "queue.declare-ok", "queue:shortstr message_count:long consumer_count:long")
QUEUE_BIND: Final = define(50, 20, "queue.bind",
    "reserved_1:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit arguments:table", answers=(21,))
QUEUE_BIND_OK: Final = define(50, 21, "queue.bind-ok")
QUEUE_PURGE: Final = define(50, 30, "queue.purge", "reserved_1:short queue:shortstr no_wait:bit", answers=(31,))
QUEUE_PURGE_OK: Final = define(50, 31, "queue.purge-ok", "message_count:long")
QUEUE_DELETE: Final = define(50, 40, "queue.delete",
    "reserved_1:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit", answers=(41,))
QUEUE_DELETE_OK: Final = define(50, 41, "queue.delete-ok", "message_count:long")
QUEUE_UNBIND: Final = define(50, 50, "queue.unbind",
    "reserved_1:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table", answers=(51,))
QUEUE_UNBIND_OK: Final = define(50, 51, "queue.unbind-ok")

BASIC_QOS: Final = define(60, 10, "basic.qos", "prefetch_size:long prefetch_count:short global:bit", answers=(11,))
BASIC_QOS_OK: Final = define(60, 11, "basic.qos-ok")
BASIC_CONSUME: Final = define(60, 20, "basic.consume",
    "reserved_1:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit no_wait:bit "
    "arguments:table", answers=(21,))
BASIC_CONSUME_OK: Final = define(60, 21, "basic.consume-ok", "consumer_tag:shortstr")
BASIC_CANCEL: Final = define(60, 30, "basic.cancel", "consumer_tag:shortstr no_wait:bit", answers=(31,))
BASIC_CANCEL_OK: Final = define(60, 31, "basic.cancel-ok", "consumer_tag:shortstr")
BASIC_PUBLISH: Final = define(60, 40, "basic.publish",
    "reserved_1:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit", content=True)
BASIC_RETURN: Final = define(60, 50, "basic.return",
    "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr", content=True)
BASIC_DELIVER: Final = define(60, 60, "basic.deliver",
    "consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr", content=True)
BASIC_GET: Final = define(60, 70, "basic.get", "reserved_1:short queue:shortstr no_ack:bit", answers=(71, 72))
BASIC_GET_OK: Final = define(60, 71, "basic.get-ok",
    "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long", content=True)
BASIC_GET_EMPTY: Final = define(60, 72, "basic.get-empty", "reserved_1:shortstr")
BASIC_ACK: Final = define(60, 80, "basic.ack", "delivery_tag:longlong multiple:bit")
BASIC_REJECT: Final = define(60, 90, "basic.reject", "delivery_tag:longlong requeue:bit")
BASIC_RECOVER_ASYNC: Final = define(60, 100, "basic.recover-async", "requeue:bit")
BASIC_RECOVER: Final = define(60, 110, "basic.recover", "requeue:bit", answers=(111,))
BASIC_RECOVER_OK: Final = define(60, 111, "basic.recover-ok")
BASIC_NACK: Final = define(60, 120, "basic.nack", "delivery_tag:longlong multiple:bit requeue:bit")

CONFIRM_SELECT: Final = define(85, 10, "confirm.select", "no_wait:bit", answers=(11,))
CONFIRM_SELECT_OK: Final = define(85, 11, "confirm.select-ok")

TX_SELECT: Final = define(90, 10, "tx.select", answers=(11,))
TX_SELECT_OK: Final = define(90, 11, "tx.select-ok")
TX_COMMIT: Final = define(90, 20, "tx.commit", answers=(21,))
TX_COMMIT_OK: Final = define(90, 21, "tx.commit-ok")
TX_ROLLBACK: Final = define(90, 30, "tx.rollback", answers=(31,))
TX_ROLLBACK_OK: Final = define(90, 31, "tx.rollback-ok")

DTX_SELECT: Final = define(100, 10, "dtx.select", answers=(11,))
DTX_SELECT_OK: Final = define(100, 11, "dtx.select-ok")
DTX_START: Final = define(100, 20, "dtx.start", f"{_XID} join:bit resume:bit", answers=(21,))
DTX_START_OK: Final = define(100, 21, "dtx.start-ok", "status:short")
DTX_END: Final = define(100, 30, "dtx.end", f"{_XID} fail:bit suspend:bit", answers=(31,))
DTX_END_OK: Final = define(100, 31, "dtx.end-ok", "status:short")
DTX_PREPARE: Final = define(100, 40, "dtx.prepare", _XID, answers=(41,))
DTX_PREPARE_OK: Final = define(100, 41, "dtx.prepare-ok", "status:short transaction:shortstr")
DTX_COMMIT: Final = define(100, 50, "dtx.commit", f"{_XID} one_phase:bit", answers=(51,))
DTX_COMMIT_OK: Final = define(100, 51, "dtx.commit-ok", "status:short")
DTX_ROLLBACK: Final = define(100, 60, "dtx.rollback", _XID, answers=(61,))
DTX_ROLLBACK_OK: Final = define(100, 61, "dtx.rollback-ok", "status:short")
DTX_RECOVER: Final = define(100, 70, "dtx.recover", "after:longstr", answers=(71,))
DTX_RECOVER_OK: Final = define(100, 71, "dtx.recover-ok", "more:bit in_doubt:longstr")
DTX_FORGET: Final = define(100, 80, "dtx.forget", _XID, answers=(81,))
DTX_FORGET_OK: Final = define(100, 81, "dtx.forget-ok", "status:short")
DTX_GET_TIMEOUT: Final = define(100, 90, "dtx.get-timeout", _XID, answers=(91,))
DTX_GET_TIMEOUT_OK: Final = define(100, 91, "dtx.get-timeout-ok", "timeout:long")
DTX_SET_TIMEOUT: Final = define(100, 100, "dtx.set-timeout", f"{_XID} timeout:long", answers=(101,))
DTX_SET_TIMEOUT_OK: Final = define(100, 101, "dtx.set-timeout-ok", "status:short")
DTX_COMPLETE: Final = define(100, 110, "dtx.complete", f"{_XID} commit:bit", answers=(111,))
DTX_COMPLETE_OK: Final = define(100, 111, "dtx.complete-ok", "status:short")
# fmt: on
