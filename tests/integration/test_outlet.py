"""``understudy outlet`` of one broker on a real Kafka: what is committed comes whole and once, and what is wrong is named."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from scripts.service_tools.kafka_admin import allow, create_topic
from scripts.service_tools.kafka_keeper import SharedKafka
from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.conftest import SMALL_SEGMENTS
from tests.integration.outlet_reading import COMPACTED, Outlet, by_transaction, check_whole, read, topics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PERSISTENT = 2
LIMIT_S = 120.0


@contextlib.contextmanager
def broker_of_group(folder: Path, group: str, extra: str = "") -> Iterator[BrokerProcess]:
    """A broker alone, of a group of that name: its topics are named for it."""
    broker = BrokerProcess(folder, extra)
    text = broker.config.read_text(encoding="utf-8")
    broker.config.write_text(text.replace('id = "b1"\n', f'id = "b1"\ngroup = "{group}"\n'), encoding="utf-8")
    broker.start()
    try:
        yield broker
        assert broker.stop() == 0, broker.log_text()
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()


class Client:
    """Publishes to queues ``a`` and ``b`` of one broker."""

    def __init__(self, port: int) -> None:
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self.channel = self.connection.channel()
        for queue in ("a", "b"):
            self.channel.queue_declare(queue, durable=True)
        self.tx = self.connection.channel()
        self.tx.tx_select()

    def put(self, queue: str, body: bytes, name: str = "", *, tx: bool = True) -> None:
        headers = {"x-understudy-tx": name} if name else {}
        properties = pika.BasicProperties(
            delivery_mode=PERSISTENT, headers=headers, message_id=f"id of {body[:9].decode()}"
        )
        (self.tx if tx else self.channel).basic_publish("", queue, body, properties)

    def transaction(self, name: str, *bodies: bytes) -> None:
        """Bodies to ``a`` and ``b`` in turn."""
        for at, body in enumerate(bodies):
            self.put("ab"[at % 2], body, name)
        self.tx.tx_commit()

    def plain(self, body: bytes) -> None:
        self.channel.confirm_delivery()
        self.put("a", body, tx=False)

    def close(self) -> None:
        self.connection.close()


def all_sent(outlet: Outlet, count: int) -> dict[str, int]:
    """Run it until so many records were sent in all: a broker says a moment later that its last words are stable."""
    sent = {"transactions": 0, "plain_messages": 0, "records": 0}

    def probe() -> bool:
        summary = outlet.summary()
        for key in sent:
            sent[key] += summary[key]
        return sent["records"] >= count

    wait_until(f"{count} records are sent, of {sent}", probe, LIMIT_S)
    return sent


def test_what_is_committed_comes_whole_once_and_in_order(tmp_path: Path, kafka: str) -> None:
    topic = topics(kafka, "whole")
    with broker_of_group(tmp_path, "whole") as broker:
        outlet = Outlet(broker.data, "--kafka", kafka)
        with contextlib.closing(Client(broker.port)) as client:
            client.transaction("first", b"1", b"2", b"3")
            client.plain(b"plain")
            client.put("a", b"never", "rolled back")
            client.tx.tx_rollback()
            client.transaction("second", b"4", b"5")
            client.put("a", b"open")
            assert all_sent(outlet, 6) == {"transactions": 2, "plain_messages": 1, "records": 6}
            first = read(kafka, topic)
            assert outlet.summary()["records"] == 0, "all is sent already"
            client.put("b", b"and closed")
            client.tx.tx_commit()
            client.transaction("third", b"6")
            assert all_sent(outlet, 3) == {"transactions": 2, "plain_messages": 0, "records": 3}
        records = read(kafka, topic)
    assert [each for each in records if each in first] == first, "nothing of it was sent again, or moved"
    named = check_whole(records)
    assert {name: [each.body for each in rows] for name, rows in named.items()} == {
        "first": [b"1", b"2", b"3"],
        "second": [b"4", b"5"],
        "": [b"open", b"and closed"],
        "third": [b"6"],
    }
    assert [each.key for each in named["first"]] == ["//a", "//b", "//a"]
    csns = [named[name][0].csn for name in ("first", "second", "", "third")]
    assert csns == sorted(csns)
    (plain,) = by_transaction(records)[""]
    assert plain.body == b"plain"
    assert {name: plain.headers[name] for name in ("understudy-queue", "understudy-group", "amqp-message-id")} == {
        "understudy-queue": "a",
        "understudy-group": "whole",
        "amqp-message-id": "id of plain",
    }
    ids = [int(each.headers["understudy-id"]) for each in records if each.headers["understudy-queue"] == "a"]
    assert len(ids) == len(set(ids)) == 6
    assert read(kafka, topic, isolation="read_uncommitted") == records, "nothing was aborted on the way"


def test_a_dead_letter_comes_once_with_body_and_headers(tmp_path: Path, kafka: str) -> None:
    """The publish lies before the outlet's position. The dead letter is consumed, and the broker restarts, before it is read."""
    topic = topics(kafka, "dead")
    few = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with broker_of_group(tmp_path, "dead", "[outlet]\ndead_letters = true\n") as broker:
        outlet = Outlet(broker.data, "--kafka", kafka)
        with contextlib.closing(Client(broker.port)) as client:
            client.channel.confirm_delivery()
            client.channel.queue_declare("dead", durable=True)
            client.channel.queue_declare("few", durable=True, arguments=few)
            client.put("few", b"1", tx=False)
            assert all_sent(outlet, 1)["records"] == 1
            client.put("few", b"2", tx=False)
            consumed = wait_until("it has moved", lambda: client.channel.basic_get("dead", auto_ack=True)[2], LIMIT_S)
            assert consumed == b"1"
        assert broker.stop() == 0
        broker.start()
        assert all_sent(outlet, 2) == {"transactions": 0, "plain_messages": 2, "records": 2}
    records = read(kafka, topic)
    assert [(each.key, each.body) for each in sorted(records, key=lambda each: each.position)] == [
        ("//few", b"1"),
        ("//few", b"2"),
        ("//dead", b"1"),
    ]
    (dead,) = (each for each in records if each.key == "//dead")
    (death,) = json.loads(dead.headers["amqp-header-x-death"])
    assert (death["queue"], death["reason"], death["count"]) == ("few", "maxlen", 1)
    assert dead.headers["amqp-header-x-first-death-queue"] == "few"
    assert dead.headers["amqp-message-id"] == "id of 1"


def test_a_zombie_is_fenced_by_kafka(tmp_path: Path, kafka: str) -> None:
    """The first outlet is stopped in the midst of its life; another one goes on; the first one wakes up and ends."""
    topic = topics(kafka, "zombie")
    with broker_of_group(tmp_path, "zombie") as broker, contextlib.closing(Client(broker.port)) as client:
        zombie, heir = Outlet(broker.data, "--kafka", kafka), Outlet(broker.data, "--kafka", kafka)
        with zombie.running():
            client.transaction("before", b"1", b"2")
            wait_until("the first one sends", lambda: len(read(kafka, topic)) == 2, LIMIT_S)
            zombie.send(signal.SIGSTOP)
            client.transaction("meanwhile", b"3", b"4")
            assert all_sent(heir, 2)["records"] == 2
            client.transaction("after", b"5")
            zombie.send(signal.SIGCONT)
            assert zombie.process is not None
            assert zombie.process.wait(LIMIT_S) == 3
            assert "another outlet of this group has taken over (broker 'b1', at position" in zombie.said
            assert all_sent(heir, 1)["records"] == 1
    named = check_whole(read(kafka, topic))
    assert {name: len(rows) for name, rows in named.items()} == {"before": 2, "meanwhile": 2, "after": 1}


def test_what_the_journal_has_let_go_of_is_an_error_and_an_operators_decision(tmp_path: Path, kafka: str) -> None:
    topic = topics(kafka, "gap")
    with broker_of_group(tmp_path, "gap", SMALL_SEGMENTS) as broker, contextlib.closing(Client(broker.port)) as client:
        outlet = Outlet(broker.data, "--kafka", kafka)
        client.transaction("sent", b"1")
        assert all_sent(outlet, 1)["records"] == 1
        first = min(broker.data.glob("*.journal"))

        def gone() -> bool:
            for _ in range(20):
                client.transaction("", b"x" * 2000, b"y" * 2000)
            for queue in ("a", "b"):
                client.channel.queue_purge(queue)
            return not first.exists()

        wait_until("the first segment goes", gone, LIMIT_S)
        done = outlet.once()
        assert done.returncode == 4
        assert "the log has been sent, and this journal begins with offset" in done.stderr
        assert "--accept-gap" in done.stderr
        assert outlet.once().returncode == 4, "it is never passed over silently"
        accepted = outlet.once("--accept-gap")
        assert accepted.returncode == 0
        assert "passed over: everything up to offset" in accepted.stderr
        client.transaction("later", b"2")
        wait_until("what is behind the gap comes", lambda: outlet.summary()["records"] > 0, LIMIT_S)
    last = max(read(kafka, topic), key=lambda each: each.position)
    assert (last.name, last.body) == ("later", b"2")


def test_an_outlet_that_begins_at_the_end(tmp_path: Path, kafka: str) -> None:
    topic = topics(kafka, "newest")
    with broker_of_group(tmp_path, "newest") as broker, contextlib.closing(Client(broker.port)) as client:
        client.transaction("before", b"1")
        client.transaction("too", b"2")
        outlet = Outlet(broker.data, "--kafka", kafka, "--from", "newest")
        assert outlet.summary()["records"] <= 1, "the last one may not be known to be stable yet"
        client.transaction("after", b"3")
        wait_until("it comes", lambda: outlet.summary()["records"] > 0, LIMIT_S)
    named = check_whole(read(kafka, topic))
    assert "before" not in named
    assert [each.body for each in named["after"]] == [b"3"]


def test_rules_and_a_configuration_file(tmp_path: Path, kafka: str) -> None:
    topics(kafka, "rules")
    asyncio.run(create_topic(kafka, "rules-of-a", 2))
    config = tmp_path / "outlet.toml"
    config.write_text(
        f'[kafka]\nhosts = ["{kafka}"]\n[outlet]\nplain = false\n[[outlet.rules]]\nqueues = "//b"\ntopic = ""\n'
        '[[outlet.rules]]\nqueues = "//?"\ntopic = "rules-of-{queue}"\n',
        encoding="utf-8",
    )
    with broker_of_group(tmp_path, "rules") as broker, contextlib.closing(Client(broker.port)) as client:
        client.transaction("one", b"1", b"2")
        client.plain(b"no")
        client.transaction("two", b"3")
        assert all_sent(Outlet(broker.data, "--config", str(config)), 2)["records"] == 2
    assert [each.body for each in read(kafka, "rules-of-a")] == [b"1", b"3"]
    assert read(kafka, "understudy.rules") == []


# -- what is wrong at the start -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a broker that does not run any more, of the group ``wrong``."""
    folder = tmp_path_factory.mktemp("wrong")
    with broker_of_group(folder, "wrong") as broker, contextlib.closing(Client(broker.port)) as client:
        client.transaction("one", b"x" * 3000)
        client.transaction("two", b"2")
        client.transaction("three", b"3")
    return broker.data


def refused(data: Path, *options: str) -> str:
    done = Outlet(data, *options).once()
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


def test_topics_that_are_missing_or_wrong(data: Path, kafka: str, tmp_path: Path) -> None:
    assert "there is no topic 'understudy.wrong.position'" in refused(data, "--kafka", kafka)
    asyncio.run(create_topic(kafka, "not-compacted", 1))
    asyncio.run(create_topic(kafka, "two-partitions", 2, settings=COMPACTED))
    asyncio.run(create_topic(kafka, "compacted", 1, settings=COMPACTED))
    asyncio.run(create_topic(kafka, "few-replicas", 1, settings={"min.insync.replicas": "2"}))
    config = tmp_path / "outlet.toml"
    for position, topic, said in (
        ("not-compacted", "few-replicas", "topic 'not-compacted': cleanup.policy is 'delete', and must be 'compact'"),
        ("two-partitions", "few-replicas", "topic 'two-partitions' has 2 partitions"),
        ("compacted", "nowhere", "there is no topic 'nowhere'"),
        (
            "compacted",
            "few-replicas",
            "topic 'few-replicas', partition 0 has 1 in-sync replicas, and min.insync.replicas is 2",
        ),
    ):
        config.write_text(f'[outlet]\nposition_topic = "{position}"\ntopic = "{topic}"\n', encoding="utf-8")
        assert said in refused(data, "--kafka", kafka, "--config", str(config))


def test_topics_can_be_made(data: Path, kafka: str, tmp_path: Path) -> None:
    config = tmp_path / "outlet.toml"
    config.write_text(
        '[outlet]\ntopic = "made"\nposition_topic = "made.position"\ntransactional_id = "made"\n', encoding="utf-8"
    )
    options = ("--kafka", kafka, "--config", str(config), "--create-topics")
    assert Outlet(data, *options).summary()["records"] >= 1
    assert Outlet(data, *options).summary()["records"] == 0
    assert read(kafka, "made")[0].body == b"x" * 3000


def test_a_message_that_is_too_large_is_named_and_nothing_of_its_transaction_comes(
    data: Path, kafka: str, tmp_path: Path
) -> None:
    """By the outlet's own limit, then by the topic's."""
    asyncio.run(create_topic(kafka, "large.position", 1, settings=COMPACTED))
    asyncio.run(create_topic(kafka, "large", 1, settings={"max.message.bytes": "1500"}))
    config = tmp_path / "outlet.toml"
    text = '[outlet]\non_unsendable = "stop"\n'
    text += 'topic = "large"\nposition_topic = "large.position"\ntransactional_id = "large"\n'
    config.write_text(text + "max_message_bytes = 2000\n", encoding="utf-8")
    said = refused(data, "--kafka", kafka, "--config", str(config))
    assert "a message of 3000 bytes for queue '//a' takes" in said
    assert "outlet.max_message_bytes is 2000; raise it, and max.message.bytes of topic 'large'" in said
    config.write_text(text, encoding="utf-8")
    assert "topic 'large' takes no message of this size" in refused(data, "--kafka", kafka, "--config", str(config))
    assert read(kafka, "large") == []


def test_what_kafka_cannot_take_goes_aside_in_its_transaction(tmp_path: Path, kafka: str) -> None:
    """Too large for the outlet or for the topic, and a queue whose name makes no topic; milliseconds in a timestamp are taken."""
    asyncio.run(create_topic(kafka, "odd.a", 1, settings={"max.message.bytes": "1500"}))
    config = tmp_path / "outlet.toml"
    config.write_text(
        f'[kafka]\nhosts = ["{kafka}"]\n[outlet]\ncreate_topics = true\nmax_message_bytes = 5000\n'
        '[[outlet.rules]]\nqueues = "*"\ntopic = "odd.{queue}"\n',
        encoding="utf-8",
    )
    long = "q" * 250
    with broker_of_group(tmp_path, "odd") as broker, contextlib.closing(Client(broker.port)) as client:
        client.tx.queue_declare(long, durable=True)
        client.tx.basic_publish("", long, b"long", pika.BasicProperties(delivery_mode=PERSISTENT))
        client.transaction("one", b"1", b"2", b"3" * 2000, b"4" * 6000, b"5")
        milliseconds = 1_764_000_000_123
        headers = {"x-understudy-tx": "two"}
        client.tx.basic_publish(
            "", "b", b"6", pika.BasicProperties("", None, headers, PERSISTENT, timestamp=milliseconds)
        )
        client.tx.tx_commit()
        outlet = Outlet(broker.data, "--config", str(config))
        found = {"records": 0, "unsendable": 0}

        def all_is_there() -> bool:
            summary = json.loads(outlet.once().stdout)
            for key in found:
                found[key] += summary[key]
            return found["records"] >= 4

        wait_until("all is sent", all_is_there, LIMIT_S)
        assert found == {"records": 4, "unsendable": 3}
    aside = read(kafka, "understudy.odd.unsendable")
    assert sorted((each.key, each.body[:4]) for each in aside) == [
        ("//a", b"3333"),
        ("//b", b""),
        (f"//{long}", b"long"),
    ]
    sent = read(kafka, "odd.a", "odd.b")
    assert [each.body for each in sent if each.topic == "odd.a"] == [b"1", b"5"]
    one = by_transaction([*sent, *aside])[aside[0].tx]
    assert [int(each.headers["understudy-place"]) for each in one] == list(range(6)), "each message of the transaction"
    assert (
        "takes no message of this size"
        in next(each for each in aside if each.key == "//a").headers["understudy-unsendable"]
    )
    (two,) = [each for each in sent if each.name == "two"]
    assert two.headers["amqp-timestamp"] == str(milliseconds)

    # The position is lost: nothing is sent twice unless an operator wants it.
    config.write_text(
        config.read_text().replace("[outlet]\n", '[outlet]\nposition_topic = "odd.lost.position"\n'), encoding="utf-8"
    )
    said = refused(broker.data, "--config", str(config))
    assert "topic 'odd.lost.position' has no position of group 'odd', and topic 'odd.a' holds records" in said
    assert len(read(kafka, "odd.a")) == 2
    # The journal does not say of its last commit that it is stable, so that is behind its newest position.
    assert Outlet(broker.data, "--config", str(config), "--from", "newest").summary()["records"] <= 1
    assert Outlet(broker.data, "--config", str(config)).summary()["records"] == 0


def test_kafka_or_a_journal_that_is_not_there(data: Path, kafka: str, tmp_path: Path) -> None:
    assert "Kafka at 127.0.0.1:1: it cannot be reached" in refused(data, "--kafka", "127.0.0.1:1")
    assert "kafka.hosts: missing" in refused(data)
    assert f"there is no journal in {tmp_path}" in refused(tmp_path, "--kafka", kafka)
    assert "'//a' is no rule" in refused(data, "--kafka", kafka, "--rule", "//a")


def test_acls_that_are_missing_are_named(data: Path, kafka_server: SharedKafka, tmp_path: Path) -> None:
    """One after the other is given, and the next one is named at the start."""
    kafka, user = kafka_server.hosts, "writer"
    topic = "acl-outlet"
    asyncio.run(create_topic(kafka, topic, 1))
    asyncio.run(create_topic(kafka, f"{topic}.position", 1, settings=COMPACTED))
    password = tmp_path / "password"
    password.write_text(kafka_server.users[user], encoding="utf-8")
    config = tmp_path / "outlet.toml"
    config.write_text(
        f'[kafka]\nhosts = ["{kafka_server.sasl_hosts}"]\nsasl = "SCRAM-SHA-256"\nuser = "{user}"\npassword_file = "password"\n'
        f'[kafka.tls]\nca = "{kafka_server.cert}"\n'
        f'[outlet]\ntopic = "{topic}"\nposition_topic = "{topic}.position"\ntransactional_id = "{topic}"\n',
        encoding="utf-8",
    )

    def give(operation: str, resource: str, name: str) -> None:
        asyncio.run(allow(kafka, user, operation, resource, name))

    assert f"lacks an ACL on topic '{topic}.position'" in refused(data, "--config", str(config))
    give("Write", "topic", f"{topic}.position")
    give("Describe", "topic", topic)
    assert f"lacks the ACL Write on transactional id '{topic}'" in refused(data, "--config", str(config))
    give("Write", "transactional id", topic)
    assert f"user '{user}' lacks an ACL on topic '{topic}'" in refused(data, "--config", str(config))
    give("Write", "topic", topic)
    assert f"lacks an ACL on topic '{topic}.position': Write, or (for offsets) Read" in refused(
        data, "--config", str(config)
    )
    give("Read", "topic", f"{topic}.position")
    assert Outlet(data, "--config", str(config)).summary()["records"] >= 1


def test_a_position_that_is_none_is_not_believed(data: Path, kafka: str, tmp_path: Path) -> None:
    from aiokafka import AIOKafkaProducer

    asyncio.run(create_topic(kafka, "strange.position", 1, settings=COMPACTED))
    asyncio.run(create_topic(kafka, "strange", 1))

    async def write(value: bytes) -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            await producer.send_and_wait("strange.position", value, b"wrong")

    config = tmp_path / "outlet.toml"
    config.write_text(
        '[outlet]\ntopic = "strange"\nposition_topic = "strange.position"\ntransactional_id = "strange"\n',
        encoding="utf-8",
    )
    for value, said in (
        (b"{}", "cannot be read"),
        (b'{"version":9,"group":"wrong","founding":"","epoch":1,"offset":1,"csn":0,"needed":1,"reign":1,"broker":"b","session":"s"}',
         "is of version 9; this program reads version 1"),
        (b'{"version":1,"group":"other","founding":"","epoch":1,"offset":1,"csn":0,"needed":1,"reign":1,"broker":"b","session":"s"}',
         "is of group 'other', and this journal of 'wrong'"),
    ):  # fmt: skip
        asyncio.run(write(value))
        assert said in refused(data, "--kafka", kafka, "--config", str(config))
    assert read(kafka, "strange") == []
