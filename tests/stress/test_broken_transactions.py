"""Transactions that their clients break: by a mistake, or by losing the connection in the moment of the commit."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.stress.clients import (
    NAME_HEADER,
    PERSISTENT,
    Finder,
    ask,
    cut,
    declare,
    outcomes,
    read_queue,
    send_commit,
    socket_of,
)
from tests.stress.group import Group, running_group
from tests.stress.load import undisturbed

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("broken")) as running:
        yield running


def stamps(finder: Finder, queue: str) -> list[str]:
    return [each.stamp for each in read_queue(finder, queue)]


def named(name: str) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=PERSISTENT, headers={NAME_HEADER: name})


def make_a_mistake(connection: Any, name: str, goes_on: bool) -> None:
    """A transaction with a publish to a missing exchange in it."""
    channel = connection.channel()
    channel.tx_select()
    method, _, body = channel.basic_get("missing.a")
    assert body == b"before.0.0"
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "missing.b", b"gone.0.0", named(name))
    channel.basic_publish("no.such", "key", b"gone.0.1", named(name))
    if goes_on:
        channel.basic_publish("", "missing.b", b"gone.0.2", named(name))
    channel.tx_commit()


def test_publish_to_a_missing_exchange_inside_a_transaction(group: Group) -> None:
    """Its channel is closed with 404, all of it is rolled back, and the rest of the connection goes on."""
    finder = Finder(group.ports)
    declare(finder, ["missing.a", "missing.b"])
    names = [f"missing {number}" for number in range(20)]
    with undisturbed(group, "load"), contextlib.closing(finder.connect()) as connection:
        other = connection.channel()
        other.basic_publish("", "missing.a", b"before.0.0", named("first"))
        other.tx_select()
        other.basic_publish("", "missing.b", b"other.0.0", named("other"))
        for number, name in enumerate(names):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                make_a_mistake(connection, name, goes_on=number % 2 == 1)
            assert caught.value.reply_code == 404
            assert "no exchange 'no.such'" in caught.value.reply_text
        other.tx_commit()
        assert outcomes(finder, [*names, "other"]) == {**dict.fromkeys(names, "rolled back"), "other": "committed"}
    assert stamps(finder, "missing.a") == ["before.0.0"]
    assert stamps(finder, "missing.b") == ["other.0.0"]


COMMITS = 150
OUT = ("dies.x", "dies.y", "dies.z")


def begin(finder: Finder, number: int) -> tuple[Any, Any, str, str]:
    """A transaction that takes one message and makes three: its connection and channel, its id, and the stamp it has taken."""
    connection = finder.connect()
    channel = connection.channel()
    replies = channel.queue_declare("", exclusive=True).method.queue
    channel.tx_select()
    own_id = ask(connection, channel, replies, "id")
    method, _, body = channel.basic_get("dies.in")
    channel.basic_ack(method.delivery_tag)
    for queue in OUT:
        channel.basic_publish("", queue, f"out.{number}.0".encode(), named(f"dies {number}"))
    return connection, channel, own_id, body.decode()


def commit_and_die(connection: Any, channel: Any, number: int, chance: random.Random) -> str:
    """The outcome that the transaction must have, "" if both may."""
    if number % 3 == 0:
        send_commit(connection, channel, size=chance.randrange(12))  # a method frame without arguments is 12 bytes
        cut(connection)
        return "rolled back"
    send_commit(connection, channel)
    if number % 3 == 1:
        # The end of the stream comes after everything before it, and a commit that was read goes on.
        sock = socket_of(connection)
        sock.shutdown(socket.SHUT_WR)
        sock.setblocking(True)
        while sock.recv(1 << 16):
            pass
        cut(connection)
        return "committed"
    time.sleep(chance.choice((0, chance.random() * 0.005)))
    cut(connection)  # a reset takes away what was not read yet
    return ""


def test_commits_whose_connection_dies_at_that_moment(group: Group) -> None:
    """Whole or absent, and the outcome query says which, by name and by id."""
    finder = Finder(group.ports)
    declare(finder, ["dies.in", *OUT])
    connection = finder.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    given = [f"in.{number}.0" for number in range(COMMITS)]
    for stamp in given:
        channel.basic_publish("", "dies.in", stamp.encode(), pika.BasicProperties(delivery_mode=PERSISTENT))
    connection.close()
    chance = random.Random(4)
    ids: list[str] = []
    taken: list[str] = []
    must: list[str] = []
    with undisturbed(group, "more"):
        for number in range(COMMITS):
            connection, channel, own_id, stamp = begin(finder, number)
            ids.append(own_id)
            taken.append(stamp)
            must.append(commit_and_die(connection, channel, number, chance))
    group.settled()
    by_name = list(outcomes(finder, [f"dies {number}" for number in range(COMMITS)]).values())
    by_id = list(outcomes(finder, ids).values())
    assert by_name == by_id
    assert set(by_name) == {"committed", "rolled back"}
    assert [found for found, due in zip(by_name, must, strict=True) if due] == [due for due in must if due]
    done = [number for number, outcome in enumerate(by_name) if outcome == "committed"]
    print(f"{len(done)} of {COMMITS} were committed, of these {len(done) - must.count('committed')} by chance")
    gone = [taken[number] for number in done]
    assert stamps(finder, "dies.in") == [stamp for stamp in given if stamp not in gone]
    assert len(set(gone)) == len(gone)
    for queue in OUT:
        assert stamps(finder, queue) == [f"out.{number}.0" for number in done]
    group.agree()
