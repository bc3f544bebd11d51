"""Messages that a connection has published are there for its next request, even before they are confirmed."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.frames import Event
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.clients.channel import CLOSE_PATIENCE_MS
from understudy.broker.core.limits import Limits

GET = encode_method(1, BASIC_GET, "q", False)
PASSIVE = encode_method(1, QUEUE_DECLARE, "q", True, False, False, False, False, {})
PURGE = encode_method(1, QUEUE_PURGE, "q", False)
PURGE_NO_WAIT = encode_method(1, QUEUE_PURGE, "q", True)
DELETE = encode_method(1, QUEUE_DELETE, "q", False, False, False)
DELETE_IF_EMPTY = encode_method(1, QUEUE_DELETE, "q", False, True, False)
DELETE_IF_EMPTY_NO_WAIT = encode_method(1, QUEUE_DELETE, "q", False, True, True)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture(params=[False, True], ids=["durable", "exclusive"])
def client(core: Core, request: pytest.FixtureRequest) -> Client:
    """With a queue ``q``, replicated or of this connection alone."""
    client = core.client(channels=2)
    core.queue(client, "q", exclusive=request.param)
    return client


def only(client: Client) -> Event:
    events = client.events()
    assert len(events) == 1, events
    return events[0]


def test_get_finds_what_was_published_before_it(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), GET)
    core.sync()
    assert only(client)[4] == b"1"  # type: ignore[misc]


def test_get_on_another_channel_finds_it_too(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), encode_method(2, BASIC_GET, "q", True))
    core.sync()
    event = only(client)
    assert (event[0], event[4]) == (2, b"1")  # type: ignore[misc]


def test_get_waits_for_the_log_as_it_was_and_not_for_what_comes_later(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), encode_method(2, BASIC_GET, "q", True))
    core.turn()
    core.node.durable_to(core.node.gate.appended)
    client.send(publish("q", b"2"))  # the other channel goes on publishing while the answer is due
    assert only(client)[4] == b"1"  # type: ignore[misc]


def test_get_is_answered_at_once_when_nothing_is_open(core: Core, client: Client) -> None:
    client.publish("q", b"1")
    core.sync()
    client.send(GET)
    assert client.heard() == ["basic.get-ok"]
    client.send(GET)
    assert client.heard() == ["basic.get-empty"]


def test_get_does_not_wait_for_the_publishes_of_others(core: Core, client: Client) -> None:
    other = core.client()
    core.queue(other, "other")
    other.publish("other", b"1")
    client.send(GET)
    assert client.heard() == ["basic.get-empty"]


def test_later_methods_of_the_channel_keep_their_order(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), GET, publish("q", b"2"), GET, GET)
    core.sync()
    core.sync()
    events = client.events()
    assert [event[4] for event in events[:2]] == [b"1", b"2"]  # type: ignore[misc]
    assert len(events) == 3
    assert len(events[2]) == 3  # get-empty


def test_a_passive_declare_counts_what_was_published(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), publish("q", b"2"), PASSIVE)
    core.sync()
    assert only(client)[2] == ("q", 2, 0)


def test_a_purge_takes_and_counts_what_was_published(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), publish("q", b"2"), PURGE)
    core.sync()
    core.sync()
    assert only(client)[2] == (2,)
    client.send(PASSIVE)
    core.sync()
    assert only(client)[2] == ("q", 0, 0)


def test_a_purge_leaves_what_is_published_after_it(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), PURGE, publish("q", b"2"), GET)
    core.sync()
    core.sync()
    core.sync()
    purged, got = client.events()
    assert purged[2] == (1,)
    assert got[4] == b"2"  # type: ignore[misc]


def test_a_delete_counts_what_was_published(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), DELETE)
    core.sync()
    core.sync()
    assert only(client)[2] == (1,)


@pytest.mark.parametrize("frames", [DELETE_IF_EMPTY, DELETE_IF_EMPTY_NO_WAIT])
def test_a_queue_that_is_about_to_be_filled_is_not_empty(core: Core, client: Client, frames: bytes) -> None:
    client.send(publish("q", b"1"), frames)
    core.sync()
    core.sync()
    event = only(client)
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 406
    assert "not empty" in event[2][1]


@pytest.mark.parametrize(
    "settle",
    [encode_method(1, BASIC_ACK, 1, False), encode_method(1, BASIC_REJECT, 1, False), PURGE_NO_WAIT],
    ids=["ack", "reject", "purge"],
)
def test_a_queue_whose_messages_were_settled_is_empty(core: Core, client: Client, settle: bytes) -> None:
    """The queue used to stay non-empty until that was stable: delete-if-empty failed right after the last acknowledgement."""
    client.publish("q", b"1")
    core.sync()
    if settle != PURGE_NO_WAIT:
        client.send(GET)
    client.heard()
    client.send(settle, DELETE_IF_EMPTY)
    core.sync()
    assert client.heard() == ["queue.delete-ok"]


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize(("number", "key"), [(1, CHANNEL_CLOSE), (0, CONNECTION_CLOSE)])
def test_a_close_goes_on_and_what_stood_before_it_is_done(core: Core, number: int, key: int, stable: bool) -> None:
    """A purge that waits is not overtaken. But closes always go on (DESIGN 15), even if nothing becomes stable any more."""
    client, other = core.client(), core.client()
    core.queue(client, "q")
    client.send(publish("q", b"1"), PURGE_NO_WAIT, GET, publish("q", b"2"), encode_method(number, key, 200, "", 0, 0))
    assert client.heard() == []
    if stable:
        core.sync()
        core.sync()
    else:
        core.pass_ms(CLOSE_PATIENCE_MS - 1)
        assert client.heard() == []
        core.pass_ms(1)
    assert client.heard() == ["basic.get-empty"] * stable + [f"{'channel' if number else 'connection'}.close-ok"]
    core.sync()
    core.sync()
    assert client.heard() == []
    other.send(PASSIVE)
    core.sync()
    assert only(other)[2][1] == (1 if stable else 0)
    assert core.broker.counters.totals["published"] == (2 if stable else 1)


def test_an_answer_that_a_close_did_not_wait_for_releases_nothing_else(core: Core, client: Client) -> None:
    """The answer is the declaration's, and comes while the purge waits for what was published before it."""
    client.send(encode_method(1, QUEUE_DECLARE, "other", False, True, False, False, False, {}))
    declared = core.node.gate.appended
    close = encode_method(1, CHANNEL_CLOSE, 200, "bye", 0, 0)
    client.send(publish("q", b"before"), PURGE_NO_WAIT, publish("q", b"after"), close)
    core.node.durable_to(declared)
    for _ in range(4):
        core.sync()
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert [entry.message.content() for entry in queue.entries.values()] == [b"after"]


def test_a_delete_that_waits_survives_its_channel(core: Core, client: Client) -> None:
    client.send(publish("q", b"1"), DELETE, encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0))
    core.pass_ms(CLOSE_PATIENCE_MS)
    assert client.heard() == ["channel.close-ok"]
    core.sync()
    client.send(encode_method(2, QUEUE_DECLARE, "q", True, False, False, False, False, {}))
    event = only(client)
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 404)


def test_a_close_that_waits_is_answered_by_a_channel_that_fails(core: Core, client: Client) -> None:
    """The two closes cross; the number is free when the client has answered ours."""
    client.send(publish("q", b"1"), DELETE_IF_EMPTY, encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0))
    core.sync()
    assert client.heard() == ["channel.close", "channel.close-ok"]
    client.send(encode_method(1, CHANNEL_CLOSE_OK), encode_method(1, CHANNEL_OPEN))
    assert client.heard() == ["channel.open-ok"]


def test_a_get_that_waits_takes_nothing_when_its_channel_is_gone(core: Core) -> None:
    client = core.client(channels=2)
    core.queue(client, "q")
    client.send(publish("q", b"1"), GET, encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0))
    core.sync()
    assert client.heard() == ["channel.close-ok"]
    client.send(encode_method(2, BASIC_GET, "q", True))
    event = only(client)
    assert event[4] == b"1"  # type: ignore[misc]
    assert event[2][1] is False  # never delivered before


def test_a_queue_that_is_deleted_meanwhile_is_not_found(core: Core) -> None:
    client, other = core.client(), core.client()
    core.queue(client, "q")
    client.send(publish("q", b"1"), GET)
    other.send(encode_method(1, QUEUE_DELETE, "q", False, False, True))
    core.sync()
    event = only(client)
    assert (event[1], event[2][:2]) == (CHANNEL_CLOSE, (404, "NOT_FOUND - no queue 'q' in vhost '/'"))


def test_what_waits_behind_an_answer_counts_as_not_stable() -> None:
    """Frames that a channel keeps for later are held in memory: a client that sends without end is not read any more."""
    core = Core(Limits(unstable_bytes_per_connection=10_000))
    client = core.client()
    core.queue(client, "q")
    client.send(publish("q", b"1"), GET, publish("q", bytes(9_000)))
    assert not client.paused()
    client.send(publish("q", bytes(1_000)))
    assert client.paused()
    assert client.heard() == ["connection.blocked"]
    core.sync()
    core.sync()
    assert not client.paused()
    assert client.heard() == ["basic.get-ok", "connection.unblocked"]
    assert client.connection.unstable_bytes == core.broker.unstable.held == 0


def test_what_waited_in_a_channel_is_forgotten_with_it() -> None:
    core = Core(Limits(unstable_bytes_per_connection=10_000))
    client = core.client()
    core.queue(client, "q")
    client.send(publish("q", b"1"), GET, publish("q", bytes(20_000)))
    assert client.paused()
    client.connection.lost("test")
    core.sync()
    assert client.connection.unstable_bytes == core.broker.unstable.held == 0


def test_who_waited_for_the_bytes_of_others_goes_on_with_them() -> None:
    """The bound of the whole broker: the connection that filled it is not the only one that is held back."""
    core = Core(Limits(unstable_bytes=10_000))
    first, second = core.client(), core.client()
    core.queue(first, "q")
    first.connection.receive(publish("q", bytes(100)))
    second.connection.receive(publish("q", bytes(20_000)))
    core.turn()
    assert first.paused() or second.paused()
    first.connection.check_bounds()
    assert first.paused()
    core.sync()
    assert not first.paused()
    assert not second.paused()


def test_publishes_of_a_transaction_are_not_waited_for(core: Core, client: Client) -> None:
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(2, BASIC_GET, "q", True))
    assert client.heard() == ["tx.select-ok", "basic.get-empty"]
    client.send(encode_method(1, TX_COMMIT))
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    client.send(encode_method(2, BASIC_GET, "q", True))
    assert client.heard() == ["basic.get-ok"]
