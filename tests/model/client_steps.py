"""Steps of clients at an active primary: each thing once, within the bounds.

Sources: DESIGN 4 and 5; broker/core/broker.py (publish, dequeue), broker/core/commits/transactions.py,
broker/core/clients/transacting.py, broker/core/requests/outcome_answers.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.records import (
    BARRIER,
    CLOSED,
    COMMITTED,
    DEQUEUE,
    DTX_PREPARE,
    ENQUEUE,
    ENTER,
    LEAVE,
    MOVE,
    NONE,
    OPEN,
    OUTCOME,
    PREPARE,
    ROLLBACK,
    ROLLED_BACK,
    TX_DEQUEUE,
    TX_ENQUEUE,
    B,
    C,
    kind_of,
    transaction,
)
from tests.model.rules import PLAIN, Around, Rules, Step, append
from tests.model.state import (
    ASKED,
    COMMIT_TOLD,
    DEQUEUED,
    ENQUEUED,
    LACKS_OUTCOME,
    MOVED,
    OPENED,
    ROLLBACK_TOLD,
    SAYS_ROLLBACK,
    Broker,
    World,
)


def steps(rules: Rules, world: World, primary: Broker, around: Around) -> Iterator[Step]:
    """Client work at ``primary``. Below the minimum new work is refused before it enters the log (Primary._check_work)."""
    role = primary.role
    if role is None or not role.active or around.members < rules.bounds.min_insync:
        return
    bounds = rules.bounds
    facts = world.facts
    if bounds.enqueue and not facts & ENQUEUED:
        yield Step(
            "a client publishes D: {b} appends ENQUEUE",
            PLAIN,
            world._replace(facts=facts | ENQUEUED),
            append(primary, ENQUEUE),
        )
    kinds = {kind_of(raw) for raw in primary.log}
    if bounds.dequeue and not facts & DEQUEUED and MOVE not in kinds:
        yield Step(
            "a client acknowledges A: {b} appends DEQUEUE",
            PLAIN,
            world._replace(facts=facts | DEQUEUED),
            append(primary, DEQUEUE),
        )
    if bounds.move:
        yield from _moves(rules, world, primary, kinds)
    if bounds.ask and not facts & ASKED:
        yield _ask(rules, world, primary)
    yield from _transaction(rules, world, primary)


def _moves(rules: Rules, world: World, primary: Broker, kinds: set[int]) -> Iterator[Step]:
    """A expires, is rejected, or is too much: unless a client has taken it, it leaves its queue and is E in another one."""
    moved = world._replace(facts=world.facts | MOVED)
    if rules.bug == "move-is-two-records":
        if LEAVE in kinds and ENTER not in kinds:
            yield Step("what A becomes is published: {b} appends ENTER", PLAIN, world, append(primary, ENTER))
        elif not world.facts & MOVED and DEQUEUE not in kinds:
            yield Step("A expires: {b} appends LEAVE", PLAIN, moved, append(primary, LEAVE))
    elif not world.facts & MOVED and (DEQUEUE not in kinds or rules.bug == "taken-is-moved"):
        yield Step("A expires: {b} appends MOVE", PLAIN, moved, append(primary, MOVE))


def _transaction(rules: Rules, world: World, primary: Broker) -> Iterator[Step]:
    tx = transaction(primary.log)
    role = primary.role
    assert role is not None
    facts = world.facts
    if rules.bounds.events and not facts & OPENED:
        yield Step(
            "a client opens the transaction: {b} appends TX_ENQUEUE",
            PLAIN,
            world._replace(facts=facts | OPENED),
            append(primary, TX_ENQUEUE),
        )
    if tx.state != OPEN or tx.epoch != role.epoch:
        return
    whole = C if rules.bounds.events == 1 else B | C
    barred = any(kind_of(raw) == OUTCOME for raw in primary.log) and rules.bug != "name-not-barred"
    if tx.events != whole:
        yield Step("the transaction goes on: {b} appends TX_DEQUEUE", PLAIN, world, append(primary, TX_DEQUEUE))
    elif rules.bounds.branch:
        if not facts & SAYS_ROLLBACK:
            yield Step("the manager says prepare: {b} appends DTX_PREPARE", PLAIN, world, append(primary, DTX_PREPARE))
        return
    elif not barred:
        yield Step("the client commits: {b} appends PREPARE", PLAIN, world, append(primary, PREPARE))
    if (rules.bounds.rollback and not rules.bounds.branch) or barred:
        yield Step(
            "the client rolls back and is told so: {b} appends ROLLBACK"
            if not barred
            else "the name of the transaction is barred: {b} appends ROLLBACK and tells so",
            PLAIN,
            world._replace(facts=facts | ROLLBACK_TOLD),
            append(primary, ROLLBACK),
        )


def _ask(rules: Rules, world: World, primary: Broker) -> Step:
    """A client asks by name. What nobody knows is barred by OUTCOME; what is known is answered behind a BARRIER."""
    facts = world.facts | ASKED
    if known_state(primary) == NONE:
        if rules.bug == "outcome-at-once":
            facts |= ROLLBACK_TOLD
        text = "a client asks for the outcome, {b} does not know the transaction and appends OUTCOME"
        return Step(text, PLAIN, world._replace(facts=facts), append(primary, OUTCOME))
    text = "a client asks for the outcome: {b} appends BARRIER"
    return Step(text, PLAIN, world._replace(facts=facts), append(primary, BARRIER))


def known_state(broker: Broker) -> int:
    """The state of the transaction as ``broker`` knows it; a rolled back one leaves no name behind unless it was closed."""
    tx = transaction(broker.log)
    if tx.state in (COMMITTED, ROLLED_BACK) and broker.lacks & LACKS_OUTCOME:
        return NONE
    return NONE if tx.state == ROLLED_BACK and not tx.prepare else tx.state


def answer_of(broker: Broker) -> int:
    """The fact that an answer to the question makes: a transaction that is OPEN or CLOSED is "pending", and none."""
    state = known_state(broker)
    if state in (OPEN, CLOSED):
        return 0
    return COMMIT_TOLD if state == COMMITTED else ROLLBACK_TOLD
