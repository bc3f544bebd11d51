"""Primaries are killed while applications and their transaction managers work: every message ends where the managers have decided.

A manager here never forgets: it notes a decision before it says it, and after a failure asks for what it does not know. So of every
branch the outcome is known in the end, and with it the queue of every message.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pika
import pika.exceptions
import pytest

from tests.integration.dtx_channel import OK, DtxChannel, Xid
from tests.integration.dtx_workbench import publish
from tests.stress.clients import ERRORS, Finder
from tests.stress.group import Group, running_group

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

QUEUES = ["q0", "q1", "q2", "q3"]
MESSAGES = 60
WORKERS = 4
KILLS = 6
"""All brokers at once are the last."""
MEANWHILE = 40
"""Decisions that are carried out between two kills."""
GLOBAL_ID = b"kills"


@attrs.define
class Branch:
    """A branch, as its manager knows it. ``commit``: None as long as nothing is decided, then the decision for good."""

    xid: Xid
    source: str
    target: str
    message: str = ""
    commit: bool | None = None
    done: bool = False


class Manager:
    """An application with its transaction manager, in a thread; goes to whoever leads."""

    def __init__(self, number: int, finder: Finder, seed: int) -> None:
        self.branches: list[Branch] = []
        self.fault: BaseException | None = None
        self._finder = finder
        self._chance = random.Random(seed * 100 + number)
        self._xids = (Xid(number, GLOBAL_ID, b"%d" % each) for each in itertools.count())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.fault is not None:
            raise self.fault

    @property
    def decided(self) -> int:
        return sum(branch.done for branch in self.branches)

    def _run(self) -> None:
        try:
            while True:
                with contextlib.suppress(*ERRORS):
                    self._work()
                    return
        except BaseException as fault:  # noqa: BLE001  # join raises it
            self.fault = fault

    def _work(self) -> None:
        connection = self._finder.connect()
        with contextlib.closing(connection):
            worker = DtxChannel(connection.channel()).select()
            for branch in self.branches:
                if not branch.done:
                    self._decide(DtxChannel(connection.channel()), branch)
            while not self._stop.is_set():
                source, target = self._chance.sample(QUEUES, 2)
                self.branches.append(Branch(next(self._xids), source, target))
                self._move(worker, self.branches[-1])
                self._decide(worker, self.branches[-1])

    def _move(self, worker: DtxChannel, branch: Branch) -> None:
        """Afterwards it is prepared, and it is known what becomes of it."""
        assert worker.start(branch.xid) == OK
        method, properties, _ = worker.channel.basic_get(branch.source)
        if method is not None:
            branch.message = properties.correlation_id
            worker.channel.basic_ack(method.delivery_tag)
            publish(worker.channel, branch.target, branch.message)
        assert worker.end(branch.xid) == OK
        assert worker.prepare(branch.xid) == OK
        branch.commit = method is not None and self._chance.random() < 0.7

    def _decide(self, worker: DtxChannel, branch: Branch) -> None:
        """Say the decision; without one the branch may be prepared or not, and is rolled back."""
        branch.commit = bool(branch.commit)
        try:
            status = worker.commit(branch.xid) if branch.commit else worker.rollback(branch.xid)
        except pika.exceptions.ChannelClosedByBroker as error:
            # Said before, and carried out; or, of a rollback, never prepared.
            if error.reply_code != 404:
                raise AssertionError(f"{branch}: {error}") from error
        else:
            assert status == OK, f"{branch}: {status}"
        branch.done = True


def wanted(managers: list[Manager], home: dict[str, str]) -> dict[str, str]:
    """Where each message must be: at home, moved by every branch that was committed."""
    balance: dict[str, Counter[str]] = {message: Counter({queue: 1}) for message, queue in home.items()}
    for manager in managers:
        for branch in manager.branches:
            assert branch.done
            if branch.commit:
                balance[branch.message][branch.source] -= 1
                balance[branch.message][branch.target] += 1
    places = {message: [queue for queue, count in each.items() if count] for message, each in balance.items()}
    assert all(len(queues) == 1 for queues in places.values()), f"no path of moves: {places}"
    return {message: queues[0] for message, queues in places.items()}


def drained(finder: Finder) -> dict[str, str]:
    connection = finder.connect()
    channel = connection.channel()
    found: dict[str, str] = {}
    for queue in QUEUES:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            assert got[1].correlation_id not in found, f"{got[1].correlation_id} is there twice"
            found[got[1].correlation_id] = queue
    connection.close()
    return found


def one_dies(group: Group, at_once: bool) -> None:
    if at_once:
        group.kill_all()
        group.start()
    else:
        killed = group.primary()
        killed.kill()
        group.primary()
        group.start(killed.name)
    group.ready()


def set_up(finder: Finder) -> dict[str, str]:
    """Queues with messages; which is where."""
    connection: Any = finder.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    home = {f"m{number}": QUEUES[number % len(QUEUES)] for number in range(MESSAGES)}
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True)
    for message, queue in home.items():
        publish(channel, queue, message)
    connection.close()
    return home


def test_every_message_is_where_its_branches_have_left_it(tmp_path: Path) -> None:
    seed = int(os.environ.get("UNDERSTUDY_SEED", time.time_ns() % 1_000_000))
    print(f"UNDERSTUDY_SEED={seed}")
    chance = random.Random(seed)
    with running_group(tmp_path) as group:
        finder = Finder(group.ports)
        home = set_up(finder)
        managers = [Manager(number, finder, seed) for number in range(WORKERS)]
        for manager in managers:
            manager.start()
        try:
            for number in range(KILLS):
                goal = sum(manager.decided for manager in managers) + MEANWHILE
                while sum(manager.decided for manager in managers) < goal:
                    assert not any(manager.fault for manager in managers), [manager.fault for manager in managers]
                    time.sleep(0.01 + 0.05 * chance.random())
                one_dies(group, at_once=number == KILLS - 1)
        finally:
            for manager in managers:
                manager.stop()
        for manager in managers:
            manager.join()
        connection = finder.connect()
        assert DtxChannel(connection.channel()).recover() == []
        connection.close()
        group.settled()
        group.agree()
        expected = wanted(managers, home)
        moves = Counter(branch.commit for manager in managers for branch in manager.branches)
        print(f"{moves[True]} moves committed, {moves[False]} rolled back")
        assert moves[True] > MEANWHILE
        assert drained(finder) == expected
