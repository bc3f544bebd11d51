"""Checks of waiting: dependencies between transactions, the triggers of a group, and branches that are in doubt for long."""

from __future__ import annotations

from random import Random
from typing import Final

from understudy.broker.coordinators import Trigger
from understudy.broker.core.limits import Limits
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.testing.coordinator_kit.check import check, require
from understudy.testing.coordinator_kit.decision_checks import require_own_decisions
from understudy.testing.coordinator_kit.kit_branch import KitBranch
from understudy.testing.coordinator_kit.kit_client import Answer
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.order_checks import require_order
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import Kind
from understudy.testing.coordinator_kit.workload import QUEUES, headers_of

CHAIN: Final = 100


@check("C-30")
def a_chain_of_dependencies_is_kept(subject: Subject) -> None:
    """100 transactions, each of which waits for the one before it, commit in that order, and none waits for ever."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        rng = Random(seed)
        begun = []
        for number in range(CHAIN):
            if number:
                run.watch.prior[f"t{number}"] = f"t{number - 1}"
            begun += run.commit({rng.choice(QUEUES): 1}, headers=headers_of(rng))
            if rng.random() < 0.1:
                run.broker.turn(flush=True)
        waiting = run.settle()
        require(not waiting, "C-30", f"{waiting[:3]} wait for ever; seed {seed}")
        own = {*run.watch.names(Kind.ASKED_TO_REFUSE), *run.watch.names(Kind.SAID_NO)}
        other = [tx for tx in begun if tx.answer is Answer.ROLLED_BACK and tx.name not in own]
        if not own:
            require(not other, "C-30", f"{other[:1]} of the chain: {[tx.reason for tx in other[:1]]}; seed {seed}")
        committed = [tx.name for tx in begun if tx.answer is Answer.COMMITTED]
        require_order(run.broker.facts().decided, committed, "C-30", f"the chain, seed {seed},")


@check("C-30")
def a_prior_that_asks_last_is_waited_for(subject: Subject) -> None:
    """A transaction asks for its commit before the one that it waits for does: both commit, and the host decides neither."""
    run = KitRun(subject)
    prior, waiter = run.broker.client(), run.broker.client()
    for client, name in ((prior, "prior"), (waiter, "waiter")):
        run.broker.transactions.append(client.publish(name, {QUEUES[0]: 1}, {}))
    (prior_id,) = (tx.tx_id for tx in run.broker.node.state.transactions.values() if tx.name == "prior")
    run.watch.ids["prior"] = tx_id_text(prior_id)
    run.watch.prior["waiter"] = "prior"
    waiter.commit()
    run.broker.sync()
    early = run.watch.names(Kind.PREPARE_ORDERED)
    require(not early, "C-30", f"{early} were ordered before the transaction for which one of them waits")
    prior.commit()
    waiting = run.settle()
    require(not waiting, "C-30", f"{waiting} have no answer")
    own = {*run.watch.names(Kind.ASKED_TO_REFUSE), *run.watch.names(Kind.SAID_NO)}
    other = [tx for tx in run.broker.transactions if tx.answer is Answer.ROLLED_BACK and tx.name not in own]
    if not own:
        require(not other, "C-30", f"{other[:1]} was rolled back: {[tx.reason for tx in other[:1]]}")
    committed = [tx.name for tx in run.broker.transactions if tx.answer is Answer.COMMITTED]
    require_order(run.broker.facts().decided, committed, "C-30", "a prior that asks last")
    forced = run.broker.node.broker.transactions.coordinator.forced
    require(
        not forced, "C-30", f"{forced} transactions were left to the host, though the one they wait for was ordered"
    )


@check("C-31")
def each_trigger_makes_a_group_go(subject: Subject) -> None:
    """The end of a turn, a count, a wait that is over, and a client that is blocked: after each, commits go on."""
    for limits, trigger in (
        (Limits(), Trigger.TURN),
        (Limits(hold_commits=True, group_count=3), Trigger.COUNT),
        (Limits(hold_commits=True), Trigger.MIN_WAIT),
        (Limits(hold_commits=True), Trigger.BLOCKED),
    ):
        run = KitRun(subject, limits)
        begun = run.commit({QUEUES[0]: 1}, count=3)
        if trigger is Trigger.BLOCKED:
            run.broker.client().delete_if_empty(QUEUES[0])
        run.broker.turn(flush=trigger is Trigger.MIN_WAIT)
        run.settle()
        answered = [tx for tx in begun if tx.answer is not Answer.NONE]
        require(len(answered) == len(begun), "C-31", f"{trigger.value}: {len(answered)} of {len(begun)} are answered")
        raised = [each.text for kind in (Kind.RAISED, Kind.MISTAKE) for each in run.watch.of(kind)]
        require(not raised, "C-31", f"{trigger.value}: {raised[:1]}")
        require_own_decisions(run)
        due = [each.text for each in run.watch.of(Kind.GROUP_DUE)]
        require(not due or trigger.value in due, "C-31", f"the group was due for {due}, not for {trigger.value}")


@check("C-32", "C-26")
def a_branch_in_doubt_holds_nobody_up(subject: Subject) -> None:
    """A branch is prepared, 100 others commit, and then it is committed: its number is given then, and none waits."""
    run = KitRun(subject)
    branch = KitBranch(run.broker)
    branch.prepare(dict.fromkeys(QUEUES, 1))
    others = run.commit({QUEUES[0]: 1, QUEUES[1]: 1}, count=CHAIN)
    waiting = run.settle()
    require(not waiting, "C-32", f"{len(waiting)} of {CHAIN} wait while a branch is in doubt")
    newest = max(run.broker.facts().csn.values(), default=0)
    status = branch.commit(run.settle)
    require(status == 0, "C-32", f"the commit of a prepared branch is answered with status {status}, not with 0")
    own = run.broker.facts().branch_csn
    require(own and own[0] > newest, "C-32", f"the branch has the number {own}, the others up to {newest}")
    told = [tx for tx in others if tx.answer is Answer.NONE]
    require(not told, "C-32", f"{told[:3]} have no answer")
    mistakes = [each.text for each in run.watch.of(Kind.MISTAKE)]
    require(not mistakes, "C-32", f"a branch that its manager has had prepared is committed or nothing: {mistakes[:1]}")
