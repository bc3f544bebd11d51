"""Unmodified aio-pika against one broker: many channels at once, confirms, transactions, returns, reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from tests.integration.broker_process import BrokerProcess, running_broker

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


@asynccontextmanager
async def connected(broker: BrokerProcess, password: str = "guest") -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(host="127.0.0.1", port=broker.port, login="guest", password=password)
    async with connection:
        yield connection


def message(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


async def test_confirmed_publishes_at_once(broker: BrokerProcess, queue: str) -> None:
    async with connected(broker) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, durable=True)
        exchange = channel.default_exchange
        await asyncio.gather(*[exchange.publish(message(b"%d" % number), queue) for number in range(500)])
        got = []
        async with declared.iterator() as deliveries:
            async for delivery in deliveries:
                async with delivery.process():
                    got.append(int(delivery.body))
                if len(got) == 500:
                    break
        assert got == list(range(500))


async def test_many_transactions_at_once_are_each_atomic(broker: BrokerProcess, queue: str) -> None:
    names = [f"{queue}.{number}" for number in range(4)]
    async with connected(broker) as connection:
        setup = await connection.channel()
        declared = [await setup.declare_queue(name, durable=True) for name in names]

        async def work(worker: int) -> None:
            channel = await connection.channel(publisher_confirms=False)
            for step in range(10):
                async with channel.transaction():
                    for name in names:
                        await channel.default_exchange.publish(message(b"%d.%d" % (worker, step)), name)

        await asyncio.gather(*[work(worker) for worker in range(16)])
        depths = [(await each.declare()).message_count for each in declared]
        assert depths == [160] * 4
        bodies = []
        for each in declared:
            got = [await each.get(no_ack=True) for _ in range(160)]
            bodies.append([one.body for one in got])
        assert all(set(each) == set(bodies[0]) for each in bodies)


async def test_rollback_leaves_nothing(broker: BrokerProcess, queue: str) -> None:
    async with connected(broker) as connection:
        channel = await connection.channel(publisher_confirms=False)
        declared = await channel.declare_queue(queue, durable=True)
        transaction = channel.transaction()
        await transaction.select()
        await channel.default_exchange.publish(message(b"x"), queue)
        await transaction.rollback()
        assert await declared.get(fail=False) is None


async def test_unroutable_is_returned(broker: BrokerProcess) -> None:
    async with connected(broker) as connection:
        channel = await connection.channel(on_return_raises=True)
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(message(b"x"), "nobody.has.this.queue")


async def test_a_closed_channel_leaves_the_others(broker: BrokerProcess, queue: str) -> None:
    async with connected(broker) as connection:
        good, bad = await connection.channel(), await connection.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await bad.declare_queue("no.such.queue", passive=True)
        declared = await good.declare_queue(queue)
        assert declared.name == queue


async def test_wrong_password(broker: BrokerProcess) -> None:
    with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
        async with connected(broker, password="wrong"):
            pass


async def test_a_robust_connection_survives_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = broker.address
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            declared = await channel.declare_queue("q", durable=True)
            await channel.default_exchange.publish(message(b"before"), "q")
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            async with asyncio.timeout(10):
                while True:
                    try:
                        await channel.default_exchange.publish(message(b"after"), "q")
                        break
                    except (aiormq.exceptions.AMQPError, RuntimeError):
                        await asyncio.sleep(0.1)  # aio-pika is still putting the channel together again
                first, second = await declared.get(), await declared.get()
            assert (first.body, first.redelivered, second.body) == (b"before", False, b"after"), "nobody was given it"


async def test_dead_letters(broker: BrokerProcess, queue: str) -> None:
    """As aio-pika's own tests have them: rejected, expired by the queue's time and by the message's own, too many."""
    async with connected(broker) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(f"{queue}.dlx", auto_delete=True)
        dead = await channel.declare_queue(f"{queue}.dead")
        await dead.bind(exchange, routing_key=dead.name)
        arguments = {"x-dead-letter-exchange": exchange.name, "x-dead-letter-routing-key": dead.name}
        declared = await channel.declare_queue(
            queue, arguments={**arguments, "x-message-ttl": 60_000, "x-max-length": 2}
        )
        async with dead.iterator(no_ack=True) as letters:
            await channel.default_exchange.publish(message(b"bad"), queue)
            await (await declared.get()).reject(requeue=False)
            await channel.default_exchange.publish(
                aio_pika.Message(b"late", headers={"foo": "bar"}, expiration=0.2), queue
            )
            deaths: list[tuple[bytes, Any]] = []
            async with asyncio.timeout(30):
                for _ in range(2):
                    letter = await anext(letters)
                    deaths.append((letter.body, cast("Any", letter.headers["x-death"])[0]))
                for number in range(3):
                    await channel.default_exchange.publish(message(b"%d" % number), queue)
                letter = await anext(letters)
                deaths.append((letter.body, cast("Any", letter.headers["x-death"])[0]))
    assert [(body, death["reason"], death["queue"], death["count"]) for body, death in deaths] == [
        (b"bad", "rejected", queue, 1),
        (b"late", "expired", queue, 1),
        (b"0", "maxlen", queue, 1),
    ]
    assert deaths[1][1]["original-expiration"] == "200"


async def test_the_next_consumer_takes_over_when_the_active_one_is_cancelled(broker: BrokerProcess, queue: str) -> None:
    async with connected(broker) as connection:
        channels = [await connection.channel() for _ in range(2)]
        got: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        tags = []
        for number, channel in enumerate(channels):
            declared = await channel.declare_queue(queue, arguments={"x-single-active-consumer": True})
            taken = partial(_taken, got, number)
            tags.append((declared, await declared.consume(taken, arguments={"x-priority": 0})))
        for body in (b"1", b"2", b"3"):
            await channels[0].default_exchange.publish(message(body), queue)
        assert [await got.get() for _ in range(3)] == [(0, b"1"), (0, b"2"), (0, b"3")]
        await tags[0][0].cancel(tags[0][1])
        await channels[0].default_exchange.publish(message(b"4"), queue)
        assert await got.get() == (1, b"4")


async def _taken(got: asyncio.Queue[tuple[int, bytes]], number: int, taken: AbstractIncomingMessage) -> None:
    await taken.ack()
    await got.put((number, taken.body))
