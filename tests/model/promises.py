"""What must hold in every state: the promises of DESIGN 1, as far as a model of this size can state them.

==  ===========================================================================================================================
G1  a broker that the store lists would show, if it were promoted now, all of the transaction or nothing, and all else that is
    stable (``content``)
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

Who has lost its data directory is excepted from G4 and G1 as long as it is listed: it knows it, and does not lead (decision 0007).
"""

from __future__ import annotations

from tests.model.records import CLOSED, COMMITTED, ROLLED_BACK, B, C, applied, apply, same_prefix, transaction
from tests.model.state import COMMIT_TOLD, ROLLBACK_TOLD, Broker, World, no_stands, wiped


def broken_by_world(world: World) -> str:
    """The promise that is broken whatever the brokers hold, "" for none."""
    told = world.facts & (COMMIT_TOLD | ROLLBACK_TOLD)
    state = transaction(world.chosen).state
    if told == COMMIT_TOLD | ROLLBACK_TOLD:
        return "G8 no silent outcome: the transaction was told committed, and told rolled back"
    if told == COMMIT_TOLD and state == ROLLED_BACK:
        return "G2 agreed: told committed, and its ROLLBACK is stable"
    if told == ROLLBACK_TOLD and state == COMMITTED:
        return "G2 agreed: told rolled back, and its COMMIT is stable"
    return ""


def broken_by_broker(world: World, broker: Broker) -> str:
    """The promise that is broken by what one broker holds, or would do if it were promoted now; "" for none."""
    if not broker.listed or wiped(broker):
        return ""
    if broker.part:
        return "G7 ready means promotable: {b} is listed and holds a part"
    log = broker.log[: broker.synced]
    chosen = world.chosen
    if same_prefix(log, chosen) < len(chosen):
        return "G4 durable: {b} is listed and lacks a record that was stable"
    tx = transaction(log)
    if world.facts & COMMIT_TOLD and (tx.state not in (CLOSED, COMMITTED) or no_stands(broker)):
        return "G4 durable: {b} may be promoted and would not commit what was told committed"
    if world.facts & ROLLBACK_TOLD and tx.state in (CLOSED, COMMITTED):
        return "G2 agreed: {b} may be promoted and would commit what was told rolled back"
    if broker.lacks & (B | C) and transaction(chosen).state == COMMITTED:
        return "G1 atomic: {b} is listed and holds half of a committed transaction"
    if broker.filling is not None and not _right(world, broker):
        return "G1 atomic: {b} is listed and its queues will not be what the log says"
    return ""


def _right(world: World, broker: Broker) -> bool:
    """Whether the queues of ``broker`` are what ``chosen`` says when it has applied all of that."""
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
