"""The state server with its decisions in queues of a group of brokers: what survives whose death, and who may write."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.cut_link import CutLink
from tests.integration.xa_servers import FINGERPRINT, JOB, QueueServer, Told, ended, lives
from tests.stress.group import Group, running_group
from understudy.xa.core.errors import StateServerLostError
from understudy.xa.core.register.wire import Claim, Claimed
from understudy.xa.sockets.link import StateLink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("xa"), "[journal]\nreserve_bytes = 0\n") as running:
        yield running


def test_what_is_answered_survives_every_broker_and_the_state_server(group: Group, tmp_path: Path) -> None:
    """Each broker that leads is killed while decisions are written; then the state server; another one reads the log."""
    queue = ("--queue", "survives")
    first, second = (QueueServer(tmp_path, group.ports, name, *queue) for name in ("first", "second"))
    told = Told()
    with ended(first, second):
        assert sum(first.start("--shards", "2").values()) == 0
        for number in range(2):
            started, stop = threading.Event(), threading.Event()
            thread = threading.Thread(target=write, args=(first, told, f"{number}", started, stop))
            thread.start()
            started.wait(30)
            killed = group.primary()
            killed.kill()
            group.primary()
            time.sleep(0.5)
            stop.set()
            thread.join(60)
            killed.spawn()
            group.ready(*group.brokers)
        assert len(told.decided) > 10
        told.check(first.entries())
        first.kill()
        second.start("--workers", "2")
        told.check(second.entries())
        os.kill(second.workers[0], signal.SIGKILL)
        wait_until("the worker is missed", lambda: "worker 0 was ended by signal 9" in second.log.read_text())
        told.check(second.entries())  # the next worker has read its queue
        assert second.stop() == 0
        assert "there are 2 shards, and 1 are asked for" in second.refused("--shards", "1")


def write(server: QueueServer, told: Told, name: str, started: threading.Event, stop: threading.Event) -> None:
    for number in itertools.count():
        if stop.is_set():
            return
        with server.link(f"job-{name}-{number}") as link:
            lives(link, told, [f"{name}-{number}-{part}" for part in range(3)])
        if number == 3:
            started.set()


def test_a_server_that_was_replaced_answers_no_more(group: Group, tmp_path: Path) -> None:
    """The first server is cut off from the brokers, though its clients reach it; the standby takes over."""
    with CutLink(group.primary().port) as link:
        first = QueueServer(tmp_path, [link.port], "first", "--queue", "replaced", "--owner-wait-s", "1")
        second = QueueServer(tmp_path, group.ports, "second", "--queue", "replaced")
        with ended(first, second):
            first.start()
            assert "another state server owns this decision log" in second.refused("--owner-wait-s", "0.5")
            told = Told()
            client = first.link()
            lives(client, told, ["1", "2", "3"])
            client.close()
            second.spawn("--standby")
            link.cut()
            assert second.serves()["pending"] in (2, 3)  # the record of an end is not waited for
            with pytest.raises(StateServerLostError, match="no answer in time"), first.link(timeout_s=2) as late:
                late.ask(Claim())  # it has the entries in its memory, and must not give them away
            both = f"127.0.0.1:1,{second.address}"
            with StateLink(both, job=JOB, profile="shop", fingerprint=FINGERPRINT) as client:
                assert isinstance(client.ask(Claim()), Claimed)
            link.mend()
            assert first.process is not None
            assert first.process.wait(30) == 74
            assert "another state server" in first.log.read_text()
            told.check(second.entries())
            assert second.stop() == 0


def test_what_a_stranger_has_put_into_the_queue_is_refused_and_kept(group: Group, tmp_path: Path) -> None:
    server = QueueServer(tmp_path, group.ports, "state", "--queue", "strange")
    told = Told()
    with ended(server):
        server.start()
        with server.link() as client:
            lives(client, told, ["1", "2", "3"])
        server.kill()
        with amqp.Connection(f"127.0.0.1:{group.primary().port}") as connection:
            channel = connection.channel()
            channel.basic_publish(amqp.Message("hello", delivery_mode=2), exchange="", routing_key="strange.0")
            there = messages(channel, "strange.0")
            assert f"queue strange.0, message {there} is of type ''" in server.refused()
            assert messages(channel, "strange.0") == there + 1  # the mark of the server that has looked
            assert sum(server.start("--force-empty").values()) == 0
            (aside,) = re.findall(r"its messages are now in queue (strange\S+)", server.log.read_text())
            assert messages(channel, aside) == there
        assert server.stop() == 0


def messages(channel: amqp.Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).message_count)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--url", "amqp://guest:tops3cret@{hosts}/"], "ACCESS_REFUSED"),
        (["--url", "amqp://guest:guest@{hosts}/nowhere"], "nowhere"),
        (["--url", "amqp://127.0.0.1:1/"], "no broker serves: 127.0.0.1:1:"),
        (["--url", "http://x"], "must be amqp://"),
        (["--queue", "a b"], "'a b' is not 1 to 200"),
        (["--data", "x"], "--data is of the other engines"),
        (["--engine", "journal"], "needs --data"),
        (["--engine", "queues"], "--engine queues is none of journal, mirrored, queue"),
    ],
)
def test_options_that_cannot_be(group: Group, tmp_path: Path, options: list[str], text: str) -> None:
    hosts = ",".join(f"127.0.0.1:{port}" for port in group.ports)
    server = QueueServer(tmp_path, group.ports)
    with ended(server):
        said = server.refused(*(option.format(hosts=hosts) for option in options))
    assert text in said
    assert "tops3cret" not in said
