"""64 committers over 4 queues, whoever orders: each queue has the order of the log, and few batches carry all (C-07, C-08)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.unit.coordinators.hosted_kit import Hosted, Telling
from tests.unit.core.core_kit import end_turn
from understudy.broker.coordinators import (
    Coordinator,
    GroupCommitCoordinator,
    NullCoordinator,
    Order,
    TxView,
    UnorderedCoordinator,
)
from understudy.broker.core.commits.hosted_order import HostedOrder

COMMITTERS, QUEUES, ROUNDS = 64, 4, 5


class Shuffling(Telling):
    """Puts off a quarter, and orders the others by lot."""

    lot = random.Random(18)

    def order(self, batch: Sequence[TxView]) -> Order:
        later = [tx for tx in batch if self.lot.random() < 0.25]
        now = [tx for tx in batch if tx not in later]
        self.lot.shuffle(now)
        return Order(now=now, later=later)


@pytest.mark.parametrize(
    "coordinator", [GroupCommitCoordinator, NullCoordinator, UnorderedCoordinator, Telling, Shuffling]
)
def test_each_queue_has_the_order_of_the_log(coordinator: type[Coordinator]) -> None:
    core = Hosted(coordinator)
    clients = core.clients(COMMITTERS, "q0")
    for number in range(1, QUEUES):
        core.queue(clients[0], f"q{number}")
    names: dict[int, str] = {}
    before = core.node.gate.appended
    for round_number in range(ROUNDS):
        for number, client in enumerate(clients):
            core.commit(client, f"{round_number}-{number}", queue=f"q{number % QUEUES}")
        names |= {tx.tx_id: tx.name for tx in core.node.state.transactions.values()}
        while core.order.waiting():
            end_turn(core.node, flush=True)
        core.sync()
    in_the_log = [names[tx_id] for tx_id in core.frames.prepared()]
    assert len(in_the_log) == ROUNDS * COMMITTERS
    for number in range(QUEUES):
        expected = [name for name in in_the_log if int(name.partition("-")[2]) % QUEUES == number]
        assert core.bodies(f"q{number}") == expected
    if isinstance(core.order, HostedOrder):
        assert core.coordinator.names("commit_ordered") == core.coordinator.names("prepare_ordered") == in_the_log
    assert core.node.gate.appended - before < ROUNDS * COMMITTERS / 8, "a batch is an fsync at most"


@pytest.mark.parametrize("coordinator", [GroupCommitCoordinator, Telling])
def test_one_committer_alone_is_not_delayed(coordinator: type[Coordinator]) -> None:
    """Its PREPARE is in the batch of the turn that has read its commit, and no other turn is asked for."""
    core = Hosted(coordinator)
    (client,) = core.clients(1)
    core.commit(client, "a")
    assert not end_turn(core.node)
    core.node.durable_to(core.node.gate.appended)
    core.node.answer()
    assert client.heard()[-1] == "tx.commit-ok"


def test_alone_there_is_nothing_to_coordinate() -> None:
    transactions = Hosted(GroupCommitCoordinator).broker.transactions
    assert (transactions.participants(), transactions.in_force) == (["queues"], "null")
    transactions = Hosted(Telling).broker.transactions
    assert (transactions.participants(), transactions.in_force) == (["queues", "mine"], "mine")


def test_backups_that_vote_are_a_participant() -> None:
    core = Hosted(GroupCommitCoordinator)
    transactions = core.broker.transactions
    transactions.observers = type("Voting", (), {"participant": "ha"})()
    assert (transactions.participants(), transactions.in_force) == (["queues", "ha"], "mine")
