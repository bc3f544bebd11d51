"""Hooks of participants: which are called, in which order, and what becomes of their exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import attrs
import pytest

from tests.unit.coordinators.hosted_kit import Hosted, Telling, outcome
from tests.unit.core.core_kit import Core, end_turn
from understudy.broker.coordinators import (
    NULL,
    CoordinatorChoice,
    CoordinatorHost,
    CoordinatorMistakeError,
    GroupCommitCoordinator,
    NullCoordinator,
    Order,
    Participant,
    Refused,
    Trigger,
    TxView,
)
from understudy.broker.core.commits.hosted_order import CoordinatorRefusedError, HostedOrder
from understudy.broker.transactions.commit_order import HookError


class Second(Participant):
    name = "second"

    def __init__(self, told: list[tuple[str, str]]) -> None:
        self.told = told

    def prepare(self, tx: TxView) -> str:
        self.told.append(("second.prepare", tx.name))
        return "it is the 13th" if tx.name == "unlucky" else ""

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self.told.append(("second.prepare_ordered", tx.name))

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self.told.append(("second.commit_ordered", tx.name))

    def rolled_back(self, tx: TxView, reason: str) -> None:
        self.told.append(("second.rolled_back", tx.name))


class Third(Second):
    name = "third"

    def prepare(self, tx: TxView) -> str:
        self.told.append(("third.prepare", tx.name))
        if tx.name == "odd":
            raise ArithmeticError("no even part")
        return ""


class OfThree(Telling):
    def participants(self) -> Sequence[Participant]:
        return [Second(self.told), Third(self.told)]


def test_all_hear_in_the_order_of_registration() -> None:
    core = Hosted(OfThree)
    clients = core.clients(2)
    core.commit_all(clients, "ab")
    core.settle()
    hooks = [("second.prepare", "third.prepare"), *[(h, f"second.{h}") for h in ("prepare_ordered", "commit_ordered")]]
    assert core.coordinator.told == [
        ("second.prepare", "a"),
        ("third.prepare", "a"),
        ("second.prepare", "b"),
        ("third.prepare", "b"),
        *[(f"{who}{hook}", tx) for hook in ("prepare_ordered",) for tx in "ab" for who in ("", "second.", "second.")],
        *[(f"{who}commit_ordered", tx) for tx in "ab" for who in ("", "second.", "second.")],
        ("unlog", "a"),
        ("unlog", "b"),
    ], hooks
    assert core.broker.transactions.participants() == ["queues", "mine", "second", "third"]
    assert core.broker.transactions.in_force == "mine"


@pytest.mark.parametrize(
    ("name", "said", "undone"),
    [
        ("unlucky", "refused by participant second: it is the 13th", ["rolled_back"]),
        ("odd", "refused by participant third: ArithmeticError: no even part", ["rolled_back", "second.rolled_back"]),
    ],
)
def test_a_no_rolls_back_before_the_coordinator_is_asked(name: str, said: str, undone: list[str]) -> None:
    core = Hosted(OfThree)
    clients = core.clients(2)
    core.commit_all(clients, [name, "b"])
    core.settle()
    assert said in outcome(clients[0])
    assert core.bodies() == ["b"]
    assert [hook for hook, tx in core.coordinator.told if tx == name and "rolled_back" in hook] == undone


class Raising(Telling):
    """Raises where its option says."""

    def _raise_in(self, hook: str) -> None:
        if self.options["hook"] == hook:
            raise OSError(f"no room in {hook}")

    def log_and_order(self, tx: TxView) -> None:
        self._raise_in("log_and_order")

    def order(self, batch: Sequence[TxView]) -> Order:
        self._raise_in("order")
        return super().order(batch)

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self._raise_in("prepare_ordered")

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self._raise_in("commit_ordered")

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        super().unlog(tx, errors)
        self._raise_in("unlog")


@pytest.mark.parametrize("hook", ["log_and_order", "order"])
def test_what_is_raised_before_the_decision_rolls_back(hook: str) -> None:
    core = Hosted(Raising, hook=hook)
    clients = core.clients(2)
    core.commit_all(clients, "ab")
    core.settle()
    for client in clients:
        assert f"coordinator mine failed: OSError: no room in {hook}" in outcome(client)
    assert core.bodies() == []
    assert not core.frames.prepared(), "nothing was ordered"


@pytest.mark.parametrize("hook", ["prepare_ordered", "commit_ordered", "unlog"])
def test_what_is_raised_after_it_changes_nothing_and_is_told_late(hook: str) -> None:
    core = Hosted(Raising, hook=hook)
    heard: list[HookError] = []
    core.order.on_error = heard.append
    clients = core.clients(2)
    core.commit_all(clients, "ab")
    core.settle()
    assert [outcome(client) for client in clients] == ["tx.commit-ok"] * 2
    assert core.bodies() == ["a", "b"]
    assert core.order.errors == 2
    assert [each.hook for each in heard] == [f"mine.{hook}"] * 2
    text = f"mine.{hook}: OSError: no room in {hook}"
    assert core.coordinator.errors == ([(), ()] if hook == "unlog" else [(text,), (text,)])


class Leaving(Raising):
    """Raises what no `Exception` is."""

    raised: type[BaseException] = asyncio.CancelledError

    def _raise_in(self, hook: str) -> None:
        if self.options["hook"] == hook:
            raise self.raised("a task of the plugin was cancelled")


class Interrupted(Leaving):
    raised = KeyboardInterrupt


@pytest.mark.parametrize("hook", ["prepare_ordered", "commit_ordered"])
def test_a_cancellation_in_a_hook_cuts_no_group_short(hook: str) -> None:
    core = Hosted(Leaving, hook=hook)
    clients = core.clients(3)
    core.commit_all(clients, "abc")
    core.settle()
    assert [outcome(client) for client in clients] == ["tx.commit-ok"] * 3
    assert core.bodies() == ["a", "b", "c"]
    text = f"mine.{hook}: CancelledError: a task of the plugin was cancelled"
    assert core.coordinator.errors == [(text,)] * 3


def test_an_interrupt_ends_the_process_and_loses_no_request() -> None:
    core = Hosted(Interrupted, hook="prepare_ordered")
    clients = core.clients(3)
    for client, name in zip(clients, "abc", strict=True):
        core.commit(client, name)
    with pytest.raises(KeyboardInterrupt):
        end_turn(core.node)
    assert core.order.errors == 0
    assert [request.view.name for request in core.order.requests.values()] == ["b", "c"]


class Misled(Telling):
    """Answers wrongly, as its option says."""

    def order(self, batch: Sequence[TxView]) -> Order:
        first = batch[0]
        return {
            "forgets": Order(now=batch[1:]),
            "twice": Order(now=[first, *batch]),
            "both": Order(now=batch, later=[first]),
            "swaps": Order(now=[first], later=[first]),
            "refuses too": Order(now=batch, refused=[Refused(first, "")]),
            "stranger": Order(now=[*batch[1:], attrs.evolve(first)]),
        }[self.options["how"]]


@pytest.mark.parametrize("how", ["forgets", "twice", "both", "swaps", "refuses too", "stranger"])
def test_an_order_that_is_no_partition_commits_nothing(how: str) -> None:
    core = Hosted(Misled, how=how)
    clients = core.clients(2)
    core.commit_all(clients, "ab")
    core.settle()
    for client in clients:
        assert "coordinator mine failed: CoordinatorMistakeError" in outcome(client)
    assert core.bodies() == []
    assert not core.frames.prepared()


class Wordless(Telling):
    """Refuses all but the last, one of them with a reason that is no text; its own hook stumbles over each rollback."""

    def order(self, batch: Sequence[TxView]) -> Order:
        reasons = ["a text", {"no": "text"}]
        return Order(now=batch[2:], refused=[Refused(tx, reasons.pop(0)) for tx in batch[:2]])  # type: ignore[arg-type]

    def rolled_back(self, tx: TxView, reason: str) -> None:
        super().rolled_back(tx, reason)
        raise OSError(f"no room for {tx.name}")


def test_a_reason_that_is_no_text_changes_nothing_and_all_are_told_the_same() -> None:
    core = Hosted(Wordless)
    clients = core.clients(3)
    core.commit_all(clients, "abc")
    core.settle()
    said = (
        "coordinator mine failed: CoordinatorMistakeError: coordinator mine: the reason of a refusal is {'no': 'text'}"
    )
    for client in clients:
        assert said in outcome(client)
    assert core.coordinator.names("rolled_back") == ["a", "b", "c"]
    assert core.bodies() == []


class Meddling(Telling):
    """Wants to order in a hook of order."""

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self.host.run_prepare_ordered(self.host.requests())


def test_a_hook_of_order_orders_nothing() -> None:
    core = Hosted(Meddling)
    clients = core.clients(1)
    core.commit_all(clients, "a")
    core.settle()
    assert outcome(clients[0]) == "tx.commit-ok"
    assert "nothing can be ordered within mine.commit_ordered" in core.order.newest_error.error


class Swallowing(GroupCommitCoordinator):
    def group_due(self, trigger: Trigger) -> None:
        try:
            super().group_due(trigger)
        except ZeroDivisionError:
            return


def test_what_the_core_raises_is_not_the_coordinators_to_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Hosted(Swallowing)
    (client,) = core.clients(1)
    core.commit(client, "a")
    monkeypatch.setattr(core.broker.transactions.recorder, "prepare", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        end_turn(core.node)
    assert core.order.errors == 0


class Unmakeable(GroupCommitCoordinator):
    def __init__(self, host: object, options: object) -> None:
        raise KeyError("tenants")


class Makeable(GroupCommitCoordinator):
    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)


class Cancelled(Unmakeable):
    def __init__(self, host: object, options: object) -> None:
        raise asyncio.CancelledError("no loop")

    def prepare_ordered(self, tx: TxView, csn: int) -> None: ...


class WithNobody(GroupCommitCoordinator):
    def participants(self) -> Sequence[Participant]:
        return [Participant()]


@pytest.mark.parametrize(
    ("coordinator", "said"),
    [
        (Unmakeable, "'mine' cannot be made: KeyError: 'tenants'"),
        (Cancelled, "'mine' cannot be made: CancelledError: no loop"),
        (WithNobody, "a name of its own"),
    ],
)
def test_one_that_cannot_be_made_is_named(coordinator: type[GroupCommitCoordinator], said: str) -> None:
    with pytest.raises(CoordinatorRefusedError, match=said):
        Hosted(coordinator)


class UnmakeableNull(NullCoordinator):
    def __init__(self, host: object, options: object) -> None:
        raise KeyError("tenants")


class QuietNull(NullCoordinator):
    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)


def test_a_coordinator_that_overrides_its_init_alone_is_made() -> None:
    """Its options may be wrong; such a class was never made, and so refused nothing."""
    assert isinstance(Hosted(Makeable).order, HostedOrder)
    with pytest.raises(CoordinatorRefusedError, match="'mine' cannot be made: KeyError: 'tenants'"):
        Core(coordinator=CoordinatorChoice("mine", UnmakeableNull))


def test_a_null_coordinator_with_an_init_is_never_asked() -> None:
    core = Core(coordinator=CoordinatorChoice("mine", QuietNull))
    assert not isinstance(core.broker.transactions.coordinator, HostedOrder)
    assert core.broker.transactions.in_force == NULL


def test_the_mistake_is_a_type_of_its_own() -> None:
    core = Hosted(Telling)
    view = TxView(tx_id="1.1", name="", state="prepared", enqueued={}, dequeued={}, octets=0)
    with pytest.raises(CoordinatorMistakeError, match=r"transaction 1\.1 is no request of now"):
        core.coordinator.host.refuse(view, "")
