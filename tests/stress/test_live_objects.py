"""After 10,000 transactions of all kinds, branches of distributed ones too, nothing of them is left in memory, on any broker.

Nor was any of it freed by the cycle collector, which looks at nothing while a broker holds many messages (decision 0029).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import OK, DtxChannel, Xid
from tests.stress.clients import NAME_HEADER, PERSISTENT, Finder, connect_to, cut, declare, in_threads, send_commit
from tests.stress.group import Group, GroupBroker, running_group

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

TRANSACTIONS = 10_000
WARM_UP = 1_500
CLIENTS = 6
QUEUES = ("q.0", "q.1", "q.2", "q.3")
BRANCHES = 0.1
"""How often a transaction is a branch of a distributed one."""
BRANCH_ENDS = (
    "branch committed",
    "branch committed in one phase",
    "branch completed by hand, and forgotten",
    "branch rolled back",
    "branch rolled back by who found it prepared",
    "branch abandoned, and asked for",
    "branch abandoned",
)
BRANCH_TIMEOUT_S = 1
"""Who abandons a branch lets it be forgotten as soon as that: otherwise it is kept for a minute, for who might ask for it."""
COMMITS = ("commit", *BRANCH_ENDS[:3])
PROGRAM = Path(__file__).with_name("counted_broker.py")

GONE = [
    "understudy.broker.core.clients.association.Association",
    "understudy.broker.core.clients.channel.Channel",
    "understudy.broker.core.clients.connection.Connection",
    "understudy.broker.core.queues.consumer.Consumer",
    "understudy.broker.core.clients.delivery_ledger.Delivery",
    "understudy.broker.core.clients.delivery_ledger.DeliveryLedger",
    "understudy.broker.core.branches.dtx_manager.BranchWork",
    "understudy.broker.core.queues.entry.Entry",
    "understudy.broker.core.clients.transacting.Session",
    "understudy.broker.log.record.Prepare",
    "understudy.broker.message.Message",
    "understudy.broker.server.sockets.client_session.ClientSession",
    "understudy.broker.transactions.dtx_branch.Completion",
    "understudy.broker.transactions.dtx_branch.DtxBranch",
    "understudy.broker.transactions.tx_buffer.TxBuffer",
    "understudy.ha.leading.tx_tracker.TxTracker",
    "understudy.replicator.tx_queue.TxQueue",
]
"""What an idle broker with empty queues and no client has none of."""

BOUNDED = ("KeptLog.batches", "Segment.index")
"""By bytes: the window for backups that come back, the index of a segment that is being written."""

COUNTS = 4
"""Of each broker, before and after: what its threads are at differs from one to the next."""

SLACK, SLACK_OF_PYTHON = 3, 200
"""One more thread, one more job under way, what is done first; 10,000 transactions leave none of them 200 objects each."""

Census = dict[str, dict[str, int]]


class CountedBroker(GroupBroker):
    def spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, PROGRAM, self.config], stderr=log, cwd=self.folder)
        return self.process

    def census(self) -> Census:
        """Objects alive in this process."""
        path = self.data.with_suffix(".census")
        path.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        wait_until(f"{self.name} has counted", path.exists, 60.0)
        found: Census = json.loads(path.read_text())
        return found


class CountedGroup(Group):
    broker_class = CountedBroker

    def census(self) -> dict[str, Census]:
        return {broker.name: broker.census() for broker in self.running() if isinstance(broker, CountedBroker)}

    def census_at_rest(self) -> dict[str, Census]:
        """The first of several counts, of kinds of objects the least: a thread at work holds more for a moment, a leak for ever."""
        counts = []
        for _ in range(COUNTS):
            counts.append(self.census())
            time.sleep(0.3)  # other moments: what a thread is at has no condition to wait for
        return {name: at_rest([count[name] for count in counts]) for name in counts[0]}


def at_rest(counts: list[Census]) -> Census:
    """The first count; how many objects there are of a kind is that of the count that found fewest, but for ``GONE``."""
    first = counts[0]
    objects = {
        key: count if key in GONE else min(each["objects"].get(key, 0) for each in counts)
        for key, count in first["objects"].items()
    }
    return {**first, "objects": objects}


class Client:
    """Runs transactions that end in every way there is. Takes one message and makes one, so that the queues stay short."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self._branches = 0
        self.abandoned: list[Xid] = []
        self._chance = random.Random(number)
        self._connection: Any = None
        self._channel: Any = None
        self.ended: dict[str, int] = {}

    def run(self, count: int) -> None:
        for _ in range(count):
            if self._connection is None:
                self._connection = connect_to(self._port)
                self._channel = None
            if self._channel is None:
                self._channel = self._connection.channel()
                self._channel.tx_select()
            how = self._branch() if self._chance.random() < BRANCHES else self._transaction()
            self.ended[how] = self.ended.get(how, 0) + 1
        if self._connection is not None:
            self._connection.close()
        self._connection = self._channel = None

    def _branch(self) -> str:
        """One on a channel of its own; how it ended."""
        chance = self._chance
        self._branches += 1
        xid = Xid(self._number, b"live objects", b"%d" % self._branches)
        worker = DtxChannel(self._connection.channel()).select()
        assert worker.start(xid) == OK
        channel = worker.channel
        method, _, _ = channel.basic_get(chance.choice(QUEUES))
        if method is not None:
            channel.basic_ack(method.delivery_tag)
        for _ in range(1 if method is not None else 2):
            channel.basic_publish("", chance.choice(QUEUES), b"x", pika.BasicProperties(delivery_mode=PERSISTENT))
        how = chance.choice(BRANCH_ENDS)
        if how.startswith("branch abandoned"):
            assert worker.set_timeout(xid, BRANCH_TIMEOUT_S) == OK
            channel.close()
            if how == "branch abandoned":
                self.abandoned.append(xid)
                return how
            worker = DtxChannel(self._connection.channel()).select()
            assert worker.rollback(xid) == OK
            worker.channel.close()
            return how
        assert worker.end(xid) == OK
        if how == "branch committed in one phase":
            assert worker.commit(xid, one_phase=True) == OK
        else:
            assert worker.prepare(xid) == OK
            worker = self._complete(worker, xid, how)
        worker.channel.close()
        return how

    def _complete(self, worker: DtxChannel, xid: Xid, how: str) -> DtxChannel:
        """End a prepared branch; the channel on which that was done."""
        if how == "branch rolled back by who found it prepared":
            cut(self._connection)
            self._connection, self._channel = connect_to(self._port), None
            worker = DtxChannel(self._connection.channel()).select()
        if how == "branch committed":
            assert worker.commit(xid) == OK
        elif how == "branch completed by hand, and forgotten":
            assert worker.complete(xid, commit=True) == OK
            assert worker.forget(xid) == OK
        else:
            assert worker.rollback(xid) == OK
        return worker

    def _transaction(self) -> str:
        """One on the client's channel; how it ended."""
        chance, channel = self._chance, self._channel
        draw = chance.random()
        headers = {NAME_HEADER: uuid4().hex} if chance.random() < 0.5 else None
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers=headers)
        method, _, _ = channel.basic_get(chance.choice(QUEUES))
        if method is not None:
            channel.basic_ack(method.delivery_tag)
        for _ in range(1 if method is not None else 2):
            channel.basic_publish("", chance.choice(QUEUES), b"x" * chance.randrange(200), properties)
        if draw < 0.85:
            how = "commit"
            channel.tx_commit()
        elif draw < 0.92:
            how = "rollback"
            channel.tx_rollback()
            channel.basic_recover(requeue=True)
        elif draw < 0.95:
            how = "channel closed"
            channel.close()
            self._channel = None
        elif draw < 0.97:
            how = "refused"
            channel.basic_publish("no such exchange", "", b"", properties)
            with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                channel.tx_commit()
            self._channel = None
        elif draw < 0.985:
            how = "connection lost"
            cut(self._connection)
            self._connection = None
        else:
            how = "connection lost while it commits"
            send_commit(self._connection, channel)
            cut(self._connection)
            self._connection = None
        return how


def run(group: Group, transactions: int) -> dict[str, int]:
    """So many transactions, then empty queues and no client."""
    port = group.primary().port
    clients = [Client(port, number) for number in range(CLIENTS)]
    in_threads([lambda c=client: c.run(transactions // CLIENTS + 1) for client in clients])  # type: ignore[misc]
    connection = connect_to(port)
    for queue in QUEUES:
        wait_until(f"{queue} is free", lambda: not any(q["acquired"] for q in group.primary().row()["queues"]))
        connection.channel().queue_purge(queue)
    for xid in [xid for client in clients for xid in client.abandoned]:
        wait_until(f"{xid} is forgotten", lambda x=xid: is_forgotten(connection, x))  # type: ignore[misc]
    connection.close()
    group.settled()
    assert all(count == 0 for count, _ in group.agree().values())
    wait_until("no client is left", lambda: not any(group.primary().row()["clients"].values()), 60.0)
    time.sleep(1)  # what a tick looks after
    ended: dict[str, int] = {}
    for client in clients:
        for how, count in client.ended.items():
            ended[how] = ended.get(how, 0) + count
    return ended


def is_forgotten(connection: Any, xid: Xid) -> bool:
    worker = DtxChannel(connection.channel()).select()
    try:
        worker.get_timeout(xid)
    except pika.exceptions.ChannelClosedByBroker as closed:
        return bool(closed.reply_code == 404)
    worker.channel.close()
    return False


def test_nothing_of_10_000_transactions_is_left(tmp_path: Path) -> None:
    with running_group(tmp_path, group_class=CountedGroup) as group:
        assert isinstance(group, CountedGroup)
        declare(Finder(group.ports), QUEUES)
        check_counting(group)
        run(group, WARM_UP)
        before = group.census_at_rest()
        started = time.monotonic()
        ended = run(group, TRANSACTIONS)
        took_s = time.monotonic() - started
        after = group.census_at_rest()
        print(f"{sum(ended.values())} transactions in {took_s:.1f} s: {ended}")
        assert len(after) == 3
        assert {*BRANCH_ENDS} <= ended.keys()
        for name in after:
            problems = [f"{name}: {problem}" for problem in left_over(before[name], after[name], ended)]
            print(name, {key: count for key, count in after[name]["objects"].items() if key in GONE})
            assert not problems, "\n".join(problems)


def check_counting(group: CountedGroup) -> None:
    """The kinds that are looked for exist, and are counted while there are some."""
    for name in GONE:
        module, _, kind = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), kind), type), name
    connection = connect_to(group.primary().port)
    channel = connection.channel()
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for queue in QUEUES:
        channel.basic_publish("", queue, b"x", properties)
    channel.tx_commit()
    consumer = channel.basic_consume(QUEUES[0], lambda *_: None)
    method, _, _ = channel.basic_get(QUEUES[1])
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", QUEUES[2], b"y", properties)
    branch, worker = Xid(0, b"counted", b"1"), DtxChannel(connection.channel()).select()
    assert worker.start(branch) == OK
    worker.channel.basic_publish("", QUEUES[3], b"z", properties)
    assert worker.end(branch) == OK
    assert worker.prepare(branch) == OK
    other = Xid(1, b"counted", b"1")
    assert worker.start(other) == OK
    wait_until("it has come to the backups", lambda: all(b.row()["transactions"]["open"] for b in group.running()))
    primary = group.primary().name
    for broker, found in group.census().items():
        there = {name.rpartition(".")[2] for name in GONE if found["objects"].get(name)}
        assert there >= {"DtxBranch", "Entry", "Message", "TxBuffer"}, broker
        if broker == primary:
            assert there >= {
                "Association",
                "BranchWork",
                "Channel",
                "ClientSession",
                "Connection",
                "Consumer",
                "Delivery",
                "DeliveryLedger",
                "Session",
            }
    assert worker.end(other) == OK
    assert worker.rollback(other) == OK
    assert worker.complete(branch, commit=True) == OK
    wait_until("all remember what was done by hand", lambda: remembers_completions(group))
    assert worker.forget(branch) == OK
    channel.tx_rollback()
    channel.basic_cancel(consumer)
    connection.close()


def remembers_completions(group: CountedGroup) -> bool:
    counts = group.census().values()
    return all(found["objects"].get("understudy.broker.transactions.dtx_branch.Completion") for found in counts)


def left_over(before: Census, after: Census, ended: dict[str, int]) -> list[str]:
    """Things that are more than they were, and should not be."""

    def grown(what: str) -> dict[str, int]:
        return {
            key: count - before[what].get(key, 0)
            for key, count in after[what].items()
            if count > before[what].get(key, 0)
        }

    problems = [f"{after['objects'][key]} of {key} live" for key in GONE if after["objects"].get(key)]
    problems += [f"{count} objects were garbage {where}" for where, count in grown("garbage").items() if count > SLACK]
    held = grown("held")
    # What became of transactions is kept on purpose, for an hour: one entry a commit, one more for each that had a name.
    committed, named = held.pop("Outcomes.committed"), held.pop("Outcomes.named")
    done, unsure = sum(ended[how] for how in COMMITS), ended["connection lost while it commits"]
    if not done <= committed <= done + unsure:
        problems.append(f"{committed} outcomes for {done} commits and {unsure} whose client does not know")
    if named > sum(ended.values()):
        problems.append(f"{named} outcomes of names for {sum(ended.values())} transactions")
    # Each is encoded too, as a checkpoint states it: an id and an offset; a name with its outcome, id and offset.
    if (ids := held.pop("Outcomes.ids_encoded")) != 16 * committed:
        problems.append(f"{ids} octets for the ids of {committed} outcomes")
    if (names := held.pop("Outcomes.names_encoded")) > (17 + 256) * named:
        problems.append(f"{names} octets for the names of {named} outcomes")
    for key in BOUNDED:
        held.pop(key, None)
    problems += [f"{key} holds {growth} more" for key, growth in held.items() if growth > SLACK]
    objects = grown("objects")
    objects["builtins.tuple"] = objects.get("builtins.tuple", 0) - named
    objects.pop("understudy.broker.log.kept_log.Batch", None)
    for key, growth in objects.items():
        slack = SLACK if key.startswith("understudy.") else SLACK_OF_PYTHON
        if growth > slack:
            problems.append(f"{growth} more of {key}")
    return problems
