"""Unmodified pika (blocking) against one broker: what an application does, step by step."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import BrokerProcess, leaks_of_clients, wait_until

pytestmark = pytest.mark.integration

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(port: int, **parameters: Any) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **parameters))


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    opened = connect(broker.port)
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: Any) -> Any:
    """In confirm mode: a message is where it belongs when publish returns."""
    opened = connection.channel()
    opened.confirm_delivery()
    return opened


@pytest.fixture
def plain_channel(connection: Any) -> Any:
    return connection.channel()


def drain(channel: Any, queue: str) -> list[bytes]:
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    return bodies


def depth(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_publish_get_ack(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    properties = pika.BasicProperties(
        delivery_mode=2,
        content_type="text/plain",
        headers={"a": 1, "b": ["x", True]},
        correlation_id="c",
        message_id="m",
    )
    channel.basic_publish("", queue, b"hello", properties)
    method, got, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.message_count) == (b"hello", False, 0)
    assert (got.content_type, got.headers, got.correlation_id, got.message_id) == (
        "text/plain",
        {"a": 1, "b": ["x", True]},
        "c",
        "m",
    )
    channel.basic_ack(method.delivery_tag)
    assert depth(channel, queue) == 0


def test_consume_in_order_with_prefetch(connection: Any, channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    channel.basic_qos(prefetch_count=7)
    got: list[bytes] = []
    unacked: list[int] = []

    def on_message(_: Any, method: Any, __: Any, body: bytes) -> None:
        got.append(body)
        unacked.append(method.delivery_tag)

    channel.basic_consume(queue, on_message)
    connection.process_data_events(time_limit=0.3)
    assert got == [b"%d" % number for number in range(7)]
    while len(got) < 100:
        channel.basic_ack(unacked[-1], multiple=True)
        connection.process_data_events(time_limit=0.05)
    assert got == [b"%d" % number for number in range(100)]


def test_nack_and_reject_put_back_in_place_or_drop(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_nack(tags[0], requeue=True)
    channel.basic_nack(tags[2], requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"1", True)
    assert channel.basic_get(queue)[2] == b"3"
    assert channel.basic_get(queue)[0] is None


def test_confirms_and_large_bodies(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    bodies = [bytes([size % 251]) * size for size in (0, 1, 131_064, 131_065, 500_000)]
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT)
    assert drain(channel, queue) == bodies


def test_mandatory_is_returned(channel: Any) -> None:
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "nobody.has.this.queue", b"x", mandatory=True)
    assert caught.value.messages[0].method.reply_code == 312


def test_tx_commit_and_rollback(connection: Any, plain_channel: Any, queue: str) -> None:
    channel = plain_channel
    other = connection.channel()
    for name in (queue, queue + ".2"):
        channel.queue_declare(name, durable=True)
    channel.tx_select()
    channel.basic_publish("", queue, b"a", PERSISTENT)
    channel.basic_publish("", queue + ".2", b"b", PERSISTENT)
    assert (depth(other, queue), depth(other, queue + ".2")) == (0, 0)
    channel.tx_commit()
    assert (depth(other, queue), depth(other, queue + ".2")) == (1, 1)
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue + ".2", b"c", PERSISTENT)
    channel.tx_rollback()
    channel.basic_nack(method.delivery_tag)
    channel.tx_commit()
    assert (drain(other, queue), drain(other, queue + ".2")) == ([b"a"], [b"b"])


def test_tx_of_acks_and_publishes_moves_messages(connection: Any, plain_channel: Any, queue: str) -> None:
    channel = plain_channel
    other = connection.channel()
    other.confirm_delivery()
    source, target = queue + ".from", queue + ".to"
    for name in (source, target):
        other.queue_declare(name, durable=True)
    for number in range(20):
        other.basic_publish("", source, b"%d" % number, PERSISTENT)
    channel.tx_select()
    for _ in range(10):
        method, _, body = channel.basic_get(source)
        channel.basic_publish("", target, body, PERSISTENT)
        channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    channel.close()
    assert drain(other, target) == [b"%d" % number for number in range(10)]
    assert drain(other, source) == [b"%d" % number for number in range(10, 20)]


def test_publish_to_a_missing_exchange_inside_a_transaction(connection: Any, plain_channel: Any, queue: str) -> None:
    channel = plain_channel
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    channel.basic_publish("", queue, b"never", PERSISTENT)
    channel.basic_publish("no.such.exchange", "x", b"never", PERSISTENT)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.tx_commit()
    assert caught.value.reply_code == 404
    assert "no.such.exchange" in caught.value.reply_text
    assert drain(connection.channel(), queue) == []


def test_message_and_queue_ttl(broker: BrokerProcess, connection: Any, channel: Any, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-message-ttl": 100})
    channel.queue_declare(queue + ".own")
    channel.queue_declare(queue + ".gone", arguments={"x-expires": 200})
    channel.basic_publish("", queue, b"x")
    channel.basic_publish("", queue + ".own", b"short", pika.BasicProperties(expiration="100"))
    channel.basic_publish("", queue + ".own", b"long")
    wait_until("both messages have expired", lambda: (depth(channel, queue), depth(channel, queue + ".own")) == (0, 1))
    assert drain(channel, queue + ".own") == [b"long"]
    names = [each["name"] for each in broker.status()["queues"]]
    assert queue in names
    wait_until("the queue is gone", lambda: queue + ".gone" not in [q["name"] for q in broker.status()["queues"]])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue + ".gone", passive=True)
    assert caught.value.reply_code == 404
    assert connection.is_open


def test_exchanges_route(channel: Any, queue: str) -> None:
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"{queue}.{kind}", kind, durable=True)
        channel.queue_declare(f"{queue}.{kind}.q")
    channel.queue_bind(f"{queue}.direct.q", f"{queue}.direct", "key")
    channel.queue_bind(f"{queue}.fanout.q", f"{queue}.fanout", "")
    channel.queue_bind(f"{queue}.topic.q", f"{queue}.topic", "a.*.#")
    channel.queue_bind(f"{queue}.headers.q", f"{queue}.headers", "", arguments={"x-match": "all", "k": "v"})
    channel.basic_publish(f"{queue}.direct", "key", b"d")
    channel.basic_publish(f"{queue}.direct", "other", b"no")
    channel.basic_publish(f"{queue}.fanout", "any", b"f")
    channel.basic_publish(f"{queue}.topic", "a.b.c.d", b"t")
    channel.basic_publish(f"{queue}.topic", "b.b", b"no")
    channel.basic_publish(f"{queue}.headers", "", b"h", pika.BasicProperties(headers={"k": "v", "z": 1}))
    channel.basic_publish(f"{queue}.headers", "", b"no", pika.BasicProperties(headers={"k": "w"}))
    got = {kind: drain(channel, f"{queue}.{kind}.q") for kind in ("direct", "fanout", "topic", "headers")}
    assert got == {"direct": [b"d"], "fanout": [b"f"], "topic": [b"t"], "headers": [b"h"]}


def test_exclusive_and_auto_delete(broker: BrokerProcess, connection: Any, channel: Any, queue: str) -> None:
    mine = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_declare(queue, auto_delete=True)
    other_connection = connect(broker.port)
    other = other_connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.queue_declare(mine, passive=True)
    assert caught.value.reply_code == 405
    tag = channel.basic_consume(queue, lambda *_: None)
    channel.basic_cancel(tag)
    other = other_connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.queue_declare(queue, passive=True)
    assert caught.value.reply_code == 404
    connection.close()
    other = other_connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.queue_declare(mine, passive=True)
    assert caught.value.reply_code == 404
    other_connection.close()


def test_unacked_messages_of_a_dead_client_come_back(broker: BrokerProcess, channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    other_connection = connect(broker.port)
    assert other_connection.channel().basic_get(queue)[2] == b"x"
    assert channel.basic_get(queue)[0] is None
    other_connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 60
    while (got := channel.basic_get(queue))[0] is None:
        assert time.monotonic() < deadline
    assert (got[2], got[0].redelivered) == (b"x", True)
    with pytest.raises(pika.exceptions.AMQPError):
        other_connection.process_data_events()


def test_wrong_password(broker: BrokerProcess) -> None:
    with leaks_of_clients():
        with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
            connect(broker.port, credentials=pika.PlainCredentials("guest", "wrong"))
        assert "403" in str(caught.value)
        del caught


def test_unknown_vhost(broker: BrokerProcess) -> None:
    with leaks_of_clients():
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
            connect(broker.port, virtual_host="/nowhere")
        assert "(530)" in str(caught.value)
        assert "NOT_ALLOWED - vhost '/nowhere' not found" in str(caught.value)
        del caught


def test_heartbeats_keep_an_idle_connection(broker: BrokerProcess, queue: str) -> None:
    opened = connect(broker.port, heartbeat=1)
    channel = opened.channel()
    opened.sleep(3.5)
    channel.queue_declare(queue)
    opened.close()


def test_a_silent_client_is_dropped(broker: BrokerProcess) -> None:
    opened = connect(broker.port, heartbeat=1)
    opened.channel()
    time.sleep(3.0)  # pika's blocking connection sends nothing while it is not called
    with pytest.raises(pika.exceptions.AMQPError):
        opened.channel()


def test_what_was_published_without_a_confirm_is_there_for_what_is_asked_next(plain_channel: Any, queue: str) -> None:
    channel = plain_channel
    channel.queue_declare(queue, durable=True)
    for number in range(30):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"%d" % number
        channel.basic_publish("", queue, b"x", PERSISTENT)
        assert depth(channel, queue) == 1
        channel.basic_publish("", queue, b"y", PERSISTENT)
        assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_publish("", queue, b"z", PERSISTENT)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_delete(queue, if_empty=True)
    assert (caught.value.reply_code, "not empty" in caught.value.reply_text) == (406, True)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-length", -5),
        ("x-overflow", "explode"),
        ("x-max-priority", 256),
        ("x-dead-letter-exchange", 7),
        ("x-dead-letter-routing-key", "dead"),
        ("x-single-active-consumer", "yes"),
        ("x-last-value-key", "key"),
    ],
)
def test_refused_arguments_are_named(connection: Any, queue: str, argument: str, value: object) -> None:
    """An argument that is not known, or whose value it may not have: the queue is not declared without it."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare(queue, arguments={argument: value})
    assert caught.value.reply_code == 406
    assert f"'{argument}'" in caught.value.reply_text
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare(queue, passive=True)
    assert caught.value.reply_code == 404


def test_statistics_are_shown(broker: BrokerProcess, channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"x", PERSISTENT)
    channel.basic_get(queue)
    shown = {each["name"]: each for each in broker.status()["queues"]}[queue]
    assert (shown["ready"], shown["acquired"], shown["durable"], shown["enqueued"]) == (0, 1, True, 1)


def test_a_consumer_that_hangs_is_cancelled_and_its_late_acknowledgement_means_nothing(
    connection: Any, channel: Any, queue: str
) -> None:
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    slow, cancelled, tags = connection.channel(), [], []
    slow.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    slow.basic_consume(
        queue,
        lambda _, method, *__: tags.append(method.delivery_tag),
        consumer_tag="slow",
        arguments={"x-consumer-timeout": 200},
    )
    wait_until("cancelled", lambda: connection.process_data_events(0.01) or cancelled == ["slow"])
    slow.basic_ack(tags[0])
    assert slow.basic_get(queue)[2] == b"x"
