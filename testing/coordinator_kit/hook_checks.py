"""Checks of hooks: when they run, what they may do, and that what they raise changes no decision."""

from __future__ import annotations

import gc
from typing import Final

from understudy.testing.coordinator_kit.check import check, require
from understudy.testing.coordinator_kit.kit_client import Answer
from understudy.testing.coordinator_kit.kit_run import COMMITTERS, EACH, KitRun
from understudy.testing.coordinator_kit.order_checks import require_order
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import COORDINATOR, ORDERED, Kind
from understudy.testing.coordinator_kit.workload import QUEUES

REFUSED_EVERY: Final = 4


def _refuse_some(run: KitRun, works: int = 1) -> None:
    """The first participant refuses every fourth transaction of ``works`` works: the coordinator has agreed, and is rolled back."""
    names = range(0, works * COMMITTERS * EACH, REFUSED_EVERY)
    run.first.plan_refusals({f"t{number}": "the kit refuses every fourth" for number in names})


@check("C-15", "C-17")
def hooks_stand_on_the_right_side_of_the_sync(subject: Subject) -> None:
    """A prepare_ordered runs before the sync of its transaction, a commit_ordered after it."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        prepared_at = run.broker.facts().prepared_at
        for each in run.watch.of(Kind.PREPARE_ORDERED):
            require(each.durable < prepared_at[each.tx], "C-15", f"{each.who} heard prepare_ordered late: {each}")
        for each in run.watch.of(Kind.COMMIT_ORDERED):
            require(each.durable >= prepared_at[each.tx], "C-17", f"{each.who} heard commit_ordered early: {each}")


@check("C-17", "C-35")
def a_decision_waits_for_what_makes_it_stable(subject: Subject) -> None:
    """Between the sync and commit_ordered others may be waited for: nothing is told meanwhile."""
    run = KitRun(subject)
    held = _HeldStability(run)
    begun = run.commit({QUEUES[0]: 1, QUEUES[1]: 1}, count=3)
    run.broker.sync()
    early = run.watch.names(Kind.COMMIT_ORDERED)
    require(not early, "C-35", f"{early} heard commit_ordered while a backup was waited for")
    told = [tx for tx in begun if tx.answer is Answer.COMMITTED]
    require(not told, "C-35", f"{told} were told while a backup was waited for")
    require(not run.in_queue(QUEUES[0]), "C-17", "a queue shows what is not decided")
    held.release()
    run.settle()
    require_order(run.watch.names(Kind.COMMIT_ORDERED, "second"), run.broker.facts().decided, "C-35", "what follows")


class _HeldStability:
    """``plugin.Stability`` that stands still until :meth:`release`, as with a backup that does not acknowledge."""

    def __init__(self, run: KitRun) -> None:
        broker = run.broker.node.broker
        self._inner = broker.batch.stability
        self._offset = self._inner.stable_offset()
        self._held = True
        broker.batch.stable_by(self)

    def release(self) -> None:
        self._held = False

    def stable_offset(self) -> int:
        return self._offset if self._held else self._inner.stable_offset()

    def batch_closed(self, batch: object) -> None:
        """Alone, a broker sends nothing."""


@check("C-21", "C-22")
def a_hook_that_raises_changes_no_decision(subject: Subject) -> None:
    """A participant that raises after the decision rolls nothing back, disturbs no other, and unlog tells of it."""
    after = (Kind.PREPARE_ORDERED, Kind.COMMIT_ORDERED)
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.first.plan_errors(after, [f"t{number}" for number in range(0, 30, 3)])
        run.work(seed)
        facts = run.broker.facts()
        require_order(
            run.watch.names(Kind.COMMIT_ORDERED, "second"), facts.decided, "C-21", "behind one that raises, it"
        )
        for tx in run.broker.transactions:
            if tx.name in facts.decided:
                require(
                    tx.answer is Answer.COMMITTED, "C-22", f"{tx.name} is decided, and its client is told {tx.reason!r}"
                )
        told = {each.tx: each.text for each in run.watch.of(Kind.UNLOG, "second")}
        for kind, name in sorted(run.first.raises):
            if name in facts.decided:
                said = f"first stumbles at {kind} of {name}"
                require(said in told.get(name, ""), "C-22", f"unlog of {name} does not tell that {said!r}")


@check("C-12")
def a_participant_that_raises_in_prepare_refuses(subject: Subject) -> None:
    """A participant that raises before the decision refuses: that transaction is rolled back, and no other."""
    run = KitRun(subject)
    run.second.plan_errors([Kind.PREPARE], ["t1"])
    begun = run.commit({QUEUES[0]: 1}, count=3)
    run.settle()
    answers = [tx.answer for tx in begun]
    require(answers[1] is Answer.ROLLED_BACK, "C-12", f"t1 is told {answers[1].value}, though a participant raised")
    heard = run.watch.names(Kind.ROLLED_BACK, "first")
    require("t1" in heard, "C-12", f"a participant that had agreed to t1 hears of the rollback of {heard}")
    require("t1" not in run.watch.names(Kind.REQUESTED), "C-12", "log_and_order was called for t1, which was refused")


@check("C-20", "C-21")
def the_hooks_of_the_coordinator_raise_nothing(subject: Subject) -> None:
    """The coordinator's own hooks return: they neither raise nor ask the host for anything."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        _refuse_some(run)
        run.work(seed)
        for kind, requirement in ((Kind.MISTAKE, "C-20"), (Kind.RAISED, "C-21")):
            found = [each.text for each in run.watch.of(kind, COORDINATOR) if each.text.partition(":")[0] in ORDERED]
            require(not found, requirement, f"a hook of the coordinator: {found[:1]}")


@check("C-24")
def each_decision_is_unlogged_once(subject: Subject) -> None:
    """A decision is unlogged once, after all have heard commit_ordered; nothing is synced for that alone."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        decided = run.broker.facts().decided
        for who in run.everyone:
            heard = run.watch.names(Kind.UNLOG, who)
            require(
                sorted(heard) == sorted(decided), "C-24", f"unlog of {who} was called for {heard}, not for {decided}"
            )
        done: set[str] = set()
        for each in run.watch.seen:
            if each.kind is Kind.COMMIT_ORDERED and each.who == "second":
                done.add(each.tx)
            elif each.kind is Kind.UNLOG:
                require(each.tx in done, "C-24", f"unlog of {each.tx} came before the last commit_ordered")
        before = run.broker.storage.syncs
        run.broker.sync()
        require(run.broker.storage.syncs == before, "C-24", "something was synced for unlog alone")


@check("C-24")
def nothing_of_an_unlogged_transaction_is_kept(subject: Subject) -> None:
    """After unlog, or rolled_back, the coordinator holds no view of the transaction: its memory has a bound."""
    run = KitRun(subject)
    _refuse_some(run, subject.seeds)
    for seed in range(subject.seeds):
        run.work(seed)
    gc.collect()
    kept = sum(view() is not None for view in run.watch.views)
    total = len(run.watch.views)
    require(not kept, "C-24", f"of {total} transactions, all of them unlogged or rolled back, {kept} are still held")
