"""A ROLLBACK is cut away behind a PREPARE that was stable without it: who knows that must not decide by it when it is promoted.

Found by the model (tests/model, mutation "stable-is-carried-over"; docs/model.md). Of a branch the like: who has applied its
DTX_PREPARE has decided nothing, and a refusal counts (mutation "no-to-what-is-applied-is-late").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.simulator import calls
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.group import PERSISTENT, Group
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.sim_node import SimNode
from understudy.broker.transactions.xid import Xid
from understudy.ha.leading.fitness import Fitness
from understudy.ha.leading.remote_backup import RemoteBackup

BRANCH = Xid(7, b"global", b"b1")


def transact(client: SimClient) -> Program:
    yield from client.connect()
    yield from calls.declare(client, "q")
    yield from calls.tx_select(client)
    client.publish("", "q", PERSISTENT, b"refused by one")
    with suppress(Lost, Closed):
        yield from calls.commit(client)


def prepare(client: SimClient) -> Program:
    yield from client.connect()
    yield from calls.declare(client, "q")
    yield from calls.dtx_select(client)
    yield from calls.dtx_start(client, BRANCH)
    client.publish("", "q", PERSISTENT, b"refused by one")
    yield from calls.dtx_end(client, BRANCH)
    with suppress(Lost, Closed):
        yield from calls.dtx_prepare(client, BRANCH)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_who_was_told_that_prepare_is_stable_does_not_decide_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(seed, backup_timeout_ms=600_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        second, refusing = group.backups
        refused_at = lose_rollback(group, second, refusing, transact, monkeypatch)
        group.run_ms(100)
        assert second.node.state.log.applied < refused_at[0]
        assert second.node.state.transactions
        group.cluster.network.cuts.clear()
        group.cluster.network.pump()
        first.start()
        group.check()


def test_a_branch_that_a_member_refuses_to_a_new_primary_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though that one has applied DTX_PREPARE. The set is at its minimum, so nobody can be expelled; nothing would go on."""
    group = Group(1, backup_timeout_ms=600_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        first = group.primary
        second, refusing = group.backups
        refused_at = lose_rollback(group, second, refusing, prepare, monkeypatch)
        assert second.node.state.log.applied >= refused_at[0]
        group.cluster.network.cuts.clear()
        group.cluster.network.pump()
        group.until("second serves", lambda: second.node.broker.role.answering)
        group.until("it is rolled back", lambda: not second.node.state.transactions)
        first.start()
        group.check()


def lose_rollback(
    group: Group,
    second: SimNode,
    refusing: SimNode,
    work: Callable[[SimClient], Program],
    monkeypatch: pytest.MonkeyPatch,
) -> list[int]:
    """The transaction of ``work`` is refused; its ROLLBACK is lost, and the broker that was told it is closed stably leads.

    Returns:
        Where it is closed, as the one element of a list.
    """
    first = group.primary
    refused_at = refuse(group, refusing)
    client = group.cluster.client("client")
    client.run(work(client))
    # Both backups receive ROLLBACK, and the second one is told that PREPARE is stable.
    group.until("told", lambda: bool(refused_at) and second.node.state.log.stable == refused_at[0])
    # As before decision 0028: now the broker that holds more leads. One of an older program does not give way.
    monkeypatch.setattr(Fitness, "_holds_more", lambda *_: False)
    for node in (first, second):
        group.cluster.network.cut({(node.name, refusing.name), (refusing.name, node.name)})
    first.crash(hard=True)
    del first._begin_sync
    first.start()  # it leads again, without ROLLBACK
    group.until("cut", lambda: second.node.state.log.epochs.newest == 2)
    first.crash(hard=True)
    group.until("replaced", lambda: second.ha.primary is not None)
    return refused_at


def refuse(group: Group, refusing: SimNode) -> list[int]:
    """Let one backup refuse the transaction. The primary's disk takes PREPARE, and is slow from then on.

    Returns:
        A list that the offset of PREPARE comes into when the primary hears the no.
    """
    first = group.primary
    primary = first.ha.primary
    assert primary is not None
    heard, sync = primary._refused, first._begin_sync
    refused_at: list[int] = []

    def slow_sync() -> None:
        if first.node.state.log.durable < refused_at[0]:
            sync()

    def hear(backup: RemoteBackup, tx_id: int, prepare_offset: int, reason: str) -> None:
        refused_at.append(prepare_offset)
        first._begin_sync = slow_sync  # type: ignore[method-assign]
        heard(backup, tx_id, prepare_offset, reason)

    primary._refused = hear  # type: ignore[method-assign]
    replicator = refusing.extension.replicator
    refusing.node.state.taking.on_prepare[:] = [lambda tx: replicator.say_no(tx, "refused by the test")]
    return refused_at
