"""CC and BCC: further routing keys in a message's headers; BCC is shown to nobody and stored nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from tests.unit.core.life.recovery_kit import KeptCore, KeptJournal
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    CONFIRM_SELECT,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
    method_name,
)
from understudy.broker.amqp.properties import decode_properties, encode_properties
from understudy.broker.core.limits import Limits

QUEUES = ("a", "b", "c", "d")


def serving(core: Core) -> Client:
    client = core.client(channels=2)
    for name in QUEUES:
        core.queue(client, name)
    return client


@pytest.fixture
def core() -> KeptCore:
    return KeptCore()


@pytest.fixture
def client(core: KeptCore) -> Client:
    return serving(core)


def exchange(core: Core, client: Client, name: str, kind: str, *bound: tuple[str, str], **arguments: Any) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.method(EXCHANGE_DECLARE, name, kind, False, True, False, False, False, named)
    for queue, key in bound:
        client.method(QUEUE_BIND, queue, name, key, False, {})
    for _ in bound:
        settle(core)
    assert set(client.heard()) <= {"exchange.declare-ok", "queue.bind-ok"}


def message(
    key: str, name: str = "", body: bytes = b"x", *, mandatory: bool = False, channel: int = 1, **headers: Any
) -> bytes:
    properties = encode_properties(delivery_mode=2, correlation_id="BCC", headers=headers)
    return publish_frames(channel, name, key, properties, body, FRAME_MAX, mandatory)


def settle(core: Core) -> None:
    for _ in range(4):
        core.sync()


def depths(core: Core) -> str:
    """Names of queues, as often as each has a message."""
    queues = core.node.state.topology.registry.vhost("/").queues
    return "".join(name * queues[name].depth for name in QUEUES)


@pytest.mark.parametrize(
    ("headers", "reached"),
    [
        ({"CC": ["b"]}, "ab"),
        ({"BCC": ["b"]}, "ab"),
        ({"CC": ["b", "c"], "BCC": ["d"]}, "abcd"),
        ({"CC": ["a", "b", "b"], "BCC": ["b", "a"]}, "ab"),
        ({"CC": ["nowhere"]}, "a"),
        ({"CC": []}, "a"),
        ({"CC": [1, None, b"b", ["c"], "d"]}, "ad"),
        ({"cc": ["b"], "Bcc": ["b"], "CCC": ["b"]}, "a"),
        ({"note": "CC"}, "a"),
        ({"nested": {"CC": ["b"]}}, "a"),
    ],
)
def test_the_default_exchange(core: KeptCore, client: Client, headers: dict[str, Any], reached: str) -> None:
    client.send(message("a", **headers))
    core.sync()
    assert depths(core) == reached
    assert client.heard() == []


def test_a_key_that_leads_nowhere_is_no_hindrance(core: KeptCore, client: Client) -> None:
    client.send(message("nowhere", mandatory=True, BCC=["b"]))
    core.sync()
    assert depths(core) == "b"
    assert client.heard() == []


def test_a_mandatory_message_that_no_key_routes_comes_back_without_bcc(core: KeptCore, client: Client) -> None:
    client.send(message("nowhere", mandatory=True, CC=["here"], BCC=["there"]))
    (event,) = client.events()
    assert method_name(event[1]) == "basic.return"
    assert decode_properties(event[3])["headers"] == {"CC": ["here"]}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "reached"), [("direct", "ab"), ("topic", "abc"), ("fanout", "abcd"), ("headers", "abcd")]
)
def test_each_type_of_exchange(core: KeptCore, client: Client, kind: str, reached: str) -> None:
    exchange(core, client, "x", kind, ("a", "one"), ("b", "two"), ("c", "tw*"), ("c", "*"), ("d", "four.#"))
    client.send(message("one", "x", CC=["two"]))
    core.sync()
    assert depths(core) == reached


@pytest.mark.parametrize(("keys", "reached"), [(["two"], "b"), (["none"], "c")])
def test_an_alternate_exchange_is_asked_if_no_key_routes(
    core: KeptCore, client: Client, keys: list[str], reached: str
) -> None:
    exchange(core, client, "other", "topic", ("c", "none"))
    exchange(core, client, "x", "direct", ("b", "two"), alternate_exchange="other")
    client.send(message("one", "x", BCC=keys))
    core.sync()
    assert depths(core) == reached


def test_consumers_see_cc_and_the_first_key_and_no_bcc(core: KeptCore, client: Client) -> None:
    client.send(message("a", CC=["b"], BCC=["c"], other=[1]))
    core.sync()
    for queue in "abc":
        client.method(BASIC_GET, queue, True)
        (event,) = client.events()
        assert event[2][3] == "a"
        assert decode_properties(event[3]) == {  # type: ignore[misc]
            "headers": {"CC": ["b"], "other": [1]},
            "delivery_mode": 2,
            "correlation_id": "BCC",
        }


def test_no_journal_holds_bcc(core: KeptCore, client: Client) -> None:
    client.send(message("a", BCC=["secret-of-bcc"]))
    client.send(
        encode_method(2, TX_SELECT), message("a", channel=2, BCC=["secret-of-bcc"]), encode_method(2, TX_COMMIT)
    )
    settle(core)
    assert depths(core) == "aa"
    assert not [frame for frame in core.journal.frames if b"secret-of-bcc" in bytes(frame)]


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["b", b"b", 1, True, None, {"b": 1}, "", 0])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_header_that_is_no_array_closes_the_channel(
    core: KeptCore, client: Client, name: str, value: Any, transactional: bool
) -> None:
    if transactional:
        client.method(TX_SELECT)
    client.heard()
    client.send(message("a", **{name: value}))
    (event,) = client.events()
    assert (method_name(event[1]), event[2][0]) == ("channel.close", 406)
    assert f"invalid message: unacceptable type in header '{name}'" in event[2][1]
    settle(core)
    assert depths(core) == ""


def test_a_key_of_more_than_255_octets_closes_the_channel(core: KeptCore, client: Client) -> None:
    client.send(message("a", CC=["b", "é" * 128]))
    (event,) = client.events()
    assert event[2][:2] == (
        406,
        f"PRECONDITION_FAILED - invalid message: routing key '{'é' * 40}' in header 'CC' has 256 octets, 255 are the most",
    )


def test_a_missing_exchange_comes_before_a_bad_header(core: KeptCore, client: Client) -> None:
    client.send(message("a", "missing", CC="b"))
    assert client.events()[0][2][0] == 404


def test_one_confirm_a_message(core: KeptCore, client: Client) -> None:
    client.method(CONFIRM_SELECT, False)
    client.send(message("a", CC=["b", "c"]), message("nowhere", BCC=["none"]))
    assert client.heard() == ["confirm.select-ok"]
    core.sync()
    (event,) = client.events()
    assert event[2] == (2, True)


@pytest.mark.parametrize(("end", "reached"), [(TX_COMMIT, "abc"), (TX_ROLLBACK, "")])
def test_a_transaction_brings_all_copies_or_none(core: KeptCore, client: Client, end: int, reached: str) -> None:
    client.send(encode_method(1, TX_SELECT), message("a", CC=["b"], BCC=["c"]))
    core.sync()
    assert depths(core) == ""
    client.send(encode_method(1, end))
    settle(core)
    assert depths(core) == reached


@pytest.mark.parametrize("transactional", [False, True])
def test_a_large_body_stands_once_for_all_copies(transactional: bool) -> None:
    journal = KeptJournal()
    core = Core(Limits(parted_bytes=1 << 17, part_bytes=1 << 15, parts_in_flight_bytes=1 << 16), journal)
    client = serving(core)
    body = bytes(range(256)) * (1 << 10)
    frames = [message("a", body=body, CC=["b"], BCC=["c"])]
    if transactional:
        frames = [encode_method(1, TX_SELECT), *frames, encode_method(1, TX_COMMIT)]
    client.send(*frames)
    for _ in range(40):
        core.sync()
    assert depths(core) == "abc"
    held = [core.node.state.topology.registry.vhost("/").queues[name].ready[0].message for name in "abc"]
    assert held[0] is held[1] is held[2]
    assert bytes(held[0].content()) == body
    assert decode_properties(bytes(held[0].properties))["headers"] == {"CC": ["b"]}
    assert sum(len(bytes(frame)) for frame in journal.frames) < 2 * len(body)


def test_routes_of_the_key_alone_are_as_before(core: KeptCore, client: Client) -> None:
    """Queues that a message with copies reaches are not remembered for the next one."""
    client.send(message("a", CC=["b"]), message("a"), message("a", BCC=["c"]), message("a"))
    core.sync()
    assert depths(core) == "aaaabc"
