"""Habits of RabbitMQ that its clients rely on: the same expectations of Understudy and, if one is named, of a RabbitMQ.

Run against both, a RabbitMQ of one's own listening on that address:

    RABBITMQ_ADDRESS=127.0.0.1:5672 python -m pytest tests/integration/test_rabbitmq_habits.py

Without ``RABBITMQ_ADDRESS`` every test runs against Understudy alone. Where the two differ on purpose, the test takes the fixture
``broker``, which is Understudy, and docs/amqp.md says so.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.rabbitmq_peer import PEERS, address_of, connect, is_rabbitmq_3
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import (
    BASIC_RECOVER,
    BASIC_RECOVER_ASYNC,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    encode_method,
)

pytestmark = pytest.mark.integration

TTL_MS = 1_000
OPEN_S = 1.5
"""So long a transaction stays open: longer than its messages live."""
MESSAGES = 60
IGNORED_ARGUMENTS = [
    ("x-queue-mode", "lazy", "default"),
    ("x-queue-version", 2, 1),
    ("x-queue-master-locator", "min-masters", "client-local"),
    ("x-ha-policy", "all", "nodes"),
]


@pytest.fixture(scope="module", params=PEERS)
def address(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Of the broker under test."""
    return address_of(request)


@pytest.fixture
def connection(address: tuple[str, int]) -> Iterator[Any]:
    opened = connect(*address)
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def understudy(broker: BrokerProcess) -> Iterator[Any]:
    """A connection to Understudy, whatever else is tested."""
    opened = connect("127.0.0.1", broker.port)
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def queue(connection: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue name of this test's own; the queue is deleted afterwards, since a RabbitMQ outlives the tests."""
    name = f"habits.{request.node.name}"
    connection.channel().queue_delete(name)
    yield name
    connection.channel().queue_delete(name)


def depth(connection: Any, queue: str) -> int:
    return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


# -- time to live -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_by", ["queue", "message"])
def test_a_time_to_live_counts_from_the_commit(connection: Any, queue: str, asked_by: str) -> None:
    arguments = {"x-message-ttl": TTL_MS} if asked_by == "queue" else {}
    expiration = str(TTL_MS) if asked_by == "message" else None
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.tx_select()
    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2, expiration=expiration))
    time.sleep(OPEN_S)
    channel.tx_commit()
    committed = time.monotonic()
    assert depth(connection, queue) == 1
    wait_until("it expires", lambda: depth(connection, queue) == 0)
    assert time.monotonic() - committed >= 0.9 * TTL_MS / 1_000


# -- prefetch ---------------------------------------------------------------------------------------------------------


def take(connection: Any, channels: list[Any], consumed: list[tuple[int, str]], count: int) -> Counter[int]:
    """Consume ``(channel index, queue)`` each, acknowledge each delivery; deliveries by consumer after ``count`` of them."""
    got: Counter[int] = Counter()

    def take_one(number: int, channel: Any, tag: int) -> None:
        if got.total() < count:
            got[number] += 1
            channel.basic_ack(tag)

    for number, (index, name) in enumerate(consumed):
        channels[index].basic_consume(
            name, lambda channel, method, _, __, number=number: take_one(number, channel, method.delivery_tag)
        )
    wait_until("so many were delivered", lambda: connection.process_data_events(0.01) or got.total() == count)
    return got


def test_a_shared_prefetch_goes_round_the_consumers_of_the_channel(connection: Any, queue: str) -> None:
    filler, channel = connection.channel(), connection.channel()
    filler.confirm_delivery()
    names = [f"{queue}.{number}" for number in range(3)]
    for name in names:
        filler.queue_delete(name)
        filler.queue_declare(name)
        for _ in range(MESSAGES):
            filler.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=1, global_qos=True)
    got = take(connection, [channel], [(0, name) for name in names], MESSAGES)
    for name in names:
        filler.queue_delete(name)
    assert min(got[number] for number in range(3)) >= MESSAGES // 10, f"unfair: {got}"


def test_channels_share_a_queue(connection: Any, queue: str) -> None:
    filler, one, other = (connection.channel() for _ in range(3))
    filler.confirm_delivery()
    filler.queue_declare(queue)
    for _ in range(MESSAGES):
        filler.basic_publish("", queue, b"x")
    one.basic_qos(prefetch_count=1, global_qos=True)
    other.basic_qos(prefetch_count=1, global_qos=True)
    got = take(connection, [one, other], [(0, queue), (0, queue), (1, queue)], MESSAGES - 10)
    assert min(got[0] + got[1], got[2]) >= MESSAGES // 10, f"unfair: {got}"


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["binding", "exchange", "queue"])
def test_unbinding_what_is_not_there_succeeds(connection: Any, queue: str, missing: str) -> None:
    channel = connection.channel()
    if missing != "queue":
        channel.queue_declare(queue)
    channel.queue_unbind(queue, "habits.none" if missing == "exchange" else "amq.topic", "key")
    assert channel.is_open


@pytest.mark.parametrize("missing", ["binding", "source", "destination"])
def test_unbinding_exchanges_that_are_not_bound_succeeds(connection: Any, missing: str) -> None:
    channel = connection.channel()
    source, destination = "amq.topic", "amq.fanout"
    if missing == "source":
        source = "habits.none"
    if missing == "destination":
        destination = "habits.none"
    channel.exchange_unbind(destination, source, "key")
    assert channel.is_open


# -- if-empty ---------------------------------------------------------------------------------------------------------


def test_if_empty_counts_what_is_ready_alone(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"unacknowledged")
    assert channel.basic_get(queue)[2] == b"unacknowledged"
    channel.basic_publish("", queue, b"ready")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_delete(queue, if_empty=True)
    assert (caught.value.reply_code, "not empty" in caught.value.reply_text) == (406, True)
    assert channel.basic_get(queue)[2] == b"ready"
    assert connection.channel().queue_delete(queue, if_empty=True).method.message_count == 0


# -- arguments of queues ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argument", "value", "_"), IGNORED_ARGUMENTS, ids=[each[0] for each in IGNORED_ARGUMENTS])
def test_arguments_that_say_how_rabbitmq_keeps_a_queue_are_accepted(
    connection: Any, queue: str, argument: str, value: object, _: object
) -> None:
    channel = connection.channel()
    for _ in range(2):
        assert channel.queue_declare(queue, durable=True, arguments={argument: value}).method.queue == queue


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_types_of_queues(connection: Any, queue: str, kind: str) -> None:
    channel = connection.channel()
    for _ in range(2):
        assert channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind}).method.queue == queue


# -- transactions -----------------------------------------------------------------------------------------------------


def test_after_rollback_ok_a_delivery_is_as_before(connection: Any, queue: str) -> None:
    """The delivery is unacknowledged and holds its place of the prefetch; acknowledged again and committed, it is gone."""
    channel = connection.channel()
    channel.queue_declare(queue)
    channel.tx_select()
    channel.basic_qos(prefetch_count=1)
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body)
    channel.tx_commit()
    got: list[tuple[int, bytes]] = []
    channel.basic_consume(queue, lambda _, method, __, body: got.append((method.delivery_tag, body)))
    wait_until("the first is delivered", lambda: connection.process_data_events(0.01) or got)
    channel.basic_ack(got[0][0])
    channel.basic_publish("", queue, b"3")
    channel.tx_rollback()
    assert depth(connection, queue) == 1
    assert [body for _, body in got] == [b"1"]
    channel.basic_ack(got[0][0])
    channel.tx_commit()
    wait_until("the second is delivered", lambda: connection.process_data_events(0.01) or len(got) == 2)
    assert got[1][1] == b"2"
    assert depth(connection, queue) == 0


def test_a_consumer_hears_of_the_deletion_behind_delete_ok(connection: Any, queue: str) -> None:
    """kombu's queue.delete() raises if it is told before."""
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
    channel.queue_delete(queue)
    wait_until("the consumer is told", lambda: connection.process_data_events(0.01) or cancelled == ["tag"])


def test_a_waiting_consumer_gets_a_message_before_a_get_behind_the_publish(connection: Any, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    channel.queue_declare(queue, durable=True)
    got: list[bytes] = []
    channel.basic_consume(queue, lambda *args: got.append(args[-1]), auto_ack=True)
    for number in range(20):
        other.basic_publish("", queue, b"%d" % number)
        assert other.basic_get(queue) == (None, None, None)
    wait_until("all are delivered", lambda: connection.process_data_events(0.01) or len(got) == 20)


def test_a_new_connection_finds_what_a_closed_one_has_published(address: tuple[str, int], queue: str) -> None:
    for number in range(5):
        opened = connect(*address)
        channel = opened.channel()
        channel.queue_declare(queue, durable=True)
        for _ in range(200):
            channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        opened.close()
        opened = connect(*address)
        assert depth(opened, queue) == 200 * (number + 1)
        opened.close()


def test_a_message_that_lives_for_no_time_goes_to_a_consumer_that_waits_or_to_nobody(
    connection: Any, queue: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    fleeting = pika.BasicProperties(expiration="0")
    for _ in range(20):
        channel.basic_publish("", queue, b"late", fleeting)
        assert channel.basic_get(queue) == (None, None, None)
        channel.basic_publish("", queue, b"late", fleeting)
        assert depth(connection, queue) == 0
    got: list[bytes] = []
    channel.basic_publish("", queue, b"late", fleeting)
    channel.basic_consume(queue, lambda *args: got.append(args[-1]), auto_ack=True)
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, fleeting)
    wait_until("all are delivered", lambda: connection.process_data_events(0.01) or len(got) == 20)
    assert got == [b"%d" % number for number in range(20)]


def test_a_headers_exchange_compares_kinds_of_values(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    for wanted, brought, routed in (
        (True, 1, 0),
        (1, True, 0),
        (Decimal(15), 15, 0),
        (15, Decimal(15), 0),
        (1, 1, 1),
        (True, True, 1),
        ([1, "a"], [1, "a"], 1),
        ("a", "a", 1),
        (None, "any", 1),
    ):
        channel.queue_bind(queue, "amq.headers", "", {"k": wanted, "a": "x", "x-match": "all"})
        channel.basic_publish("amq.headers", "", b"x", pika.BasicProperties(headers={"k": brought, "a": "x"}))
        assert channel.queue_purge(queue).method.message_count == routed, (wanted, brought)
        channel.queue_unbind(queue, "amq.headers", "", {"x-match": "all", "a": "x", "k": wanted})
    channel.basic_publish("amq.headers", "", b"x", pika.BasicProperties(headers={"k": "any", "a": "x"}))
    assert depth(connection, queue) == 0


@pytest.mark.parametrize("pattern", ["*", "*.#"])
def test_an_empty_routing_key_has_no_words(connection: Any, queue: str, pattern: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, "amq.topic", pattern)
    channel.basic_publish("amq.topic", "", b"x")
    channel.basic_publish("amq.topic", ".", b"x")
    assert depth(connection, queue) == int(pattern == "*.#")


@pytest.mark.parametrize("transactional", [False, True])
def test_copies_go_where_cc_and_bcc_say_and_bcc_is_not_shown(connection: Any, queue: str, transactional: bool) -> None:
    channel = connection.channel()
    names = [queue, *(channel.queue_declare("", exclusive=True).method.queue for _ in range(2))]
    channel.queue_declare(queue, durable=True)
    if transactional:
        channel.tx_select()
    headers = {"CC": [names[1], queue, 7], "BCC": [names[2], names[1]], "n": 1}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    if transactional:
        channel.tx_commit()
    for name in names:
        method, properties, body = channel.basic_get(name)
        assert (method.routing_key, body) == (queue, b"x")
        assert properties.headers == {"CC": [names[1], queue, 7], "n": 1}
        assert channel.basic_get(name) == (None, None, None)


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_copy_header_that_is_no_array_closes_the_channel(connection: Any, queue: str, name: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={name: queue}))
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith("PRECONDITION_FAILED - invalid message: ")


@pytest.mark.parametrize("passive", [False, True])
def test_the_default_exchange_cannot_be_declared(connection: Any, passive: bool) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().exchange_declare("", "direct", durable=True, passive=passive)
    assert caught.value.reply_code == 403


# -- where Understudy differs on purpose (docs/amqp.md) ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stream", "no such type", 7])
def test_other_types_of_queues_are_refused(broker: BrokerProcess, understudy: Any, kind: object) -> None:
    channel = understudy.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("habits.typed", durable=True, arguments={"x-queue-type": kind})
    assert caught.value.reply_code == 406
    assert "'x-queue-type' for queue 'habits.typed' in vhost '/'" in caught.value.reply_text
    if kind == "stream":
        assert "there are no streams" in caught.value.reply_text
    wait_until("the log names the argument", lambda: "argument of a client was refused" in broker.log_text())


@pytest.mark.parametrize(("argument", "value", "other"), IGNORED_ARGUMENTS, ids=[each[0] for each in IGNORED_ARGUMENTS])
def test_ignored_arguments_make_no_other_queue(understudy: Any, argument: str, value: object, other: object) -> None:
    """RabbitMQ compares some of them when a queue is declared again."""
    channel = understudy.channel()
    name = f"habits.ignored.{argument}"
    for arguments in ({argument: value}, {argument: other}, {}):
        assert channel.queue_declare(name, durable=True, arguments=arguments).method.queue == name


# -- bindings between exchanges ---------------------------------------------------------------------------------------


@pytest.fixture
def exchanges(connection: Any) -> Iterator[list[str]]:
    """Three fanout exchanges."""
    channel = connection.channel()
    names = [f"habits.exchange.{number}" for number in range(3)]
    for name in names:
        channel.exchange_declare(name, "fanout")
    yield names
    for name in names:
        connection.channel().exchange_delete(name)


def got(channel: Any, queue: str) -> list[bytes]:
    """Bodies of all messages of the queue."""
    return [body for _, _, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None))]


def test_a_message_goes_through_a_circle_of_exchanges_once(connection: Any, queue: str, exchanges: list[str]) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue)
    first, second, third = exchanges
    for destination, source in ((second, first), (third, second), (first, third), (second, third)):
        channel.exchange_bind(destination, source)
    channel.queue_bind(queue, second)
    channel.queue_bind(queue, third)
    for exchange in exchanges:
        channel.basic_publish(exchange, "", exchange.encode(), mandatory=True)
    assert got(channel, queue) == [exchange.encode() for exchange in exchanges]
    channel.exchange_unbind(second, first)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(first, "", b"", mandatory=True)


def test_an_alternate_exchange_is_for_what_matches_no_binding(
    connection: Any, queue: str, exchanges: list[str]
) -> None:
    """A binding that leads to an exchange without a queue is one."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue)
    spill, empty, _ = exchanges
    front = "habits.front"
    channel.exchange_declare(front, "direct", arguments={"alternate-exchange": spill})
    channel.queue_bind(queue, spill)
    channel.exchange_bind(empty, front, "known")
    channel.basic_publish(front, "unknown", b"spilt", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(front, "known", b"", mandatory=True)
    assert got(channel, queue) == [b"spilt"]
    channel.exchange_delete(front)


def test_auto_delete_exchanges_go_in_a_chain(connection: Any) -> None:
    channel = connection.channel()
    names = [f"habits.going.{number}" for number in range(3)]
    for name in names:
        channel.exchange_declare(name, "fanout", auto_delete=True)
    for destination, source in zip(names[1:], names, strict=False):
        channel.exchange_bind(destination, source)
    channel.exchange_delete(names[-1])
    for name in names:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            connection.channel().exchange_declare(name, passive=True)
        assert caught.value.reply_code == 404


@pytest.mark.parametrize(
    ("destination", "source", "code", "text"),
    [
        ("", "amq.fanout", 403, "operation not permitted on the default exchange"),
        ("amq.fanout", "", 403, "operation not permitted on the default exchange"),
        ("habits.none", "amq.fanout", 404, "no exchange 'habits.none' in vhost '/'"),
        ("amq.fanout", "habits.none", 404, "no exchange 'habits.none' in vhost '/'"),
        ("habits.none", "habits.neither", 404, "no exchange 'habits.neither' in vhost '/'"),
    ],
)
def test_exchanges_that_cannot_be_bound(connection: Any, destination: str, source: str, code: int, text: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().exchange_bind(destination, source)
    assert (caught.value.reply_code, text in caught.value.reply_text) == (code, True)


def test_an_exchange_bound_to_itself_is_refused(understudy: Any) -> None:
    """RabbitMQ binds it."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        understudy.channel().exchange_bind("amq.fanout", "amq.fanout", "key")
    assert caught.value.reply_code == 406
    assert "exchange 'amq.fanout' in vhost '/' cannot be bound to itself" in caught.value.reply_text


# -- priorities, and which consumers are served -----------------------------------------------------------------------


def put(channel: Any, queue: str, *priorities: int | None) -> None:
    for number, priority in enumerate(priorities):
        channel.basic_publish("", queue, f"{priority}.{number}".encode(), pika.BasicProperties(priority=priority))


def rest(channel: Any, queue: str) -> list[str]:
    """The messages left in ``queue``, in order."""
    bodies = iter(lambda: channel.basic_get(queue, auto_ack=True)[2], None)
    return [body.decode() for body in bodies]


def test_the_highest_priority_comes_first(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, arguments={"x-max-priority": 3})
    put(channel, queue, 1, None, 5, 3, 2, 1)
    assert rest(channel, queue) == ["5.2", "3.3", "2.4", "1.0", "1.5", "None.1"]


def test_a_full_queue_with_priorities_drops_the_highest(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, arguments={"x-max-priority": 3, "x-max-length": 2})
    put(channel, queue, 1, 3, 2)
    assert rest(channel, queue) == ["2.2", "1.0"]


@pytest.mark.parametrize("value", [256, -1, "5"], ids=repr)
def test_a_maximum_that_there_cannot_be_is_refused(connection: Any, queue: str, value: object) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare(queue, arguments={"x-max-priority": value})
    assert (caught.value.reply_code, "'x-max-priority'" in caught.value.reply_text) == (406, True)


def consumers(connection: Any, queue: str, *arguments: dict[str, Any]) -> tuple[list[Any], list[list[str]]]:
    """A channel with a prefetch of 2 and a consumer for each of ``arguments``, and what each is given."""
    channels: list[Any] = []
    given: list[list[str]] = []
    for each in arguments:
        channel, got = connection.channel(), list[str]()
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume(
            queue,
            lambda _, method, __, body, got=got: got.append(f"{body.decode()}"),
            consumer_tag=f"c{len(channels)}",
            arguments=each,
        )
        channels.append(channel)
        given.append(got)
    return channels, given


def test_consumers_of_a_higher_priority_are_served_first(connection: Any, queue: str) -> None:
    filler = connection.channel()
    filler.confirm_delivery()
    filler.queue_declare(queue)
    channels, given = consumers(connection, queue, {}, {"x-priority": 5}, {"x-priority": -1})
    for number in range(5):
        filler.basic_publish("", queue, b"%d" % number)
    wait_until("all are given", lambda: connection.process_data_events(0.01) or sum(map(len, given)) == 5)
    assert given == [["2", "3"], ["0", "1"], ["4"]]
    for channel in channels:
        channel.close()


def test_a_single_active_consumer_is_followed_by_the_next(connection: Any, queue: str) -> None:
    filler = connection.channel()
    filler.confirm_delivery()
    filler.queue_declare(queue, arguments={"x-single-active-consumer": True})
    channels, given = consumers(connection, queue, {}, {})
    for number in range(4):
        filler.basic_publish("", queue, b"%d" % number)
    wait_until("two are given", lambda: connection.process_data_events(0.01) or len(given[0]) == 2)
    assert given == [["0", "1"], []]
    channels[0].close()  # pika cancels the consumer first: RabbitMQ 3.10 serves the next one when the channel has ended
    wait_until("the next is active", lambda: connection.process_data_events(0.01) or len(given[1]) == 2)
    assert given[1] in (["2", "3"], ["0", "1"])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().basic_consume(queue, lambda *_: None, exclusive=True)
    assert caught.value.reply_code == 403
    channels[1].close()


# -- direct reply-to --------------------------------------------------------------------------------------------------

REPLY_TO = "amq.rabbitmq.reply-to"


def test_an_answer_comes_straight_to_the_channel_that_asked(connection: Any, queue: str) -> None:
    asker, server = connection.channel(), connection.channel()
    assert asker.queue_declare(REPLY_TO, passive=True).method.message_count == 0
    server.queue_declare(queue)
    answers: list[bytes] = []
    asker.basic_consume(REPLY_TO, lambda *each: answers.append(each[3]), auto_ack=True)
    asker.basic_publish("", queue, b"question", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7"))
    server.confirm_delivery()
    wait_until("it is asked", lambda: depth(connection, queue) == 1)
    _, asked, _ = server.basic_get(queue, auto_ack=True)
    assert asked.reply_to.startswith(f"{REPLY_TO}.")
    # RabbitMQ 3 returns a mandatory answer that it delivers.
    server.basic_publish("", asked.reply_to, b"answer", mandatory=not is_rabbitmq_3(connection))
    wait_until("it is answered", lambda: connection.process_data_events(0.01) or answers == [b"answer"])
    asker.close()
    with pytest.raises(pika.exceptions.UnroutableError):
        server.basic_publish("", asked.reply_to, b"too late", mandatory=True)


@pytest.mark.parametrize(
    ("act", "code", "text"),
    [
        (lambda channel: channel.basic_consume(REPLY_TO, print), 406, "reply consumer cannot acknowledge"),
        (
            lambda channel: [channel.basic_consume(REPLY_TO, print, auto_ack=True) for _ in range(2)],
            406,
            "reply consumer already set",
        ),
        (
            lambda channel: [
                channel.basic_publish("", "nowhere", b"", pika.BasicProperties(reply_to=REPLY_TO)),
                channel.queue_declare(REPLY_TO, passive=True),
            ],
            406,
            "fast reply consumer does not exist",
        ),
        (lambda channel: channel.queue_declare(f"{REPLY_TO}.nobody", passive=True), 404, "no queue"),
    ],
    ids=["acknowledges", "twice", "no consumer", "declared"],
)
def test_what_direct_reply_to_refuses(connection: Any, act: Any, code: int, text: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=text) as caught:
        act(connection.channel())
    assert caught.value.reply_code == code


# -- small ones -------------------------------------------------------------------------------------------------------

TOLD = {"capabilities": {"authentication_failure_close": True}}


def last_words(
    address: tuple[str, int], *said: bytes, password: str = "guest", properties: Any = TOLD, frame_max: int = 131_072
) -> int:
    """Log in and say it, in bare frames; the code of the connection.close that follows; 200 for ours, 0 for an end without one."""
    with socket.create_connection(address, timeout=30) as sock:
        parser = FrameParser(0)

        def read() -> Any:
            with contextlib.suppress(ConnectionResetError):  # an end without a word, if what was sent is not read
                while data := sock.recv(65_536):
                    if events := parser.feed(data):
                        return events[-1]
            return None

        sock.sendall(PROTOCOL_HEADER)
        read()
        sock.sendall(
            encode_method(0, CONNECTION_START_OK, properties, "PLAIN", f"\0guest\0{password}".encode(), "en_US")
        )
        event = read()
        if event is not None and event[1] == CONNECTION_TUNE:
            sock.sendall(encode_method(0, CONNECTION_TUNE_OK, 2_047, frame_max, 0))
            sock.sendall(encode_method(0, CONNECTION_OPEN, "/") + encode_method(1, CHANNEL_OPEN) + b"".join(said))
            while event is not None and event[1] not in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
                event = read()
        if event is None:
            return 0
        return 200 if event[1] == CONNECTION_CLOSE_OK else int(event[2][0])


TUNING = 530
"""RabbitMQ 3 ends the connection without a word."""
CLOSE = encode_method(0, CONNECTION_CLOSE, 200, "", 0, 0)
HEARTBEAT_ON_A_CHANNEL = b"\x08\0\1\0\0\0\0\xce"


@pytest.mark.parametrize(
    ("said", "options", "code"),
    [
        ([HEARTBEAT_ON_A_CHANNEL], {}, 505),
        ([encode_method(1, BASIC_RECOVER, False)], {}, 540),
        ([encode_method(1, BASIC_RECOVER_ASYNC, False)], {}, 540),
        ([encode_method(0, CONNECTION_UPDATE_SECRET, "any", "test"), CLOSE], {}, 200),
        ([], {"frame_max": 131_073}, TUNING),
        ([], {"frame_max": 0}, TUNING),
        ([], {"password": "wrong"}, 403),
        ([], {"password": "wrong", "properties": {}}, 0),
    ],
    ids=[
        "heartbeat",
        "recover",
        "recover-async",
        "update-secret",
        "frame_max",
        "no frame_max",
        "login told",
        "login not told",
    ],
)
def test_what_ends_a_connection(
    address: tuple[str, int], connection: Any, said: list[bytes], options: Any, code: int
) -> None:
    if code == TUNING and is_rabbitmq_3(connection):
        code = 0
    assert last_words(address, *said, **options) == code


def test_names_are_taken_on_one_line(address: tuple[str, int], connection: Any, queue: str) -> None:
    """pika waits for an answer with the very name that it has sent; bare frames do not."""
    declare = encode_method(1, QUEUE_DECLARE, f"\r{queue[:3]}\n{queue[3:]}\r\n", False, False, False, False, False, {})
    exchange = encode_method(1, EXCHANGE_DECLARE, f"{queue}\n.x", "direct", False, False, True, False, False, {})
    bind = encode_method(1, QUEUE_BIND, f"{queue}\r", f"{queue}.\nx", "key", False, {})
    assert last_words(address, declare, exchange, bind, CLOSE) == 200
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish(f"{queue}.x", "key", b"x", mandatory=True)
    delete = encode_method(1, QUEUE_DELETE, f"{queue}\n", False, False, False)
    assert last_words(address, delete, CLOSE) == 200
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        connection.channel().queue_declare(queue, passive=True)


@pytest.mark.parametrize("exclusive", [False, True])
def test_an_unequal_exclusive_is_a_lock(connection: Any, queue: str, exclusive: bool) -> None:
    connection.channel().queue_declare(queue, exclusive=exclusive)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare(queue, exclusive=not exclusive)
    assert caught.value.reply_code == 405


def test_a_consumer_without_acknowledgements_has_no_prefetch(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    got: list[bytes] = []
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *each: got.append(each[3]), auto_ack=True, arguments={"x-odd": 1})
    for _ in range(3):
        channel.basic_publish("", queue, b"x")
    wait_until("all came", lambda: connection.process_data_events(0.01) or len(got) == 3)


def test_a_cluster_has_a_name(connection: Any) -> None:
    assert connection._impl.server_properties["cluster_name"]
