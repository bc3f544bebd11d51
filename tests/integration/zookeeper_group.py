"""Brokers of one group that meet in ZooKeeper, and what a test sees of it from outside: nodes, and ``understudy status --zk``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pika
from kazoo.client import KazooClient

from tests.integration.broker_process import PROGRAM, wait_until
from tests.stress.clients import ERRORS, Finder
from tests.stress.group import Group, running_group
from understudy.ha.trial.edge.cluster_command import GROUP, zookeeper_store
from understudy.ha.trial.edge.zookeeper_servers import Ensemble

SESSION_S = 2.0
PAUSE_S = 0.005
"""Between two commits: what is committed meanwhile has to be read at the end."""
ROOT = f"/understudy/{GROUP}"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def store_keys(hosts: str, session_s: float = SESSION_S) -> str:
    """The keys of [coordination] for tests."""
    return f"{zookeeper_store(hosts)}session_s = {session_s}\n"


@contextlib.contextmanager
def group_on(ensemble: Ensemble, folder: Path, *, brokers: int = 3, session_s: float = SESSION_S) -> Iterator[Group]:
    """A group whose chroot is named for the folder."""
    store = store_keys(f"{ensemble.hosts}/{folder.name}", session_s)
    with running_group(folder, brokers=brokers, group_class=partial(Group, store=store)) as running:
        yield running


@contextlib.contextmanager
def nodes_of(hosts: str) -> Iterator[KazooClient]:
    """A client of the tests' own."""
    client = KazooClient(hosts, timeout=10.0)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def stored(client: KazooClient, path: str) -> dict[str, Any]:
    """The object in a node below the group."""
    value: dict[str, Any] = json.loads(client.get(f"{ROOT}/{path}")[0])
    return value


def status(hosts: str, *options: str) -> tuple[int, str, str]:
    """Exit code, output and errors of ``understudy status --zk``."""
    command = [str(PROGRAM), "status", "--zk", hosts, "--group", GROUP, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def bodies(ports: list[int], queue: str) -> list[int]:
    """All that a queue holds; it is empty then."""
    connection = Finder(ports).connect()
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).method.message_count
    found = []
    for _, _, body in channel.consume(queue, auto_ack=True) if count else ():
        found.append(int(body))
        if len(found) == count:
            break
    channel.cancel()
    connection.close()
    return found


def check(ports: list[int], load: Load) -> None:
    """Committed messages are in both queues, once, in order; unknown ones in both or in none. Empties the queues."""
    found = {queue: bodies(ports, queue) for queue in load.queues}
    one, other = found.values()
    assert one == other
    assert one == sorted(set(one))
    assert set(load.committed) <= set(one) <= {*load.committed, *load.unknown}


class Load:
    """Commits numbers in transactions of two publishes, whatever happens, until it is stopped.

    Args:
        pause_s: between two commits.

    Attributes:
        committed: numbers whose commit was answered.
        committed_at: when each was (monotonic).
        unknown: numbers whose connection ended first.
        queues: where each number goes.
    """

    def __init__(self, ports: list[int], queues: tuple[str, str] = ("a", "b"), *, pause_s: float = PAUSE_S) -> None:
        self.committed: list[int] = []
        self.committed_at: list[float] = []
        self.unknown: list[int] = []
        self.queues = queues
        self._pause_s = pause_s
        self._finder = Finder(ports)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def goes_on(self, commits: int = 20, timeout_s: float = 90.0) -> None:
        """Wait for so many more commits."""
        seen = len(self.committed)
        wait_until(f"{commits} more commits", lambda: len(self.committed) >= seen + commits, timeout_s)

    def longest_pause_s(self, since: float) -> float:
        """The longest time between two commits, from the monotonic time ``since`` on."""
        at = [since, *(each for each in self.committed_at if each > since), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(at))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            with contextlib.suppress(*ERRORS):
                connection = self._finder.connect(stop=self._stop)
                channel = connection.channel()
                for queue in self.queues:
                    channel.queue_declare(queue, durable=True)
                channel.tx_select()
                while not self._stop.is_set():
                    number += 1
                    self.unknown.append(number)
                    for queue in self.queues:
                        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
                    channel.tx_commit()
                    self.committed_at.append(time.monotonic())
                    self.committed.append(self.unknown.pop())
                    self._stop.wait(self._pause_s)
                connection.close()
