"""A transaction that waits for another one is never ordered before it, and none waits for ever (C-30)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.coordinators.hosted_kit import BOUND_MS, Hosted, Telling, outcome
from tests.unit.core.core_kit import end_turn, publish
from understudy.broker.amqp.methods import TX_ROLLBACK, TX_SELECT, encode_method
from understudy.broker.coordinators import CoordinatorHost, CoordinatorMistakeError, Order, Refused, TxView


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
