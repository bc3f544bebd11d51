"""A message of a queue as a record of Kafka: key, value and headers.

The value is the body, octet by octet. What the outlet knows stands in headers that begin with ``understudy-``; properties of
AMQP in headers that begin with ``amqp-``. All headers are UTF-8 text, so that every client of Kafka can read them; octets of
AMQP that are no UTF-8 are written as backslash, x and two digits. `docs/outlet.md` lists them.
"""

from __future__ import annotations

import base64
from datetime import datetime
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec

from understudy.broker.amqp.errors import MalformedFrameError
from understudy.broker.amqp.properties import decode_properties
from understudy.observers.feed.context import plain_text
from understudy.observers.outlet.reading.units import Outgoing, Unit

Header = tuple[str, bytes]
_REMEMBERED: Final = 4096
_REPEATED_BYTES: Final = 256
"""Longer properties are not remembered: they hold what hardly repeats."""


class KafkaRecord(NamedTuple):
    """A record for Kafka: one message of one queue.

    ``timestamp_ms`` is None if the log does not say when it was decided: Kafka then takes its own clock. ``place`` is (epoch,
    offset, number in the unit) of the message.
    """

    topic: str
    key: bytes
    value: bytes
    headers: list[Header]
    timestamp_ms: int | None
    place: tuple[int, int, int] = (0, 0, 0)


class RecordMaker:
    """Makes records of units.

    Args:
        group: id of the group.
    """

    def __init__(self, group: str) -> None:
        self._group: Header = ("understudy-group", group.encode())
        self._properties: dict[bytes, list[Header]] = {}

    def unit_headers(self, unit: Unit) -> list[Header]:
        """Headers that all records of a unit have."""
        headers = [self._group, ("understudy-position", f"{unit.epoch},{unit.offset}".encode())]
        if unit.csn:
            headers.append(("understudy-csn", b"%d" % unit.csn))
        if unit.tx:
            headers.append(("understudy-tx", unit.tx.encode()))
            headers.append(("understudy-tx-messages", b"%d" % len(unit.messages)))
        if unit.name:
            headers.append(("understudy-tx-name", plain_text(unit.name).encode()))
        if unit.unsent:
            headers.append(("understudy-tx-unsent", b"%d" % unit.unsent))
        return headers

    def record(self, unit: Unit, shared: list[Header], at: int, topic: str) -> KafkaRecord:
        """The record of one message.

        Args:
            unit: whose message it is.
            at: its number in the unit, from 0.
            shared: `unit_headers` of the unit.
            topic: where it goes.
        """
        outgoing = unit.messages[at]
        message = outgoing.message
        headers = [
            *shared,
            *_place_headers(outgoing, at),
            ("amqp-exchange", plain_text(message.exchange).encode()),
            ("amqp-routing-key", plain_text(message.routing_key).encode()),
            *self._property_headers(message.properties),
        ]
        value = bytes(memoryview(message.content()))
        place = (unit.epoch, unit.offset, at)
        return KafkaRecord(topic, queue_key(outgoing), value, headers, unit.time_ms or None, place)

    def aside(self, unit: Unit, shared: list[Header], at: int, topic: str, reason: str, *, whole: bool) -> KafkaRecord:
        """The record that goes to ``topic`` since the message itself cannot be sent.

        Args:
            unit: whose message it is.
            shared: `unit_headers` of the unit.
            at: its number in the unit, from 0.
            topic: of what cannot be sent.
            reason: why the message cannot be sent.
            whole: with body, if it is there, and properties; else with their sizes alone.
        """
        outgoing = unit.messages[at]
        message = outgoing.message
        headers = [
            *shared,
            *_place_headers(outgoing, at),
            ("understudy-unsendable", plain_text(reason).encode()),
            ("amqp-exchange", plain_text(message.exchange).encode()),
            ("amqp-routing-key", plain_text(message.routing_key).encode()),
        ]
        if whole:
            headers.append(("amqp-properties", base64.b64encode(message.properties)))
        if not whole or outgoing.bodiless:
            headers.append(("understudy-unsendable-bytes", b"%d,%d" % (message.size, len(message.properties))))
        value = bytes(memoryview(message.content())) if whole else b""
        return KafkaRecord(topic, queue_key(outgoing), value, headers, None, (unit.epoch, unit.offset, at))

    def _property_headers(self, raw: bytes) -> list[Header]:
        found = self._properties.get(raw)
        if found is None:
            found = property_headers(raw)
            if len(raw) <= _REPEATED_BYTES:
                if len(self._properties) >= _REMEMBERED:
                    self._properties.clear()
                self._properties[raw] = found
        return found


def queue_key(outgoing: Outgoing) -> bytes:
    """``vhost/queue``: all messages of a queue come to one partition, so their order is kept."""
    return f"{plain_text(outgoing.vhost)}/{plain_text(outgoing.queue)}".encode()


def _place_headers(outgoing: Outgoing, at: int) -> list[Header]:
    return [
        ("understudy-vhost", plain_text(outgoing.vhost).encode()),
        ("understudy-queue", plain_text(outgoing.queue).encode()),
        ("understudy-id", b"%d" % outgoing.entry_id),
        ("understudy-place", b"%d" % at),
    ]


def property_headers(raw: bytes) -> list[Header]:
    """Properties of a message, ``amqp-<property>``; its headers, ``amqp-header-<name>``.

    A text stays a text; everything else is JSON, and octets in it are base64. What cannot be decoded is one header
    ``amqp-properties`` with the octets in base64.
    """
    try:
        properties = decode_properties(raw)
    except MalformedFrameError:
        return [("amqp-properties", base64.b64encode(raw))]
    headers: list[Header] = []
    for name, value in properties.items():
        if name == "headers":
            headers += [(f"amqp-header-{plain_text(key)}", _text(each)) for key, each in value.items()]
        else:
            headers.append((f"amqp-{name.replace('_', '-')}", _text(value)))
    return headers


def _text(value: object) -> bytes:
    if isinstance(value, str):
        return plain_text(value).encode()
    return msgspec.json.encode(_plain(value))


def _plain(value: object) -> Any:
    """A value of a field table as JSON can hold it; what JSON has no form for is a text or a number."""
    if isinstance(value, dict):
        return {plain_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _plain_scalar(value)


def _plain_scalar(value: object) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):  # a `Timestamp` too, which the encoder of JSON does not take as it is
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return value
    return plain_text(str(value))  # a text, a Decimal, and what is no number
