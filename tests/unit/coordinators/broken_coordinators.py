"""Coordinators that are wrong, each in one way, with the check of the kit that must find it and the requirement that it names."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from understudy.broker.coordinators import (
    Coordinator,
    CoordinatorHost,
    GroupCommitCoordinator,
    NullCoordinator,
    Order,
    Refused,
    Trigger,
    TxView,
    UnorderedCoordinator,
)

FOUND_BY: dict[type[Coordinator], tuple[str, str]] = {}
"""The class to (name of the check, requirement)."""


def broken(check: str, requirement: str) -> Callable[[type[Coordinator]], type[Coordinator]]:
    """``check`` must fail on the class, and name ``requirement``."""

    def register(found: type[Coordinator]) -> type[Coordinator]:
        FOUND_BY[found] = (check, requirement)
        return found

    return register


def priority(tx: TxView) -> int:
    found = tx.header("x-priority")
    return found if isinstance(found, int) else 0


# -- calls ----------------------------------------------------------------------------------------------------------------


@broken("no_call_holds_the_broker", "C-08")
class Sleeps(GroupCommitCoordinator):
    def commit_ordered(self, tx: TxView, csn: int) -> None:
        time.sleep(0.01)


@broken("no_call_holds_the_broker", "C-08")
class NeverReturns(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        while True:
            pass


# -- what becomes of a group --------------------------------------------------------------------------------------


@broken("each_of_a_group_is_placed", "C-11")
class LosesTheLast(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch[:-1] if len(batch) > 1 else batch)


@broken("each_of_a_group_is_placed", "C-11")
class PlacesTwice(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch, later=batch[:1])


@broken("one_request_and_one_decision", "C-12")
class DecidesTwice(Coordinator):
    def log_and_order(self, tx: TxView) -> None:
        pass

    def group_due(self, trigger: Trigger) -> None:
        batch = list(self.host.requests())
        self.host.run_prepare_ordered(batch)
        self.host.run_prepare_ordered(batch[:1])


@broken("one_request_and_one_decision", "C-12")
class CommitsWhatItHasRefused(Coordinator):
    def log_and_order(self, tx: TxView) -> None:
        if priority(tx) == 0 and tx.refusable:
            self.host.refuse(tx, "its priority is 0")
        self.host.run_prepare_ordered([tx])


@broken("one_request_and_one_decision", "C-12")
class RaisesInOrder(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=sorted(batch, key=lambda tx: tx.header("x-tenant")[9]))


@broken("one_request_and_one_decision", "C-12")
class RaisesAfterItHasOrdered(Coordinator):
    def log_and_order(self, tx: TxView) -> None:
        self.host.run_prepare_ordered([tx])
        raise OSError("the log of this coordinator is full")


@broken("the_log_has_the_order_that_was_said", "C-10")
class OrdersAgainstItsWord(GroupCommitCoordinator):
    def group_due(self, trigger: Trigger) -> None:
        said = self.order(self.host.requests())
        self.host.run_prepare_ordered(said.now[::-1])


@broken("the_refused_are_told", "C-19")
class RefusesWithoutAReason(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        low = [tx for tx in batch if tx.refusable and priority(tx) == 0]
        return Order(now=[tx for tx in batch if tx not in low], refused=[Refused(tx, "") for tx in low])


# -- waiting ------------------------------------------------------------------------------------------------------


@broken("nothing_is_lost", "C-11")
class WithholdsForEver(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=[tx for tx in batch if priority(tx)], later=[tx for tx in batch if not priority(tx)])


@broken("nothing_is_lost", "C-11")
class ForgetsWhatItWasAsked(Coordinator):
    """Has a list of its own instead of ``host.requests()``, and overwrites it."""

    asked: TxView | None = None

    def log_and_order(self, tx: TxView) -> None:
        self.asked = tx

    def group_due(self, trigger: Trigger) -> None:
        if self.asked is not None:
            asked, self.asked = self.asked, None
            self.host.run_prepare_ordered([asked])


@broken("nobody_waits_for_ever_while_others_come", "C-11")
class NewestFirst(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch[-1:], later=batch[:-1])


@broken("a_group_shares_a_sync", "C-08")
class OneAtATime(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch[:1], later=batch[1:])


@broken("a_commit_alone_is_not_held_back", "C-08")
class WaitsForCompany(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        if len(batch) == 1 and self.host.now_ms - batch[0].requested_ms < 300:
            return Order(later=batch)
        return Order(now=batch)


@broken("each_trigger_makes_a_group_go", "C-31")
class KnowsTwoTriggers(GroupCommitCoordinator):
    def group_due(self, trigger: Trigger) -> None:
        if trigger is Trigger.BLOCKED:
            raise KeyError(trigger)
        super().group_due(trigger)


@broken("a_chain_of_dependencies_is_kept", "C-30")
class WaitsForWhatComesNext(GroupCommitCoordinator):
    def log_and_order(self, tx: TxView) -> None:
        epoch, _, number = tx.tx_id.partition(".")
        self.host.wait_for_prior(tx, f"{epoch}.{int(number) + 1}")


@broken("a_prior_that_asks_last_is_waited_for", "C-30")
class OffersOnce(UnorderedCoordinator):
    def group_due(self, trigger: Trigger) -> None:
        """A transaction that waits for another one is never offered again."""


@broken("a_branch_in_doubt_holds_nobody_up", "C-32")
class RefusesABranch(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        alien = [tx for tx in batch if not tx.refusable]
        return Order(
            now=[tx for tx in batch if tx.refusable], refused=[Refused(tx, "no branches here") for tx in alien]
        )


# -- hooks, memory, lives -----------------------------------------------------------------------------------------


@broken("the_hooks_of_the_coordinator_raise_nothing", "C-21")
class RaisesInAHook(GroupCommitCoordinator):
    def commit_ordered(self, tx: TxView, csn: int) -> None:
        if csn % 5 == 0:
            raise OSError("a hook stumbles")


@broken("the_hooks_of_the_coordinator_raise_nothing", "C-20")
class OrdersInAHook(GroupCommitCoordinator):
    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self.host.run_prepare_ordered(self.host.requests())


@broken("nothing_of_an_unlogged_transaction_is_kept", "C-24")
class ForgetsUnlog(GroupCommitCoordinator):
    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)
        self.numbers: dict[TxView, int] = {}

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self.numbers[tx] = csn


@broken("the_hooks_of_the_coordinator_raise_nothing", "C-21")
class RaisesInARollback(GroupCommitCoordinator):
    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)
        self.asked: set[str] = set()

    def log_and_order(self, tx: TxView) -> None:
        self.asked.add(tx.tx_id)

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self.asked.remove(tx.tx_id)

    def rolled_back(self, tx: TxView, reason: str) -> None:
        """A participant may have refused ``tx`` before log_and_order was called."""
        self.asked.remove(tx.tx_id)


@broken("nothing_of_an_unlogged_transaction_is_kept", "C-24")
class ForgetsRollbacks(GroupCommitCoordinator):
    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)
        self.known: set[TxView] = set()

    def prepare(self, tx: TxView) -> str:
        self.known.add(tx)
        return ""

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self.known.remove(tx)


@broken("a_crash_at_any_step_leaves_all_or_nothing", "C-26")
class RemembersOverARestart(GroupCommitCoordinator):
    waiting: ClassVar[list[TxView]] = []

    def log_and_order(self, tx: TxView) -> None:
        self.waiting.append(tx)

    def group_due(self, trigger: Trigger) -> None:
        batch, self.waiting[:] = list(self.waiting), []
        self.host.run_prepare_ordered(batch)


@broken("it_is_made_for_this_port", "C-36")
class OfAnotherVersion(GroupCommitCoordinator):
    api_version = 0


@broken("it_is_made_for_this_port", "C-36")
class StatesNoVersion(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch)


@broken("it_is_made_for_this_port", "C-36")
class OnlyOnce(GroupCommitCoordinator):
    api_version = 1
    made: ClassVar[Counter[str]] = Counter()

    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        super().__init__(host, options)
        self.made["objects"] += 1
        self.first = self.made["objects"] == 1

    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch) if self.first else Order(later=batch)


@broken("a_null_coordinator_is_never_asked", "C-02")
class NullThatTakesPart(NullCoordinator):
    """A null coordinator that listens is a participant, so transactions are coordinated."""

    def prepare(self, tx: TxView) -> str:
        return ""
