"""Checks of decisions: nothing is lost, what is put off has a bound in time, and who is refused is told why."""

from __future__ import annotations

from random import Random
from typing import Final

from understudy.testing.coordinator_kit.check import Whose, check, require
from understudy.testing.coordinator_kit.kit_client import Answer
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import COORDINATOR, Kind
from understudy.testing.coordinator_kit.workload import QUEUES, headers_of

MANY: Final = 64
ROUNDS: Final = 60
ROUND_MS: Final = 50
A_FOURTH: Final = 4


def require_own_decisions(run: KitRun, requirement: str = "C-11") -> None:
    """Raises `NotMetError` if the host had to decide what the coordinator has left for too long."""
    asked = {*run.watch.names(Kind.ASKED_TO_ORDER), *run.watch.names(Kind.ASKED_TO_REFUSE)}
    ordered = run.watch.names(Kind.PREPARE_ORDERED, COORDINATOR)
    left = [name for name in ordered if name not in asked and name not in run.watch.prior]
    require(
        not left,
        requirement,
        f"the coordinator left {len(left)} transactions, {left[:3]} first, for longer than {run.subject.max_withheld_ms} "
        "ms; the host ordered them in its place",
    )


@check("C-11")
def each_of_a_group_is_placed(subject: Subject) -> None:
    """`order` puts each transaction of a group into exactly one of now, later and refused."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        wrong = [each.text for each in run.watch.of(Kind.MISPLACED)]
        require(not wrong, "C-11", f"{wrong[:1]}, seed {seed}")


@check("C-11")
def nothing_is_lost(subject: Subject) -> None:
    """Each commit is answered, by a decision of the coordinator itself, within the bound of what is withheld."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        lost = [tx.name for tx in run.broker.transactions if tx.answer is Answer.NONE]
        require(not lost, "C-11", f"{lost} have no answer; seed {seed}")
        require_own_decisions(run)
        late = [tx for tx in run.broker.transactions if tx.answered_ms - tx.asked_ms > 2 * subject.max_withheld_ms]
        require(not late, "C-11", f"{late[:1]} waited {[tx.answered_ms - tx.asked_ms for tx in late[:1]]} ms")


@check("C-11")
def nobody_waits_for_ever_while_others_come(subject: Subject) -> None:
    """New commits in every turn do not hold an old one up beyond the bound: the oldest is not overtaken for ever."""
    run = KitRun(subject)
    rng = Random(0)
    for _ in range(ROUNDS):
        run.commit({rng.choice(QUEUES): 1}, count=2, headers=headers_of(rng))
        run.broker.turn(flush=True)
        if run.broker.begin_group():
            run.broker.finish_group()
        run.broker.pass_ms(ROUND_MS)
    run.settle()
    require_own_decisions(run)


@check("C-19")
def the_refused_are_told(subject: Subject) -> None:
    """A refused commit is answered 406 with the reason, and leaves nothing; the others of its group commit."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.first.plan_refusals({f"t{number}": f"the kit says no to t{number}" for number in range(0, 30, 7)})
        run.work(seed)
        facts = run.broker.facts()
        refusals = (*run.watch.of(Kind.ASKED_TO_REFUSE), *run.watch.of(Kind.SAID_NO))
        reasons = {each.tx: each.text for each in refusals}
        for tx in run.broker.transactions:
            reason = reasons.get(tx.name)
            if reason is None:
                require(
                    tx.answer is Answer.COMMITTED, "C-19", f"nobody refused {tx.name}, and it is told {tx.reason!r}"
                )
                continue
            require(reason, "C-19", f"the coordinator refused {tx.name} without a reason")
            told = tx.answer is Answer.ROLLED_BACK and tx.reply_code == 406 and reason[:100] in tx.reason
            require(
                told, "C-19", f"{tx.name} was refused for {reason!r}; its client is told {tx.reply_code} {tx.reason!r}"
            )
            require(tx.name not in facts.decided, "C-19", f"{tx.name} was refused, and stands in the log as committed")
            left = [queue for queue in QUEUES if tx.name in run.in_queue(queue)]
            require(not left, "C-19", f"{tx.name} was refused, and messages of it stand in {left}")
        requested = set(run.watch.names(Kind.REQUESTED))
        asked = [name for name in run.watch.names(Kind.SAID_NO) if name in requested]
        require(not asked, "C-12", f"log_and_order was called for {asked}, which a participant had refused")


@check("C-08", whose=Whose.ALL)
def a_group_shares_a_sync(subject: Subject) -> None:
    """64 commits of one moment need far fewer syncs than 64."""
    run = KitRun(subject)
    before = run.broker.storage.syncs
    rng = Random(1)
    for _ in range(MANY):
        run.commit({rng.choice(QUEUES): 1}, headers=headers_of(rng))
    waiting = run.settle()
    require(not waiting, "C-11", f"{len(waiting)} of {MANY} have no answer")
    decided = sum(tx.answer is Answer.COMMITTED for tx in run.broker.transactions)
    syncs = run.broker.storage.syncs - before
    require(
        syncs <= max(MANY // A_FOURTH, 1),
        "C-08",
        f"{decided} commits that came together took {syncs} syncs; at most one for four is asked for",
    )


@check("C-08")
def a_commit_alone_is_not_held_back(subject: Subject) -> None:
    """A single commit is ordered in the turn in which it is asked for, and answered when that is synced."""
    run = KitRun(subject)
    (tx,) = run.commit({QUEUES[0]: 1})
    run.broker.sync()
    waited = tx.answered_ms - tx.asked_ms
    require(tx.answer is not Answer.NONE, "C-08", "a commit that is alone was not ordered at the end of its turn")
    require(waited == 0, "C-08", f"a commit that is alone waited {waited} ms for others")
