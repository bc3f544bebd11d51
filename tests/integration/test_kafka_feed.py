"""``understudy feed --kafka`` on a real Kafka: feed, brokers and Kafka are killed; each event is in the topic once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from scripts.service_tools.kafka_admin import allow, create_topic
from scripts.service_tools.kafka_keeper import SharedKafka
from scripts.service_tools.kafka_servers import KafkaCluster, lay_out_kafka
from tests.integration.broker_process import PROGRAM, ask_to_end, running_broker, wait_until
from tests.integration.conftest import SMALL_SEGMENTS
from tests.integration.feed_rows import check_same
from tests.integration.kafka_reading import count, in_journals, in_topic, messages, replicas_in_sync
from tests.integration.test_feed import publish
from tests.stress.group import running_group
from tests.stress.load import Load
from tests.unit.observers.feed.feed_speed import write_journal
from understudy.observers.feed.edge.command import feed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 240.0
READ_S = 0.5
"""Between two looks into a topic: each reads it whole."""
STOPS_S = 20.0
"""A feed that is asked to end does so in some 2.5 s though Kafka hangs; each step of an attempt may take 10 s, a start 30 s."""
APP = typer.Typer()
APP.command()(feed)


class Feed:
    """``understudy feed --kafka`` of a directory, which may be killed and goes on at its cursor.

    Args:
        data: what it reads.
        folder: for the cursor and what it says.
        options: where it sends.
    """

    def __init__(self, data: Path, folder: Path, *options: str) -> None:
        self._said = folder / "feed.stderr"
        self._state = folder / "feed.state"
        self._words = ["--data", str(data), "--cursor", str(self._state), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._said.open("ab") as said:
            self.process = subprocess.Popen([PROGRAM, "feed", *self._words, "--follow"], stderr=said)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        if how is signal.SIGKILL:
            self.process.kill()
        else:
            ask_to_end(self.process, how)
        return self.process.wait(LIMIT_S)

    def wait_for_more(self, writes: int = 3) -> None:
        """Until it has written its state so often: before and behind each of Kafka's transactions."""
        for _ in range(writes):
            before = self._written()
            wait_until("the feed writes its state", lambda before=before: self._written() != before, LIMIT_S)  # type: ignore[misc]

    def _written(self) -> tuple[int, int]:
        """Of the state file: inode and time, which each write changes; zeros if it is not there."""
        try:
            found = self._state.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    @property
    def said(self) -> str:
        return self._said.read_text()

    def once(self) -> Result:
        """To the end of the journals, in this process."""
        return CliRunner().invoke(APP, self._words)

    def once_when_kafka_is_back(self) -> None:
        """`once`, again while Kafka, which was killed or suspended a moment before, cannot be used."""
        said: list[str] = []

        def done() -> bool:
            result = self.once()
            said.append(result.stderr)
            return result.exit_code == 0

        try:
            wait_until("the rest is told", done, LIMIT_S, every_s=READ_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the feed's words: {said}") from error

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            assert self.process is not None
            self.process.kill()
            self.process.wait()


def topic_of(hosts: str, name: str, partitions: int = 3, replicas: int = 1) -> str:
    asyncio.run(create_topic(hosts, name, partitions, replicas=replicas))
    return name


def test_kill_9_of_feed_and_brokers(tmp_path: Path, kafka: str) -> None:
    """Three brokers under load; the feed is killed again and again, the primary once: the topic has what the journals have."""
    topic = topic_of(kafka, "kill-9")
    with running_group(tmp_path, SMALL_SEGMENTS) as group:
        for broker in group.brokers.values():  # the whole journals are compared at the end
            (broker.data / "test.hold").write_text('{"segment": 1}')
        load = Load(group.ports, movers=2, pace_s=0.05)
        load.declare()
        feed = Feed(group.folder, tmp_path, "--kafka", kafka, "--topic", topic, "--hold", "kafka")
        with feed.running():
            with load.running():
                for _ in range(4):
                    feed.wait_for_more()
                    assert feed.end(signal.SIGKILL) == -signal.SIGKILL
                    feed.start()
                primary = group.primary()
                primary.kill()
                load.wait_committed(10)
                group.start(primary.name)
                group.ready()
            group.settled()
            assert feed.end(signal.SIGTERM) == 0
        for broker in group.brokers.values():
            broker.stop()
        done = feed.once()
        assert (done.exit_code, done.stderr) == (0, "")
        assert feed.said == ""
        whole = in_journals(group.folder)
        assert {broker for broker, _ in whole} == set(group.brokers)
        assert sum(map(len, whole.values())) > 500
        check_same(in_topic(kafka, topic), whole)
    assert len({each.partition for each in messages(kafka, topic)}) > 1


def test_a_feed_that_is_killed_at_any_moment(tmp_path: Path, kafka: str) -> None:
    """Some 20 feeds live for less than a second each: what one had begun the next one finds, in Kafka or not."""
    topic = topic_of(kafka, "any-moment")
    for broker in ("b1", "b2"):
        write_journal(tmp_path / "cluster" / broker, 320, broker=broker)
    words = [str(tmp_path / "cluster"), str(tmp_path / "state"), kafka, topic, "20", "7"]
    program = [sys.executable, "-m", "tests.integration.kafka_feed_kills", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    check_same(in_topic(kafka, topic), in_journals(tmp_path / "cluster"))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A Kafka of its own, whose brokers may be killed."""
    cluster = lay_out_kafka(tmp_path / "kafka", 3)
    cluster.start()
    yield cluster
    for number in (1, 2, 3):
        cluster.kill(number)


def test_a_kafka_that_is_re_elected_absent_suspended_or_short_of_replicas(tmp_path: Path, three: KafkaCluster) -> None:
    """Two of three of Kafka's brokers are killed: the feed waits and says so once; nothing is lost or doubled."""
    topic = topic_of(three.hosts, "outage", partitions=2, replicas=3)
    with running_broker(tmp_path) as broker:
        feed = Feed(broker.data, tmp_path, "--kafka", three.hosts, "--topic", topic)

        def enqueued() -> int:
            return count(three.hosts, topic, "enqueue")

        with feed.running():
            publish(broker.port, 5)
            wait_until("the feed sends", lambda: enqueued() == 5, LIMIT_S, every_s=READ_S)
            three.kill(1)
            publish(broker.port, 5)
            wait_until("new leaders take it", lambda: enqueued() == 10, LIMIT_S, every_s=READ_S)
            three.kill(2)
            said = len(feed.said.splitlines())
            publish(broker.port, 5)
            wait_until("it says that it waits", lambda: len(feed.said.splitlines()) > said, LIMIT_S)
            assert "the feed waits" in feed.said.splitlines()[-1]
            publish(broker.port, 5)
            three.restart(1)
            wait_until("it goes on", lambda: enqueued() == 20, LIMIT_S, every_s=READ_S)
            wait_until("it says so", lambda: "takes events again" in feed.said.splitlines()[-1], LIMIT_S)
            assert len(feed.said.splitlines()) == said + 2, feed.said
            for pid in (three.pids[0], three.pids[2]):
                os.kill(pid, signal.SIGSTOP)
            publish(broker.port, 5)
            wait_until("an attempt is under way", lambda: '"begun":{' in (tmp_path / "feed.state").read_text(), LIMIT_S)
            began_s = time.monotonic()
            assert feed.end(signal.SIGTERM) == 0
            assert time.monotonic() - began_s < STOPS_S
            for pid in (three.pids[0], three.pids[2]):
                os.kill(pid, signal.SIGCONT)
            feed.once_when_kafka_is_back()
            wait_until("the next one has gone on", lambda: enqueued() == 25, LIMIT_S, every_s=READ_S)
        broker.stop()
        feed.once_when_kafka_is_back()
        check_same(in_topic(three.hosts, topic), in_journals(broker.data))
        three.restart(2)
        settings = {"min.insync.replicas": "3"}
        asyncio.run(create_topic(three.hosts, "strict", replicas=3, settings=settings))
        three.kill(3)
        wait_until(
            "it is out of the replicas", lambda: replicas_in_sync(three.hosts, "strict") == 2, LIMIT_S, every_s=READ_S
        )
        done = Feed(broker.data, tmp_path / "kafka", "--kafka", three.hosts, "--topic", "strict").once()
        assert done.exit_code == 2
        assert "topic 'strict', partition 0 has 2 in-sync replicas, and min.insync.replicas is 3" in done.stderr
        broker.start()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two brokers that have ended."""
    folder = tmp_path_factory.mktemp("recorded")
    for broker in ("b1", "b2"):
        write_journal(folder / broker, 40, broker=broker)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topic", "absent"], r"there is no topic 'absent'; make it first"),
        (["--topic", "no/topic"], r"there is no topic 'no/topic'"),
        (
            ["--kafka", "127.0.0.1:1", "--topic", "t"],
            r"Kafka at 127\.0\.0\.1:1: it cannot be reached .*Connect call failed",
        ),
        (["--kafka", "127.0.0.1", "--topic", "t"], r"--kafka: kafka\.hosts\[0\]: '127\.0\.0\.1' is not valid"),
        (["--kafka-options", "/absent.toml", "--topic", "t"], r"/absent\.toml: cannot be read"),
    ],
)
def test_what_is_wrong_at_the_start_is_named(
    tmp_path: Path, data: Path, kafka: str, options: list[str], said: str
) -> None:
    if "--kafka" not in options:
        options = ["--kafka", kafka, *options]
    done = Feed(data, tmp_path, *options).once()
    assert done.exit_code == 2
    assert re.search(said, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def options_file(folder: Path, server: SharedKafka, user: str, **changed: object) -> str:
    """The section [kafka] of a user of the SASL listener."""
    (folder / "password").write_text(server.users[user] + "\n")
    values = {"user": user, "sasl": "SCRAM-SHA-512", "password_file": "password", "client_id": user} | changed
    ca = values.pop("ca", server.cert)
    lines = [f'{name} = "{value}"' for name, value in values.items()]
    path = folder / "kafka.toml"
    path.write_text(f'[kafka]\nhosts = ["{server.sasl_hosts}"]\n' + "\n".join(lines) + f'\n[kafka.tls]\nca = "{ca}"\n')
    return str(path)


def test_acls_one_after_the_other(tmp_path: Path, data: Path, kafka_server: SharedKafka) -> None:
    """A user that may nothing is told which ACL it lacks, until it has all and the events are in the topic."""
    topic = topic_of(kafka_server.hosts, "guarded")
    options = options_file(tmp_path, kafka_server, "writer")
    feed = Feed(data, tmp_path, "--kafka-options", options, "--topic", topic)
    missing = [
        (r"user 'writer' lacks an ACL on topic 'guarded'", ("Write", "topic", topic, False)),
        (
            r"lacks the ACL Write on transactional id 'writer\.feed\.",
            ("Write", "transactional id", "writer.feed.", True),
        ),
        (r"lacks the ACL Read on group 'writer\.feed\.", ("Read", "group", "writer.feed.", True)),
        (
            r"user 'writer' lacks an ACL on topic 'guarded': Write, or \(for offsets\) Read",
            ("Read", "topic", topic, False),
        ),
    ]
    for said, (operation, resource, name, prefixed) in missing:

        def refused(said: str = said) -> bool:
            done = feed.once()
            return done.exit_code == 2 and re.search(said, done.stderr) is not None

        wait_until(f"it says {said}", refused, LIMIT_S)
        asyncio.run(allow(kafka_server.hosts, "writer", operation, resource, name, prefixed=prefixed))
    wait_until("all ACLs are in force", lambda: feed.once().exit_code == 0, LIMIT_S)
    check_same(in_topic(kafka_server.hosts, topic), in_journals(data))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"password": "wrong"}, r"Authentication failed during authentication due to invalid credentials"),
        ({"password_file": "absent"}, r"kafka\.password_file .*/absent cannot be read: .*No such file"),
        ({"ca": "absent.pem"}, r"kafka\.tls\.ca .*/absent\.pem cannot be used: .*No such file"),
    ],
)
def test_credentials_that_are_wrong_are_named(
    tmp_path: Path, data: Path, kafka_server: SharedKafka, changed: dict[str, str], said: str
) -> None:
    wrong = changed.pop("password", None)
    options = options_file(tmp_path, kafka_server, "stranger", **changed)
    if wrong is not None:
        (tmp_path / "password").write_text(wrong)
    done = Feed(data, tmp_path, "--kafka-options", options, "--topic", "t").once()
    assert done.exit_code == 2
    assert re.search(said, done.stderr), done.stderr


def test_a_client_certificate(tmp_path: Path, data: Path, kafka_server: SharedKafka) -> None:
    topic = topic_of(kafka_server.hosts, "certified")
    for operation, resource, name in (
        ("Write", "topic", topic),
        ("Read", "topic", topic),
        ("Write", "transactional id", "cert.feed."),
        ("Read", "group", "cert.feed."),
    ):
        prefixed = resource != "topic"
        asyncio.run(allow(kafka_server.hosts, "CN=localhost", operation, resource, name, prefixed=prefixed))
    path = tmp_path / "kafka.toml"
    tls = f'ca = "{kafka_server.cert}"\ncert = "{kafka_server.cert}"\nkey = "{kafka_server.key}"\n'
    path.write_text(f'[kafka]\nhosts = ["{kafka_server.tls_hosts}"]\nclient_id = "cert"\n[kafka.tls]\n{tls}')
    feed = Feed(data, tmp_path, "--kafka-options", str(path), "--topic", topic)

    def sent() -> bool:
        return feed.once().exit_code == 0

    wait_until("the ACLs are in force", sent, LIMIT_S)
    check_same(in_topic(kafka_server.hosts, topic), in_journals(data))


def test_a_state_that_is_not_the_last_one(tmp_path: Path, kafka: str) -> None:
    """An older copy would tell events twice; with another topic half of them would be told there."""
    topic = topic_of(kafka, "copied")
    with running_broker(tmp_path) as broker:
        feed = Feed(broker.data, tmp_path, "--kafka", kafka, "--topic", topic)
        state = tmp_path / "feed.state"
        publish(broker.port, 3)
        assert feed.once().exit_code == 0
        older = state.read_bytes()
        publish(broker.port, 3)
        assert feed.once().exit_code == 0
        told = in_topic(kafka, topic)
        state.write_bytes(older)
        done = feed.once()
        assert done.exit_code == 2
        assert re.search(r"feed\.state is not the last state of feed 'understudy\.feed\.", done.stderr), done.stderr
        other = Feed(broker.data, tmp_path, "--kafka", kafka, "--topic", topic_of(kafka, "other")).once()
        assert other.exit_code == 2
        assert "is of a feed into topic 'copied', and not into 'other'" in other.stderr
        check_same(in_topic(kafka, topic), told)


PLUGIN = """
[feed]
topic = "plugin"
[kafka]
hosts = ["{hosts}"]
[plugins]
feed = true
"""


def test_a_broker_runs_its_feed_into_kafka(tmp_path: Path, kafka: str) -> None:
    """The feed is killed, then the broker: each event is in the topic once."""
    topic = topic_of(kafka, "plugin")

    def enqueued() -> int:
        return count(kafka, topic, "enqueue")

    with running_broker(tmp_path, PLUGIN.format(hosts=kafka)) as broker:
        publish(broker.port, 3)
        wait_until("the feed tells", lambda: enqueued() == 3, LIMIT_S)
        os.kill(int(broker.status()["plugins"]["feed"]["pid"]), signal.SIGKILL)
        publish(broker.port, 3)
        wait_until("the next one goes on", lambda: enqueued() == 6, LIMIT_S)
        broker.kill()
        broker.start()
        publish(broker.port, 3)
        wait_until("a new one goes on", lambda: enqueued() == 9, LIMIT_S)
        assert broker.status()["plugins"]["feed"]["topic"] == topic
    told = in_topic(kafka, topic)
    for rows in told.values():
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
