"""Values of tables are compared as RabbitMQ compares them: in headers exchanges, bindings and arguments declared again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from struct import pack
from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.field_table import Timestamp, decode_table, encode_table
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_UNBIND,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.topology.argument_values import binding_octets, same_arguments, same_value

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAR = Timestamp(1 << 40)
TEXT_OCTETS = b"\xff\x00"
LOOSE_TEXT = TEXT_OCTETS.decode("utf-8", "surrogateescape")
KINDS: tuple[Any, ...] = (
    True,
    False,
    1,
    0,
    15,
    1.0,
    0.5,
    Decimal(15),
    Decimal("1.0"),
    Decimal("1.00"),
    "1",
    "true",
    "",
)
KINDS += (NOON, Timestamp(15), FAR, None, [1], [True], ["a"], [b"a"], {"a": 1}, {"a": True}, {"a": "b"}, {"a": b"b"})


@pytest.mark.parametrize("one", KINDS, ids=repr)
def test_a_value_equals_itself_and_no_value_of_another_kind(one: Any) -> None:
    assert [other for other in KINDS if same_value(one, other)] == [one]
    assert [type(other) for other in KINDS if same_value(one, other)] == [type(one)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", b"a", True),
        (LOOSE_TEXT, TEXT_OCTETS, True),
        ("é", "é".encode(), True),
        ("a", b"b", False),
        ("", b"", True),
        (["a"], [b"a"], False),
        ({"k": "a"}, {"k": b"a"}, False),
        ({"k": 1, "m": 2}, {"m": 2, "k": 1}, False),
        ({"k": 1}, {"k": 1, "m": 2}, False),
        ([1, 2], [1], False),
        ([[1]], [[True]], False),
        ([{"k": Decimal(1)}], [{"k": 1}], False),
        (Decimal("-1.5"), Decimal("-1.5"), True),
    ],
)
def test_text_octets_and_nested_values(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same
    assert same_value(other, one) is same


INTEGERS = [b"b\x05", b"B\x05", pack(">cH", b"u", 5), pack(">ch", b"s", 5), pack(">cI", b"i", 5), pack(">cq", b"l", 5)]
FLOATS = [pack(">cf", b"f", 0.5), pack(">cd", b"d", 0.5)]


@pytest.mark.parametrize("family", [INTEGERS, FLOATS], ids=["integers", "floats"])
def test_the_width_of_a_number_does_not_count(family: list[bytes]) -> None:
    values = []
    for octets in family:
        field = b"\x01k" + octets
        values.append(decode_table(len(field).to_bytes(4) + field)[0]["k"])
    assert all(same_value(one, other) for one in values for other in values)


def test_arguments_are_compared_with_their_codes_and_in_any_order() -> None:
    assert same_arguments({"a": 1, "b": "x"}, {"b": "x", "a": 1})
    assert not same_arguments({"a": 1}, {"a": True})
    assert not same_arguments({"a": "x"}, {"a": b"x"})
    assert not same_arguments({"a": None}, {})


def test_the_order_of_a_bindings_arguments_does_not_count() -> None:
    assert binding_octets({"k": 1, "a": "x"}) == binding_octets({"a": "x", "k": 1}) == encode_table({"a": "x", "k": 1})
    assert binding_octets({"k": 1}) != binding_octets({"k": True})


# in the broker --------------------------------------------------------------------------------------------------------


def bound(arguments: dict[str, Any]) -> tuple[Core, Any]:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(QUEUE_BIND, "q", "amq.headers", "", False, arguments)
    core.sync()
    assert client.heard() == ["queue.bind-ok"]
    return core, client


def depth(core: Core) -> int:
    return core.node.state.topology.registry.vhost("/").queues["q"].depth


@pytest.mark.parametrize(
    ("wanted", "brought", "routed"),
    [
        (True, 1, False),
        (1, True, False),
        (Decimal(15), 15, False),
        (15, Decimal(15), False),
        (1, 1.0, False),
        ("a", b"a", True),
        (b"a", "a", True),
        (NOON, NOON, True),
        (None, True, True),
        (None, None, True),
        ("x", None, False),
        ([1, "a"], [1, "a"], True),
    ],
)
@pytest.mark.parametrize("match", ["all", "any", "all-with-x", "any-with-x"])
def test_a_headers_exchange_compares_kinds(wanted: Any, brought: Any, routed: bool, match: str) -> None:
    core, client = bound({"k": wanted, "x-match": match})
    properties = encode_properties(delivery_mode=2, headers={"k": brought})
    client.send(publish_frames(1, "amq.headers", "", properties, b"x", FRAME_MAX))
    core.sync()
    assert depth(core) == int(routed)


def test_a_binding_goes_whatever_the_order_of_its_arguments() -> None:
    core, client = bound({"k": 1, "a": "x"})
    bindings = core.node.state.topology.registry.vhost("/").exchanges["amq.headers"].bindings
    client.method(QUEUE_BIND, "q", "amq.headers", "", False, {"a": "x", "k": 1})
    assert len(bindings) == 1
    client.method(QUEUE_UNBIND, "q", "amq.headers", "", {"a": "x", "k": True})
    assert len(bindings) == 1
    client.method(QUEUE_UNBIND, "q", "amq.headers", "", {"a": "x", "k": 1})
    assert bindings == {}


def test_a_binding_of_an_older_log_goes_by_the_order_that_it_has() -> None:
    core, client = bound({"a": "x", "k": 1})
    exchange = core.node.state.topology.registry.vhost("/").exchanges["amq.headers"]
    (binding,) = exchange.bindings.values()
    exchange.unbind(binding.key)
    binding.raw_arguments = encode_table({"k": 1, "a": "x"})
    exchange.bind(binding)
    client.method(QUEUE_UNBIND, "q", "amq.headers", "", {"k": 1, "a": "x"})
    assert exchange.bindings == {}


@pytest.mark.parametrize(
    ("first", "again", "refused"), [(1, True, True), (1, 1.0, True), (1, Decimal(1), True), (1, 1, False)]
)
def test_a_queue_declared_again_compares_kinds(first: Any, again: Any, refused: bool) -> None:
    core = Core()
    client = core.client()
    for value in (first, again):
        client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-message-ttl": value})
        core.sync()
    assert client.heard() == ["queue.declare-ok", "channel.close" if refused else "queue.declare-ok"]


@pytest.mark.parametrize(("again", "refused"), [("ae", False), (b"ae", False), ("other", True), (1, True)])
def test_an_exchange_declared_again_compares_its_alternate(again: Any, refused: bool) -> None:
    core = Core()
    client = core.client()
    for value in ("ae", again):
        declare = ("x", "fanout", False, True, False, False, False, {"alternate-exchange": value})
        client.send(encode_method(1, EXCHANGE_DECLARE, *declare))
        core.sync()
    events = client.events()
    assert (events[-1][1] == CHANNEL_CLOSE) is refused


@pytest.mark.parametrize("kind", ["spiral", "x-jms-topic"])
def test_an_unknown_exchange_type_closes_the_channel_alone(kind: str) -> None:
    """The second is the one of RabbitMQ's JMS client, for selectors."""
    client = Core().client()
    client.method(EXCHANGE_DECLARE, "x", kind, False, True, False, False, False, {})
    (event,) = client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    assert f"exchange 'x' in vhost '/': unknown exchange type '{kind}'" in event[2][1]
