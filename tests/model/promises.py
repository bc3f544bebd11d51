"""Promises of DESIGN 1 that must hold in every state, as far as a model of this size can state them.

==  ===========================================================================================================================
G1  a broker that the store lists would show, if it were promoted now, all of the transaction or nothing, and all else that is
    stable (``content``); a message that moves is in one of its queues, never in both or in neither, on any broker
G2  no two records are stable at one place (settling); nobody who may be promoted would decide against what was told
G3  what is applied is a prefix of ``chosen``, in which the transaction counts from its decision on; none of it is ever cut away
    (link_steps)
G4  whoever may be promoted holds durably all that was ever stable; nothing becomes stable below ``min_insync`` (settling)
G5  the same, after crashes of one or of all, in any order of restarts
G6  one primary an epoch; what an ex-primary takes for stable is what its successors keep (G2, G4 speak of all primaries)
G7  who is listed is not in the middle of a catch-up, and does not lack a part of the transaction
G8  committed and rolled back are never both told; what is told is what the log says
G9  the records are applied in log order, the transaction at its PREPARE, on every broker: there is one order (records.apply)
==  ===========================================================================================================================

Of a branch: once its manager may have been told prepare-ok, and until it says rollback, whoever may be promoted holds all of it
durably, DTX_PREPARE too, and does not refuse it (G4). No log that is stable, or that a listed broker holds, decides it otherwise
than the manager has, and the manager hears of no other outcome, a 404 among the answers (G2).

Who has lost its data directory is excepted from G4 and G1 as long as it is listed: it knows it, and does not lead (decision 0007).
"""

from __future__ import annotations

from typing import Final

from tests.model.records import (
    CLOSED,
    COMMITTED,
    DEQUEUE,
    FIRST,
    IN_DOUBT,
    NONE,
    OPEN,
    ROLLED_BACK,
    A,
    B,
    C,
    E,
    Log,
    Tx,
    applied,
    apply,
    kind_of,
    same_prefix,
    transaction,
)
from tests.model.state import (
    COMMIT_TOLD,
    LACKS_PREPARED,
    PREPARED_TOLD,
    ROLLBACK_TOLD,
    SAYS_COMMIT,
    SAYS_ROLLBACK,
    Broker,
    World,
    no_stands,
    wiped,
)

LACKS_ANY: Final = B | C | LACKS_PREPARED


def broken_by_world(world: World) -> str:
    """The promise that is broken whatever the brokers hold, "" for none."""
    told = world.facts & (COMMIT_TOLD | ROLLBACK_TOLD)
    tx = transaction(world.chosen)
    state = tx.state
    if told == COMMIT_TOLD | ROLLBACK_TOLD:
        return "G8 no silent outcome: the transaction was told committed, and told rolled back"
    if told == COMMIT_TOLD and state == ROLLED_BACK:
        return "G2 agreed: told committed, and its ROLLBACK is stable"
    if told == ROLLBACK_TOLD and state == COMMITTED:
        return "G2 agreed: told rolled back, and its COMMIT is stable"
    if told == ROLLBACK_TOLD and _overrules(world.facts):
        return "G2 agreed: the manager was told prepare-ok, then that the branch is gone; it has not rolled it back"
    contradicts = _contradicts(world.facts, tx)
    return f"{contradicts}, stably" if contradicts else _half_moved(world.chosen)


def _half_moved(chosen: Log) -> str:
    """The promise that is broken by what is stable: A is in both of its queues, or in neither, and no client took it."""
    places = apply(0, chosen, 0, len(chosen)) & (A | E)
    if places == A | E:
        return "G1 atomic: a message that moves is stably in both queues"
    if not places and any(kind_of(raw) == FIRST for raw in chosen) and all(kind_of(raw) != DEQUEUE for raw in chosen):
        return "G1 atomic: a message that moves is stably in neither queue"
    return ""


def _overrules(facts: int) -> bool:
    """True if a rollback would be against the manager: it may rely on the branch, and has not rolled it back."""
    return bool(facts & PREPARED_TOLD and not facts & SAYS_ROLLBACK)


def _contradicts(facts: int, tx: Tx) -> str:
    """The promise that is broken by a log that says ``tx``: a branch is decided otherwise than its manager has; "" for none."""
    if tx.prepared and tx.state in (CLOSED, COMMITTED) and not facts & SAYS_COMMIT:
        return "G2 agreed: a branch is committed, and its manager has not said so"
    if tx.state == ROLLED_BACK and _overrules(facts):
        return "G2 agreed: a branch is rolled back after prepare-ok, and its manager has not said so"
    return ""


def broken_by_broker(world: World, broker: Broker) -> str:
    """The promise that is broken by what one broker holds, or would do if it were promoted now; "" for none."""
    if broker.filling is not None and broker.filling.content & (A | E) == A | E:
        return "G1 atomic: {b} holds a message that moves in both queues"
    if not broker.listed or wiped(broker):
        return ""
    if broker.part:
        return "G7 ready means promotable: {b} is listed and holds a part"
    return _broken_log(world, broker) or _broken_content(world, broker)


def _broken_log(world: World, broker: Broker) -> str:
    """The promise that is broken by what the log of ``broker`` says."""
    log = broker.log[: broker.synced]
    chosen = world.chosen
    if same_prefix(log, chosen) < len(chosen):
        return "G4 durable: {b} is listed and lacks a record that was stable"
    tx = transaction(log)
    if world.facts & COMMIT_TOLD and (tx.state not in (CLOSED, COMMITTED) or no_stands(broker)):
        return "G4 durable: {b} may be promoted and would not commit what was told committed"
    if world.facts & ROLLBACK_TOLD and tx.state in (CLOSED, COMMITTED):
        return "G2 agreed: {b} may be promoted and would commit what was told rolled back"
    return _broken_branch(world.facts, broker, tx)


def _broken_content(world: World, broker: Broker) -> str:
    """The promise that is broken by what ``broker`` holds, whatever its log says."""
    if broker.lacks & (B | C) and transaction(world.chosen).state == COMMITTED:
        return "G1 atomic: {b} is listed and holds half of a committed transaction"
    if broker.filling is not None and not _right(world, broker):
        return "G1 atomic: {b} is listed and its queues will not be what the log says"
    return ""


def _broken_branch(facts: int, broker: Broker, tx: Tx) -> str:
    """The promise to a branch's manager that ``broker``, whose log says ``tx``, would break if it were promoted now."""
    if _overrules(facts):  # otherwise it may rely on nothing any more
        if no_stands(broker):
            return "G4 durable: {b} may be promoted and would roll back what was told prepared"
        if tx.state in (NONE, OPEN) or (tx.state in (IN_DOUBT, CLOSED) and broker.lacks & LACKS_ANY):
            return "G4 durable: {b} may be promoted and does not hold all of what was told prepared"
    if facts & ROLLBACK_TOLD and tx.state == IN_DOUBT:
        return "G4 durable: {b} may be promoted and would keep in doubt what was told rolled back"
    contradicts = _contradicts(facts, tx)
    return f"{contradicts}, in the log of {{b}}" if contradicts else ""


def _right(world: World, broker: Broker) -> bool:
    """True if the queues of ``broker`` hold what ``chosen`` says when it has applied all of that."""
    filling = broker.filling
    assert filling is not None
    chosen = world.chosen
    tx = transaction(chosen)
    # A catch-up brings what its primary has applied, which may be a transaction whose COMMIT is not stable yet.
    ahead = tx.state == CLOSED and tx.prepare <= broker.start
    if ahead and not world.facts & COMMIT_TOLD:
        return False
    before = applied(broker.log, filling.told, start=broker.start)

    def right(upto: int, decided: bool) -> bool:
        content = apply(filling.content, chosen, before, upto, broker.lacks, decided)
        return content == apply(0, chosen, 0, upto, 0, decided)

    if ahead:
        return right(len(chosen), True)
    # Its pieces may have been read when the primary had committed, which is not stable yet: what the transaction takes is missing
    # already. If it is rolled back after all, that is seen then.
    closed = tx.state == CLOSED and before < tx.prepare
    return right(max(before, applied(chosen, len(chosen))), False) or (closed and right(len(chosen), True))
