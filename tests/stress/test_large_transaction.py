"""One transaction of 10,000 messages and 10,000 acknowledgements: all of it, or nothing of it, on all brokers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.stress.clients import (
    ERRORS,
    NAME_HEADER,
    PERSISTENT,
    Finder,
    connect_to,
    cut,
    declare,
    outcomes,
    read_queue,
    send_commit,
)
from tests.stress.group import Group, running_group
from tests.stress.load import Books, Load

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

COUNT = 10_000
MANY = 100_000
OUTS = ("out.0", "out.1", "out.2", "out.3")
SOURCE = [f"i.{number}.0" for number in range(COUNT)]
MADE = {queue: [f"o.{number}.0" for number in range(COUNT) if number % 4 == at] for at, queue in enumerate(OUTS)}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("large")) as running:
        yield running


@pytest.fixture
def finder(group: Group) -> Finder:
    """The queues are new: ``in`` with 10,000 messages, four empty ones."""
    found = Finder(group.ports)
    connection = found.connect()
    channel = connection.channel()
    for queue in ("in", *OUTS):
        channel.queue_delete(queue)
    connection.close()
    declare(found, ["in", *OUTS])
    connection = found.connect()
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for stamp in SOURCE:
        channel.basic_publish("", "in", stamp.encode(), properties)
    channel.tx_commit()
    connection.close()
    return found


def fill(connection: Any, name: str) -> Any:
    """A channel whose transaction takes everything from ``in`` and makes as much in the other queues, in turns.

    All of it has arrived at the broker, nothing is committed.
    """
    channel = connection.channel()
    tags: list[int] = []
    taken: list[str] = []

    def delivered(_: Any, method: Any, __: Any, body: bytes) -> None:
        tags.append(method.delivery_tag)
        taken.append(body.decode())

    consumer = channel.basic_consume("in", delivered)
    while len(tags) < COUNT:
        connection.process_data_events(time_limit=1)
    channel.basic_cancel(consumer)
    assert taken == SOURCE
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers={NAME_HEADER: name})
    for number, tag in enumerate(tags):
        channel.basic_publish("", OUTS[number % 4], f"o.{number}.0".encode(), properties)
        if number < COUNT * 9 // 10:
            channel.basic_ack(tag)
    channel.basic_ack(tags[-1], multiple=True)
    channel.queue_declare("in", passive=True)
    return channel


def contents(finder: Finder) -> dict[str, list[str]]:
    return {queue: [each.stamp for each in read_queue(finder, queue)] for queue in ("in", *OUTS)}


def sizes(group: Group) -> dict[str, int]:
    """How many messages are in each queue, on all brokers."""
    return {queue: count for queue, (count, _) in group.agree(["in", *OUTS]).items()}


BEFORE = {"in": SOURCE, **{queue: [] for queue in OUTS}}
AFTER = {"in": [], **MADE}


def test_it_commits(group: Group, finder: Finder) -> None:
    connection = connect_to(group.primary().port)
    others = Load(group.ports, movers=2, name="c")
    others.declare()
    with others.running():
        others.wait_busy()
        channel = fill(connection, "large.commit")
        # Nothing of it is seen before the commit (G3).
        assert sizes(group) == {"in": COUNT, **dict.fromkeys(OUTS, 0)}
        started = time.monotonic()
        channel.tx_commit()
        print(f"tx.commit answered in {time.monotonic() - started:.3f} s")
        others.wait_committed(5)
    connection.close()
    group.settled()
    assert contents(finder) == AFTER
    assert sizes(group) == {queue: len(stamps) for queue, stamps in AFTER.items()}
    assert outcomes(finder, ["large.commit"]) == {"large.commit": "committed"}
    check(group, others)


@pytest.mark.parametrize("way", ["the connection is reset", "tx.rollback", "channel.close", "the primary is killed"])
def test_nothing_of_it_stays_when_it_is_rolled_back(group: Group, finder: Finder, way: str) -> None:
    name = f"large.{way}"
    connection = connect_to(group.primary().port)
    others = Load(group.ports, movers=2, name=way.replace(".", "-").replace(" ", "-"))
    others.declare()
    with others.running():
        others.wait_busy()
        channel = fill(connection, name)
        if way == "the connection is reset":
            cut(connection)
        elif way == "tx.rollback":
            channel.tx_rollback()
            # The deliveries are unacknowledged again (P-17): to be had back, and acknowledged now outside of any transaction.
            channel.basic_recover(requeue=True)
            connection.close()
        elif way == "channel.close":
            channel.close()
        else:
            killed = group.primary()
            killed.kill()
            group.ready()
            group.start(killed.name)
            group.ready()
        others.wait_committed(5)
    if way != "the connection is reset" and connection.is_open:
        with contextlib.suppress(*ERRORS):
            connection.close()
    group.settled()
    found = read_queue(finder, "in")
    assert [each.stamp for each in found] == SOURCE
    assert all(each.redelivered for each in found)
    assert contents(finder) == BEFORE
    assert sizes(group) == {"in": COUNT, **dict.fromkeys(OUTS, 0)}
    assert outcomes(finder, [name]) == {name: "rolled back"}
    check(group, others)


def test_the_primary_dies_while_it_commits(group: Group, finder: Finder) -> None:
    """All of it or nothing of it, and the outcome query says which."""
    for number in range(3):
        name = f"large.dies.{number}"
        primary = group.primary()
        connection = connect_to(primary.port)
        channel = fill(connection, name)
        send_commit(connection, channel)
        time.sleep(0.004 * number)
        primary.kill()
        group.ready()
        (outcome,) = outcomes(finder, [name]).values()
        group.settled()
        assert contents(finder) == (AFTER if outcome == "committed" else BEFORE), outcome
        group.agree()
        group.start(primary.name)
        group.ready()
        group.agree()
        print(f"killed {4 * number} ms after tx.commit: {outcome}")
        if outcome == "committed":
            return


def test_a_hundred_thousand_messages(group: Group, finder: Finder) -> None:
    """All of them on every broker with one commit, while others commit beside it; and on who is left when its primary has died."""
    primary = group.primary()
    connection = connect_to(primary.port)
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    others = Load(group.ports, movers=2, name="many")
    others.declare()
    with others.running():
        others.wait_busy()
        for number in range(MANY):
            channel.basic_publish("", OUTS[number % 4], b"%d" % number, properties)
        channel.queue_declare("in", passive=True)
        assert sizes(group) == {"in": COUNT, **dict.fromkeys(OUTS, 0)}
        started = time.monotonic()
        channel.tx_commit()
        print(f"tx.commit of {MANY} messages answered in {time.monotonic() - started:.3f} s")
        others.wait_committed(5)
    connection.close()
    group.settled()
    primary.kill()
    group.ready()
    assert sizes(group) == {"in": COUNT, **dict.fromkeys(OUTS, MANY // 4)}
    group.start(primary.name)
    group.ready()
    assert sizes(group) == {"in": COUNT, **dict.fromkeys(OUTS, MANY // 4)}
    check(group, others)


def check(group: Group, others: Load) -> None:
    books = Books(others)
    books.resolve(others.finder)
    group.settled()
    books.check(books.read(others.finder))
