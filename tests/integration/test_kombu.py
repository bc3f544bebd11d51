"""Unmodified kombu (py-amqp) against one broker, as Celery uses it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kombu as kombu_module
import kombu.pools as pools_module
import pytest
from amqp.exceptions import AccessRefused, ConsumerCancelled, PreconditionFailed

from tests.integration.broker_process import BrokerProcess, leaks_of_clients

pytestmark = pytest.mark.integration

kombu: Any = kombu_module  # half typed: its names are not exported
pools: Any = pools_module


def connection_to(broker: BrokerProcess, password: str = "guest", **parameters: Any) -> Any:
    return kombu.Connection(f"amqp://guest:{password}@127.0.0.1:{broker.port}//", **parameters)


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    with connection_to(broker, transport_options={"confirm_publish": True}) as opened:
        yield opened


def test_task_round_trip(connection: Any, queue: str) -> None:
    exchange = kombu.Exchange(queue, "direct", durable=True)
    tasks = kombu.Queue(queue, exchange, routing_key=queue)
    with pools.producers[connection].acquire(block=True) as producer:
        for number in range(10):
            producer.publish({"n": number}, exchange=exchange, routing_key=queue, declare=[tasks], retry=True)
    got: list[int] = []

    def on_task(body: Any, message: Any) -> None:
        got.append(body["n"])
        message.ack()

    with connection.Consumer(tasks, callbacks=[on_task], prefetch_count=2):
        while len(got) < 10:
            connection.drain_events(timeout=60)
    assert got == list(range(10))
    with pytest.raises(socket.timeout), connection.Consumer(tasks, callbacks=[on_task]):
        connection.drain_events(timeout=0.2)
    pools.reset()


def test_a_queue_with_a_consumer_of_the_same_channel_is_deleted(connection: Any, queue: str) -> None:
    """kombu raises out of ``delete`` if the consumer's cancellation comes before ``queue.delete-ok``."""
    channel = connection.channel()
    bound = kombu.Queue(queue, durable=True)(channel)
    bound.declare()
    bound.consume("tag", callback=lambda _: None)
    bound.delete()
    with pytest.raises(ConsumerCancelled):
        connection.drain_events(timeout=60)


def test_simple_queue(connection: Any, queue: str) -> None:
    simple = connection.SimpleQueue(queue)
    simple.put({"hello": "world"})
    assert simple.qsize() == 1
    message = simple.get(timeout=60)
    assert message.payload == {"hello": "world"}
    message.requeue()
    again = simple.get(timeout=60)
    assert again.delivery_info["redelivered"]
    again.ack()
    with pytest.raises(simple.Empty):
        simple.get_nowait()
    simple.close()


def test_expiring_reply_queue(connection: Any, queue: str) -> None:
    channel = connection.channel()
    reply = kombu.Queue(queue, expires=60.0, message_ttl=60.0, auto_delete=True, durable=False)(channel)
    reply.declare()
    kombu.Producer(channel).publish({"ok": 1}, exchange="", routing_key=queue, expiration=30)
    got = reply.get()
    assert got.payload == {"ok": 1}
    got.ack()
    reply.delete()


def test_transaction(broker: BrokerProcess, connection: Any, queue: str) -> None:
    channel = connection.default_channel
    channel.queue_declare(queue, durable=True, auto_delete=False)
    with connection_to(broker) as transactional:
        move(transactional.channel(), queue)
    assert channel.queue_declare(queue, passive=True).message_count == 1


def move(tx: Any, queue: str) -> None:
    tx.tx_select()
    producer = kombu.Producer(tx)
    producer.publish("rolled back", exchange="", routing_key=queue)
    tx.tx_rollback()
    producer.publish("committed", exchange="", routing_key=queue)
    tx.tx_commit()


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_wrong_password_with_both_mechanisms(broker: BrokerProcess, method: str) -> None:
    with leaks_of_clients(), pytest.raises(AccessRefused) as caught:
        connection_to(broker, password="wrong", login_method=method).connect()
    assert caught.value.reply_code == 403


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_both_mechanisms(broker: BrokerProcess, method: str, queue: str) -> None:
    with connection_to(broker, login_method=method) as opened:
        opened.SimpleQueue(queue).put("x")


def test_inequivalent_redeclaration(connection: Any, queue: str) -> None:
    kombu.Queue(queue, durable=True)(connection.channel()).declare()
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        kombu.Queue(queue, durable=False)(connection.channel()).declare()


def test_priorities(connection: Any, queue: str) -> None:
    """Messages with priorities, as Celery publishes tasks, and a consumer with one."""
    channel = connection.channel()
    tasks = kombu.Queue(queue, max_priority=10, consumer_arguments={"x-priority": 3})(channel)
    tasks.declare()
    producer = kombu.Producer(channel)
    for priority in (0, 9, 5):
        producer.publish(priority, exchange="", routing_key=queue, priority=priority)
    got: list[int] = []
    with connection.Consumer(kombu.Queue(queue, no_declare=True), callbacks=[lambda body, _: got.append(body)]):
        while len(got) < 3:
            connection.drain_events(timeout=60)
    assert got == [9, 5, 0]
