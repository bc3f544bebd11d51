"""A message as a record of Kafka."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

from understudy.broker.amqp.properties import encode_properties
from understudy.broker.message import Message
from understudy.observers.outlet.reading.units import Outgoing, Unit
from understudy.observers.outlet.sending.records import RecordMaker, property_headers


def test_a_message_of_a_transaction() -> None:
    message = Message(
        "x", "eu.new", encode_properties(delivery_mode=2, message_id="m7"), b"\x00body\xff", persistent=True
    )
    outgoing = (Outgoing("/", "orders", 1 << 40 | 5, message), Outgoing("v", "bills", 9, message))
    unit = Unit(epoch=3, offset=17, csn=4, tx="ab/3.2", name="order 1", time_ms=1_700_000_000_123, messages=outgoing)
    maker = RecordMaker("shop")
    record = maker.record(unit, maker.unit_headers(unit), 1, "topic")
    assert (record.topic, record.key, record.value, record.timestamp_ms) == (
        "topic",
        b"v/bills",
        b"\x00body\xff",
        1_700_000_000_123,
    )
    assert dict(record.headers) == {
        "understudy-group": b"shop",
        "understudy-position": b"3,17",
        "understudy-csn": b"4",
        "understudy-tx": b"ab/3.2",
        "understudy-tx-messages": b"2",
        "understudy-tx-name": b"order 1",
        "understudy-vhost": b"v",
        "understudy-queue": b"bills",
        "understudy-id": b"9",
        "understudy-place": b"1",
        "amqp-exchange": b"x",
        "amqp-routing-key": b"eu.new",
        "amqp-delivery-mode": b"2",
        "amqp-message-id": b"m7",
    }


def test_a_message_outside_of_transactions_names_none() -> None:
    unit = Unit(epoch=1, offset=2, messages=(Outgoing("/", "q", 1, Message("", "q", b"\0\0", b"", persistent=True)),))
    maker = RecordMaker("g")
    record = maker.record(unit, maker.unit_headers(unit), 0, "t")
    names = [name for name, _ in record.headers]
    assert not [name for name in names if name.startswith("understudy-tx")]
    assert "understudy-csn" not in names
    assert record.value == b""
    assert record.timestamp_ms is None


def test_every_kind_of_property_is_text() -> None:
    headers = {
        "text": "é",
        "number": 7,
        "list": [1, b"\xff"],
        "table": {"a": Decimal("1.5")},
        "yes": True,
        "none": None,
    }
    raw = encode_properties(headers=headers, timestamp=datetime(2026, 1, 2, tzinfo=UTC), priority=3, type="order")
    found = dict(property_headers(raw))
    assert found["amqp-header-text"] == "é".encode()
    assert found["amqp-header-number"] == b"7"
    assert json.loads(found["amqp-header-list"]) == [1, "/w=="]
    assert json.loads(found["amqp-header-table"]) == {"a": "1.5"}
    assert (found["amqp-header-yes"], found["amqp-header-none"]) == (b"true", b"null")
    assert found["amqp-timestamp"] == b"1767312000"
    assert (found["amqp-priority"], found["amqp-type"]) == (b"3", b"order")


def test_octets_that_are_no_text_get_through() -> None:
    raw = encode_properties(correlation_id=b"\xffx".decode("utf-8", "surrogateescape"))
    assert dict(property_headers(raw)) == {"amqp-correlation-id": b"\\xffx"}
    assert dict(property_headers(b"\x80\x00\x05ab")) == {"amqp-properties": b"gAAFYWI="}
