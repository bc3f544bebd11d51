"""A transaction that waits for another one is never ordered before it, and none waits for ever (C-30)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.coordinators.hosted_kit import BOUND_MS, Hosted, Telling, outcome
from tests.unit.coordinators.test_hosted_order import X, branch
from tests.unit.core.core_kit import end_turn, publish
from understudy.broker.amqp.methods import (
    DTX_COMMIT,
    DTX_PREPARE,
    DTX_SELECT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.coordinators import CoordinatorHost, CoordinatorMistakeError, Order, Refused, TxView
from understudy.broker.transactions.outcome_query import tx_id_text


class AfterHeader(Telling):
    """``x-after`` names the transaction that has to come first; the newest is ordered first, else."""

    def __init__(self, host: CoordinatorHost, options: dict[str, str]) -> None:
        super().__init__(host, options)
        self.ids: dict[str, str] = {}

    def log_and_order(self, tx: TxView) -> None:
        self.ids[tx.name] = tx.tx_id
        after = tx.header("x-after")
        if after is not None:
            self.host.wait_for_prior(tx, self.ids.get(str(after), str(after)))

    def order(self, batch: Sequence[TxView]) -> Order:
        bad = [tx for tx in batch if tx.name == "bad"]
        return Order(now=[tx for tx in batch if tx not in bad][::-1], refused=[Refused(tx, "it is bad") for tx in bad])


def test_a_chain_of_a_hundred_is_ordered_in_one_group() -> None:
    core = Hosted(AfterHeader)
    names = [f"t{number}" for number in range(100)]
    clients = core.clients(100)
    for number, client in enumerate(clients):
        core.commit(client, names[number], headers={"x-after": names[number - 1]} if number else None)
    before = core.node.gate.appended
    end_turn(core.node)
    assert core.node.gate.appended == before + 1
    core.settle()
    assert core.bodies() == names, "the coordinator has ordered them the other way round"


@pytest.mark.parametrize("end", ["commits", "rolls back", "does neither"])
def test_who_waits_for_one_that_is_open(end: str) -> None:
    core = Hosted(AfterHeader)
    first, second = core.clients(2)
    first.send(encode_method(1, TX_SELECT), publish("q", b"first"))
    (tx_id,) = core.node.state.transactions
    core.commit(second, "second", headers={"x-after": f"{tx_id >> 40}.{tx_id & ((1 << 40) - 1)}"})
    core.settle()
    assert core.bodies() == []
    assert core.order.waiting() == 1
    if end == "commits":
        core.commit(first, "more")
        core.settle()
        assert core.bodies() == ["first", "more", "second"]
        assert outcome(second) == "tx.commit-ok"
        return
    if end == "rolls back":
        first.method(TX_ROLLBACK)
    else:
        core.pass_ms(BOUND_MS)
    core.settle()
    said = "was rolled back" if end == "rolls back" else "was not committed in time"
    assert said in outcome(second)
    assert core.bodies() == []


def test_who_waits_for_one_that_is_refused_falls_with_it() -> None:
    core = Hosted(AfterHeader)
    clients = core.clients(3)
    core.commit(clients[0], "bad")
    core.commit(clients[1], "b", headers={"x-after": "bad"})
    core.commit(clients[2], "c", headers={"x-after": "b"})
    core.settle()
    assert "it is bad" in outcome(clients[0])
    assert "for which it waits, was rolled back" in outcome(clients[1])
    assert "for which it waits, was rolled back" in outcome(clients[2])
    assert core.bodies() == []


def test_who_waits_for_one_that_is_committed_waits_no_more() -> None:
    core = Hosted(AfterHeader)
    clients = core.clients(2)
    core.commit_all(clients[:1], ["a"])
    core.settle()
    core.commit(clients[1], "b", headers={"x-after": "a"})
    core.settle()
    assert core.bodies() == ["a", "b"]


def test_a_circle_and_a_stranger_are_mistakes() -> None:
    core = Hosted(AfterHeader)
    first, second, third = core.clients(3)
    core.commit(first, "a")
    core.commit(second, "b", headers={"x-after": "a"})
    host, ids = core.coordinator.host, core.coordinator.ids
    a, b = host.requests()
    for tx, prior, said in [
        (a, ids["b"], "which waits for it"),
        (b, ids["b"], "which waits for it"),
        (a, "1.999999", "no transaction's id"),
        (a, "never", "no transaction's id"),
    ]:
        with pytest.raises(CoordinatorMistakeError, match=said):
            host.wait_for_prior(tx, prior)
    core.commit(third, "c", headers={"x-after": "nobody"})
    core.settle()
    assert core.bodies() == ["a", "b"]
    assert "no transaction's id" in outcome(third)


def test_a_second_prior_is_a_mistake_and_the_first_one_holds() -> None:
    core = Hosted(AfterHeader)
    clients = core.clients(3)
    for client, name in zip(clients, "abc", strict=True):
        core.commit(client, name)
    host, ids = core.coordinator.host, core.coordinator.ids
    a = host.requests()[0]
    host.wait_for_prior(a, ids["b"])
    host.wait_for_prior(a, ids["b"])
    said = f"{a.tx_id} is to wait for {ids['c']}, but waits for {ids['b']} already"
    with pytest.raises(CoordinatorMistakeError, match=said):
        host.wait_for_prior(a, ids["c"])
    assert core.order.priors.of(core.order.requests[a.tx_id]) == ids["b"]


class BranchAfter(AfterHeader):
    """A prepared branch is to wait for the transaction ``prior``, too."""

    def log_and_order(self, tx: TxView) -> None:
        if not tx.refusable:
            self.ids["branch"] = tx.tx_id
            self.host.wait_for_prior(tx, self.ids["prior"])
        super().log_and_order(tx)


@pytest.mark.parametrize("prior", ["is refused", "never asks"])
def test_a_prepared_branch_commits_without_its_prior_and_with_what_waits_for_it(prior: str) -> None:
    core = Hosted(BranchAfter)
    first, last = core.clients(2)
    assert branch(core, encode_method(1, DTX_PREPARE, *X)) == [0]
    manager = core.client()
    manager.send(encode_method(1, DTX_SELECT))
    if prior == "is refused":
        core.commit(first, "bad")
    else:
        first.send(encode_method(1, TX_SELECT), publish("q", b"first"))
    (tx_id,) = (tx.tx_id for tx in core.node.state.transactions.values() if not tx.in_doubt)
    core.coordinator.ids["prior"] = tx_id_text(tx_id)
    manager.connection.receive(encode_method(1, DTX_COMMIT, *X, False))
    core.commit(last, "last", headers={"x-after": "branch"})
    core.settle()
    core.pass_ms(BOUND_MS)
    core.settle()
    assert manager.events()[-1][2][0] == 0
    assert outcome(last) == "tx.commit-ok"
    assert core.bodies() == ["of the branch", "last"]
    assert core.order.forced == (0 if prior == "is refused" else 2)
