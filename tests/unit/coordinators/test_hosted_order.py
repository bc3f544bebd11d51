"""Decisions of a coordinator are carried out: order, delays, refusals; no client waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.coordinators.hosted_kit import BOUND_MS, Hosted, Telling, outcome
from tests.unit.core.core_kit import end_turn, publish
from understudy.broker.amqp.methods import (
    BASIC_GET,
    CHANNEL_CLOSE,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.coordinators import CoordinatorHost, Order, Refused, Trigger, TxView, UnorderedCoordinator
from understudy.broker.core.commits.hosted_order import OFFER_MS
from understudy.broker.core.life.turn import WITHHELD_US, TurnEngine, TurnPort
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.transactions.outcomes import Outcome

PORT = ("ask", "flush_links", "flush_clients", "begin_group", "turn_over")
OUTSIDE_THE_LOG = {"x-ha-replicate": "configuration"}


class ByPriority(Telling):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=sorted(batch, key=lambda tx: tx.header("x-priority"), reverse=True))


class OneAtATime(Telling):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch[:1], later=batch[1:])


class Never(Telling):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(later=batch)


class NoSpam(Telling):
    def order(self, batch: Sequence[TxView]) -> Order:
        spam = [tx for tx in batch if tx.name == "spam"]
        return Order(
            now=[tx for tx in batch if tx not in spam], refused=[Refused(tx, "spam is not sent") for tx in spam]
        )


def test_a_group_is_committed_in_the_order_of_the_coordinator() -> None:
    core = Hosted(ByPriority)
    clients = core.clients(4)
    for client, (name, priority) in zip(clients, [("a", 1), ("b", 9), ("c", 5), ("d", 9)], strict=True):
        core.commit(client, name, headers={"x-priority": priority})
    before = core.node.gate.appended
    end_turn(core.node)
    assert core.node.gate.appended == before + 1, "one group is one batch"
    assert core.coordinator.names("prepare_ordered") == ["b", "d", "c", "a"], "before anything is durable"
    assert core.coordinator.names("commit_ordered") == []
    core.settle()
    assert core.bodies() == ["b", "d", "c", "a"]
    assert [outcome(client) for client in clients] == ["tx.commit-ok"] * 4
    for hook in ("commit_ordered", "unlog"):
        assert core.coordinator.names(hook) == ["b", "d", "c", "a"]
    assert core.coordinator.csns == sorted(core.coordinator.csns)


def test_what_is_withheld_comes_with_later_groups() -> None:
    core = Hosted(OneAtATime)
    clients = core.clients(3)
    core.commit_all(clients, "abc")
    core.node.durable_to(core.node.gate.appended)
    assert end_turn(core.node), "the driver is to end another turn with flush"
    assert [len(client.events()) for client in clients] == [2, 1, 1]
    assert core.order.triggers[Trigger.TURN] == 1, "what was withheld is not offered in each turn"
    end_turn(core.node, flush=True)
    assert core.order.triggers[Trigger.MAX_WAIT] == 1
    end_turn(core.node, flush=True)
    core.settle()
    assert core.bodies() == ["a", "b", "c"]
    assert [outcome(client) for client in clients[1:]] == ["tx.commit-ok"] * 2
    assert core.order.forced == 0


class Counting(Never):
    offers = 0

    def order(self, batch: Sequence[TxView]) -> Order:
        self.offers += 1
        return super().order(batch)


def test_what_is_withheld_is_offered_less_and_less_often() -> None:
    core = Hosted(Counting)
    clients = core.clients(2)
    core.commit_all(clients[:1], "a")
    for _ in range(1_000):
        assert end_turn(core.node, flush=True)
    assert core.coordinator.offers < 45, "6 with doubled pauses, then one in 32"
    assert sum(core.order.triggers.values()) == 0, "nothing was decided"
    before = core.coordinator.offers
    core.pass_ms(OFFER_MS)
    end_turn(core.node, flush=True)
    assert core.coordinator.offers == before + 1, "its time has come"
    core.commit_all(clients[1:], "b")
    end_turn(core.node, flush=True)
    assert core.coordinator.offers == before + 3, "something new comes: at once, and with the next flush"


def test_what_is_withheld_asks_for_no_turn_at_once() -> None:
    core = Hosted(Never)
    core.commit_all(core.clients(1), "a")
    waits: list[int] = []
    port = SimpleNamespace(now_us=lambda: 0, wake_in=waits.append, **dict.fromkeys(PORT, lambda *_: None))
    engine = TurnEngine(cast("TurnPort", port), lazy_us=0)
    engine.node = core.node
    engine.end()
    assert engine.left
    assert waits == [WITHHELD_US]


def test_nothing_is_withheld_for_longer_than_the_bound() -> None:
    core = Hosted(Never)
    clients = core.clients(2)
    core.commit_all(clients, "ab")
    core.pass_ms(BOUND_MS - 1)
    end_turn(core.node, flush=True)
    assert core.order.waiting() == 2
    core.pass_ms(1)
    end_turn(core.node)
    assert core.order.waiting() == 0
    assert core.order.forced == 2
    core.settle()
    assert core.bodies() == ["a", "b"]
    assert [outcome(client) for client in clients] == ["tx.commit-ok"] * 2


def test_a_broker_that_hands_over_withholds_nothing() -> None:
    core = Hosted(Never)
    clients = core.clients(1)
    core.commit_all(clients, "a")
    core.order.hurry()
    core.settle()
    assert outcome(clients[0]) == "tx.commit-ok"


def test_who_is_refused_is_told_why_and_has_changed_nothing() -> None:
    core = Hosted(NoSpam)
    clients = core.clients(3)
    core.commit_all(clients, ["a", "spam", "b"])
    core.settle()
    assert core.bodies() == ["a", "b"]
    assert core.coordinator.names("rolled_back") == ["spam"]
    assert "refused by coordinator mine: spam is not sent" in outcome(clients[1])
    assert core.broker.counters.totals["rolled_back"] == 1
    assert not core.node.state.transactions
    assert core.node.state.topology.registry.vhost("/").queues["q"].uncommitted == 0
    core.commit(clients[0], "ok")
    core.settle()
    assert outcome(clients[0]) == "tx.commit-ok", "others go on"


def test_a_refused_transaction_gives_its_deliveries_back() -> None:
    core = Hosted(NoSpam)
    (client,) = core.clients(1)
    client.publish("q", b"taken")
    core.settle()
    client.method(BASIC_GET, "q", False)
    ack = encode_method(1, 0x003C0050, 1, False)
    core.commit(client, "first")
    core.settle()
    client.events()
    client.connection.receive(ack + publish_named("spam") + encode_method(1, TX_COMMIT))
    core.settle()
    assert "spam is not sent" in outcome(client)
    assert core.bodies() == ["taken", "first"]


def publish_named(name: str) -> bytes:
    from tests.unit.core.core_kit import FRAME_MAX
    from understudy.broker.amqp.encode import publish_frames
    from understudy.broker.amqp.properties import encode_properties

    return publish_frames(1, "", "q", encode_properties({"headers": {"x-understudy-tx": name}}), b"", FRAME_MAX)


X = (1, b"g", b"")
"""Its branch id is empty."""


def branch(core: Hosted, *ends: bytes) -> list[int]:
    """A branch of one message; the statuses of what follows it."""
    client = core.client()
    core.queue(client, "q")
    client.send(
        encode_method(1, DTX_SELECT),
        encode_method(1, DTX_START, *X, False, False),
        publish("q", b"of the branch"),
        encode_method(1, DTX_END, *X, False, False),
    )
    client.events()
    statuses = []
    for end in ends:
        client.connection.receive(end)
        core.settle()
        statuses += [event[2][0] for event in client.events()]
    return statuses


class RefuseAll(Telling):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(refused=[Refused(tx, "nothing is taken") for tx in batch])


class RefuseFirst(Telling):
    refused = False

    def order(self, batch: Sequence[TxView]) -> Order:
        if self.refused:
            return Order(now=batch)
        self.refused = True
        return Order(refused=[Refused(tx, "the first is not taken") for tx in batch])


@pytest.mark.parametrize("queue", ["nowhere", "q"])
def test_no_transaction_commits_under_a_name_that_was_told_to_be_rolled_back(queue: str) -> None:
    """Also if the log has nothing of the refused one: it brought nothing into a queue of the log."""
    core = Hosted(RefuseFirst)
    first, second, third = core.clients(3)
    core.commit(first, "job", queue=queue)
    core.settle()
    assert "the first is not taken" in outcome(first)
    assert core.node.state.applying.outcomes.named("job") is Outcome.ROLLED_BACK
    assert core.node.broker.name_bars.offsets == {}  # the outcomes are bounded
    core.commit(second, "job")
    core.settle()
    assert "transaction name 'job' is taken: a transaction of that name is rolled back" in outcome(second)
    core.commit(third, "another")
    core.settle()
    assert (outcome(third), core.bodies()) == ("tx.commit-ok", ["another"])


def test_a_name_is_barred_before_its_record_is_stable() -> None:
    core = Hosted(RefuseFirst)
    first, second = core.clients(2)
    core.commit(first, "job", queue="nowhere")
    end_turn(core.node)
    core.commit(second, "job")
    assert [event[1] for event in first.events()][-1] != CHANNEL_CLOSE, "told before the record is stable"
    core.settle()
    assert "rolled back" in outcome(first)
    assert "transaction name 'job' is taken" in outcome(second)
    assert core.bodies() == []


def test_a_branch_in_one_phase_can_be_refused() -> None:
    core = Hosted(RefuseAll)
    assert branch(core, encode_method(1, DTX_COMMIT, *X, True)) == [1], "RBROLLBACK"
    assert core.bodies() == []


def test_a_prepared_branch_is_its_managers() -> None:
    core = Hosted(RefuseAll)
    assert branch(core, encode_method(1, DTX_PREPARE, *X), encode_method(1, DTX_COMMIT, *X, False)) == [0, 0]
    assert core.bodies() == ["of the branch"]
    assert "cannot be refused" in core.order.newest_error.error


class NoBranches(Telling):
    def prepare(self, tx: TxView) -> str:
        return "" if tx.refusable else "no branches here"


def test_a_participant_may_refuse_to_prepare_a_branch() -> None:
    core = Hosted(NoBranches)
    assert branch(core, encode_method(1, DTX_PREPARE, *X)) == [1], "RBROLLBACK"
    assert core.bodies() == []
    assert not core.node.state.transactions


@pytest.mark.parametrize(("clients", "trigger"), [(1, Trigger.MIN_WAIT), (2, Trigger.COUNT)])
def test_what_ends_the_wait_is_counted(clients: int, trigger: Trigger) -> None:
    core = Hosted(Telling, Limits(hold_commits=True, group_count=2))
    committers = core.clients(clients)
    core.commit_all(committers, "ab"[:clients])
    core.turn()
    counted = {each: number for each, number in core.order.triggers.items() if number}
    assert counted == {trigger: 1}
    core.settle()
    assert core.bodies() == list("ab"[:clients])


def test_who_deletes_an_empty_queue_asks_for_the_group() -> None:
    core = Hosted(Telling)
    committer, other = core.clients(2)
    core.commit(committer, "a")
    other.connection.receive(encode_method(1, QUEUE_DELETE, "q", False, True, False))
    assert core.order.triggers[Trigger.BLOCKED] == 1
    core.settle()
    assert "not empty" in outcome(other)
    assert core.bodies() == ["a"]


@pytest.mark.parametrize("since_an_earlier_group", [True, False])
@pytest.mark.parametrize("logged", [True, False])
def test_what_is_withheld_keeps_its_queue(since_an_earlier_group: bool, logged: bool) -> None:
    core = Hosted(Never)
    core.broker.declarations.default_level = ReplicationLevel.ALL
    committer, other = core.clients(2)
    committer.method(QUEUE_DECLARE, "to", False, True, False, False, False, {} if logged else OUTSIDE_THE_LOG)
    core.settle()
    assert core.node.state.topology.registry.vhost("/").queues["to"].logged is logged
    core.commit(committer, "a", queue="to")
    if since_an_earlier_group:
        end_turn(core.node)
    other.connection.receive(encode_method(1, QUEUE_DELETE, "q", False, True, False))
    core.settle()
    assert other.heard()[-1] == "queue.delete-ok", "nothing is on its way to that one"
    other.connection.receive(encode_method(1, QUEUE_DELETE, "to", False, True, False))
    core.pass_ms(BOUND_MS)
    core.settle()
    assert "not empty" in outcome(other)
    assert outcome(committer) == "tx.commit-ok"
    assert core.bodies("to") == ["a"]


class Curious(Telling):
    """Asks its host while it is made."""

    def __init__(self, host: CoordinatorHost, options: dict[str, str]) -> None:
        super().__init__(host, options)
        self.found = (host.name, host.now_ms, host.requests())


def test_a_host_answers_while_a_coordinator_is_made() -> None:
    assert Hosted(Curious).coordinator.found == ("mine", 0, ())


class Hearing(UnorderedCoordinator):
    def commit_ordered(self, tx: TxView, csn: int) -> None:
        heard.append(tx.name)


heard: list[str] = []


def test_one_that_orders_nothing_commits_each_as_it_comes() -> None:
    core = Hosted(Hearing)
    (client,) = core.clients(1)
    core.commit(client, "a")
    assert core.order.waiting() == 0
    core.settle()
    assert (outcome(client), heard) == ("tx.commit-ok", ["a"])


def test_a_transaction_of_nothing_is_asked_for_too_if_it_has_a_name() -> None:
    core = Hosted(RefuseAll)
    (client,) = core.clients(1)
    unroutable = publish_named("empty").replace(b"\x01q", b"\x01x")
    client.connection.receive(encode_method(1, TX_SELECT) + unroutable + encode_method(1, TX_COMMIT))
    core.settle()
    assert "nothing is taken" in outcome(client)
    assert not core.node.state.transactions
