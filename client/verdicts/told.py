"""Told: what clients were told of their transactions.

Rule (G8): a client learns one outcome of each transaction, ``committed`` or ``rolled back``, and never another. Rule (G4, G8): the
log says the same of it.
"""

from __future__ import annotations

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.history import COMMITTED, ROLLED_BACK
from understudy.client.verdicts.violation import Kind, Violation


def unresolved(case: Case) -> list[Violation]:
    """Every transaction has an outcome that its client knows, from the answer or by asking."""
    return [
        Violation(
            kind=Kind.UNRESOLVED,
            promise="G8",
            text=f"{tx.name} has no outcome",
            transaction=tx.name,
            expected="committed, or rolled back",
            found=tx.told[-1] if tx.told else "no answer",
        )
        for tx in case.history.transactions.values()
        if tx.unresolved
    ]


def told_twice(case: Case) -> list[Violation]:
    """No client was told both outcomes of a transaction."""
    return [
        Violation(
            kind=Kind.CONTRADICTED,
            promise="G8",
            text=f"{tx.name} was told to be committed, and to be rolled back",
            transaction=tx.name,
            expected="one outcome",
            found=", ".join(tx.told),
        )
        for tx in case.history.transactions.values()
        if COMMITTED in tx.told and ROLLED_BACK in tx.told
    ]


def contradicted_by_log(case: Case) -> list[Violation]:
    """The log has committed what a client was told to be committed, and nothing that one was told to be rolled back.

    A name that the log does not know counts as rolled back: a PREPARE that never became part of the log leaves no trace.
    """
    found: list[Violation] = []
    if case.log is None:
        return found
    for tx in case.history.transactions.values():
        if not tx.question or tx.unresolved:
            continue
        outcome = case.log.outcomes.get(tx.question)
        if tx.rolled_back and outcome == COMMITTED:
            found.append(
                Violation(
                    kind=Kind.CONTRADICTED,
                    promise="G8",
                    text=f"{tx.name} was told to be rolled back, and is committed",
                    transaction=tx.name,
                    expected=ROLLED_BACK,
                    found=COMMITTED,
                )
            )
        elif tx.committed and outcome != COMMITTED:
            found.append(
                Violation(
                    kind=Kind.CONTRADICTED,
                    promise="G4",
                    text=f"{tx.name} was told to be committed, and is {outcome or 'unknown to the log'}",
                    transaction=tx.name,
                    expected=COMMITTED,
                    found=outcome or "unknown to the log",
                )
            )
    return found
