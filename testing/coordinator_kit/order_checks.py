"""Checks of order: the log, every participant and every queue have one, and it is the one that the coordinator has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from understudy.testing.coordinator_kit.check import Whose, check, require
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import COORDINATOR, SAID, Kind, Seen
from understudy.testing.coordinator_kit.workload import QUEUES, headers_of

GROUPS: Final = 9
MIXED: Final = 20
ABOUT_ONE: Final = frozenset({Kind.PREPARE, Kind.REQUESTED, Kind.PREPARE_ORDERED, Kind.COMMIT_ORDERED, Kind.UNLOG})


def first_difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    """Where two orders part, for an error message."""
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"place {place} has {one} instead of {other}"
    return f"there are {len(found)} instead of {len(wanted)}"


def require_order(found: Sequence[str], wanted: Sequence[str], requirement: str, whose: str) -> None:
    """Raises `NotMetError` unless the two are equal."""
    parted = first_difference(found, wanted)
    require(list(found) == list(wanted), requirement, f"{whose} is not the order of the log: {parted}")


@check("C-07", whose=Whose.ALL)
def queues_have_the_order_of_the_log(subject: Subject) -> None:
    """Each queue has its transactions in the order of the log, and the log has them in the order of the CSN."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        facts = run.broker.facts()
        numbers = [facts.csn[name] for name in facts.prepared]
        require(numbers == sorted(set(numbers)), "C-07", f"the log's commit sequence numbers do not ascend: {numbers}")
        for queue in QUEUES:
            brought = {tx.name for tx in run.broker.transactions if queue in tx.bodies}
            wanted = [name for name in facts.decided if name in brought]
            require_order(run.in_queue(queue), wanted, "C-07", f"queue {queue}, seed {seed},")


@check("C-38", whose=Whose.ALL)
def work_outside_of_transactions_has_its_place(subject: Subject) -> None:
    """Messages outside of transactions stand in the log and in the queues in one order with commits; nobody is asked."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        rng = Random(seed)
        plain = run.broker.client()
        brought: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        for number in range(MIXED):
            queue = rng.choice(QUEUES)
            plain.publish_outside(f"p{number}", queue)
            brought[queue].add(f"p{number}")
            for tx in run.commit({rng.choice(QUEUES): 1}, headers=headers_of(rng)):
                for each in tx.bodies:
                    brought[each].add(tx.name)
            if rng.random() < 0.4:
                run.broker.turn(flush=rng.random() < 0.5)
        run.settle()
        facts = run.broker.facts()
        for queue in QUEUES:
            wanted = [name for name in facts.placed if name in brought[queue] and name not in facts.rolled_back]
            require_order(run.in_queue(queue), wanted, "C-38", f"queue {queue}, seed {seed},")
        asked = [
            each.tx for each in run.watch.seen if each.tx.startswith("p") or (each.kind in ABOUT_ONE and not each.tx)
        ]
        require(not asked, "C-38", f"the coordinator heard of {asked[:3]}, outside of transactions")


@check("C-13", "C-14", "C-20")
def participants_have_the_order_of_the_log(subject: Subject) -> None:
    """Every participant hears prepare_ordered and commit_ordered in the order of the log, with its CSN."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        facts = run.broker.facts()
        for who in run.everyone:
            for kind, requirement, wanted in (
                (Kind.PREPARE_ORDERED, "C-13", facts.prepared),
                (Kind.COMMIT_ORDERED, "C-14", facts.decided),
            ):
                heard = run.watch.of(kind, who)
                require_order([each.tx for each in heard], wanted, requirement, f"{kind.value} of {who}, seed {seed},")
                wrong = [each for each in heard if each.csn != facts.csn[each.tx]]
                require(not wrong, requirement, f"{kind.value} of {who} states another CSN than the log: {wrong[:1]}")
        within = [each for each in run.watch.seen if each.within]
        require(not within, "C-20", f"the coordinator's hook had not returned when this happened: {within[:1]}")


@check("C-23")
def a_later_group_does_not_overtake(subject: Subject) -> None:
    """While a group is being synced the next ones are ordered; they are decided in that order all the same."""
    run = KitRun(subject)
    for number in range(GROUPS):
        run.commit({QUEUES[number % len(QUEUES)]: 1}, count=2)
        run.broker.turn(flush=True)
        if number % 3 == 2:
            run.broker.finish_group()
        run.broker.begin_group()
    run.settle()
    decided = run.broker.facts().decided
    for who in run.everyone:
        require_order(run.watch.names(Kind.COMMIT_ORDERED, who), decided, "C-23", f"commit_ordered of {who}")


@check("C-10")
def the_log_has_the_order_that_was_said(subject: Subject) -> None:
    """Commits that `order` puts into `now` stand in the log in that order; of the same offer no other does."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        for number, group in enumerate(_groups(run.watch.seen)):
            said = [each.tx for each in group if each.kind is Kind.SAID_NOW]
            asked = {each.tx for each in group if each.kind is Kind.ASKED_TO_ORDER}
            ordered = [each.tx for each in group if each.kind is Kind.PREPARE_ORDERED and each.who == COORDINATOR]
            found = [name for name in ordered if name in asked]
            require(found == said, "C-10", f"group {number} of seed {seed}: order said {said}, the log has {found}")


def _groups(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Events from each answer of `order` to the next group; none of a coordinator that has no `order`."""
    groups: list[list[Seen]] = []
    for each in seen:
        if each.kind is Kind.GROUP_DUE:
            groups.append([])
        elif groups:
            groups[-1].append(each)
    return [group for group in groups if any(each.kind in SAID for each in group)]


@check("C-09", "C-12")
def one_request_and_one_decision(subject: Subject) -> None:
    """A decision is requested once, after all have prepared; it is answered once, and asks the host for nothing it forbids."""
    for seed in range(subject.seeds):
        run = KitRun(subject)
        run.work(seed)
        watch = run.watch
        mistakes = watch.of(Kind.MISTAKE)
        require(
            not mistakes, "C-12", f"the host refused what the coordinator asked for: {[m.text for m in mistakes[:1]]}"
        )
        raised = watch.of(Kind.RAISED, COORDINATOR)
        require(not raised, "C-12", f"the coordinator raised instead of deciding: {[each.text for each in raised[:1]]}")
        for tx in run.broker.transactions:
            heard = [each for each in watch.seen if each.tx == tx.name]
            before = [each.who for each in heard if each.kind is Kind.PREPARE]
            requested = [each.kind for each in heard].count(Kind.REQUESTED)
            refused = any(each.kind is Kind.SAID_NO for each in heard)
            require(requested + refused == 1, "C-12", f"log_and_order was called {requested} times for {tx.name}")
            all_of = before == list(run.everyone) or refused
            require(all_of, "C-12", f"{tx.name} was prepared by {before}, not by {run.everyone}")
            asked = [each.kind in (Kind.ASKED_TO_ORDER, Kind.ASKED_TO_REFUSE) for each in heard].count(True)
            require(asked <= 1, "C-12", f"the coordinator has decided {tx.name} {asked} times")
            require(tx.answers == 1, "C-12", f"the client of {tx.name} got {tx.answers} answers")
