"""Levels of replication on real brokers, as pika meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import leaks_of_clients
from tests.stress.clients import connect_to
from tests.stress.group import Group, GroupBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LEVELS = ("all", "configuration", "none")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Its default level is "none"."""
    group = Group(tmp_path)
    for broker in group.brokers.values():
        text = broker.config.read_text(encoding="utf-8")
        broker.config.write_text(text.replace("[ha]\n", '[ha]\nreplicate = "none"\n'), encoding="utf-8")
    try:
        group.start()
        group.ready()
        with leaks_of_clients():
            yield group
        group.check_logs()
    finally:
        group.abandon()


def declare(channel: Any, name: str, level: str = "", *, durable: bool = False) -> int:
    """How many messages are in it."""
    arguments = {"x-ha-replicate": level} if level else None
    return int(channel.queue_declare(name, durable=durable, arguments=arguments).method.message_count)


def shown(broker: GroupBroker) -> dict[str, tuple[str, int]]:
    """By queue, as the broker's status has it: level, and how many messages."""
    return {queue["name"]: (queue["replicate"], queue["ready"]) for queue in broker.row()["queues"]}


def fail_over(group: Group) -> Any:
    """The primary is killed; a channel at the next, when all that are left agree."""
    group.primary().kill()
    group.primary()
    group.ready()
    return connect_to(group.primary().port).channel()


def test_each_level(group: Group) -> None:
    """Published with confirms and in one transaction; counted on every broker, before and after a failover."""
    channel = connect_to(group.primary().port).channel()
    for level in LEVELS:
        declare(channel, level, level)
        channel.queue_bind(level, "amq.fanout")
    channel.tx_select()
    for body in (b"1", b"2"):
        channel.basic_publish("amq.fanout", "", body, PERSISTENT)
    channel.tx_commit()
    confirming = channel.connection.channel()
    confirming.confirm_delivery()
    for level in LEVELS:
        confirming.basic_publish("", level, b"3", PERSISTENT, mandatory=True)
    assert [declare(channel, level, level) for level in LEVELS] == [3, 3, 3]
    primary = group.primary()
    assert shown(primary) == {level: (level, 3) for level in LEVELS}
    group.agree(["all"])
    for backup in group.backups():
        assert shown(backup) == {"all": ("all", 3), "configuration": ("configuration", 0)}
    channel = fail_over(group)
    assert shown(group.primary()) == {"all": ("all", 3), "configuration": ("configuration", 0)}
    channel.basic_publish("amq.fanout", "", b"4", PERSISTENT)
    assert [declare(channel, level, level) for level in LEVELS] == [4, 1, 0]
    group.start(primary.name)
    group.ready(*group.brokers)
    group.agree(["all"])
    assert set(shown(primary)) == {"all", "configuration"}


def test_the_default_of_the_file(group: Group) -> None:
    """ha.replicate is for queues that are not durable and do not say."""
    channel = connect_to(group.primary().port).channel()
    declare(channel, "unsaid")
    declare(channel, "durable", durable=True)
    declare(channel, "said", "all")
    assert {name: level for name, (level, _) in shown(group.primary()).items()} == {
        "unsaid": "none",
        "durable": "all",
        "said": "all",
    }
    channel = fail_over(group)
    assert set(shown(group.primary())) == {"durable", "said"}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("unsaid", passive=True)
    assert caught.value.reply_code == 404


def test_what_is_refused(group: Group) -> None:
    connection = connect_to(group.primary().port)
    for name, level, durable, words in (
        (
            "q",
            "some",
            False,
            "'x-ha-replicate' for queue 'q' in vhost '/': 'some' is none of 'all', 'configuration', 'none'",
        ),
        ("q", "none", True, "a durable queue has to survive the broker that leads"),
        ("there", "configuration", False, "inequivalent arg 'x-ha-replicate' for queue 'there' in vhost '/'"),
    ):
        channel = connection.channel()
        declare(channel, "there", "all")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            declare(channel, name, level, durable=durable)
        assert caught.value.reply_code == 406
        assert words in caught.value.reply_text
