"""Partial: transactions of which a part was done, or which ended otherwise than their client was told.

A transaction takes messages and makes others. An effect is *in place* if what was made lies in its queue or was taken from there,
or if what was taken is gone. Rule (G1): all effects of a transaction are in place, or none are, whatever its client was told. Rule
(G4, G8): all of one that was told to be committed, none of one that was told to be rolled back.

A take leaves nothing behind that names its transaction. So the takes of a transaction that did not commit count only if something
that it made is there: otherwise the message is lost, and who lost it cannot be said.
"""

from __future__ import annotations

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.history import Transaction, place_of
from understudy.client.verdicts.violation import Kind, Violation


def partial(case: Case) -> list[Violation]:
    """No transaction is done in part."""
    found = []
    for tx in case.history.transactions.values():
        effects = _effects(case, tx)
        missing = [what for what, in_place in effects if not in_place]
        if 0 < len(missing) < len(effects):
            text = f"{tx.name} is done in part: of {len(effects)} effects {len(missing)} are missing ({missing[0]})"
            found.append(
                Violation(
                    kind=Kind.PARTIAL,
                    promise="G1",
                    text=text,
                    transaction=tx.name,
                    expected="all effects, or none",
                    found=f"without: {', '.join(missing)}",
                )
            )
    return found


def contradicted(case: Case) -> list[Violation]:
    """No transaction ended as a whole otherwise than its client was told."""
    found = []
    for tx in case.history.transactions.values():
        effects = [in_place for _, in_place in _effects(case, tx)]
        if not effects:
            continue
        if tx.committed and not any(effects):
            found.append(
                Violation(
                    kind=Kind.CONTRADICTED,
                    promise="G4",
                    text=f"{tx.name} was told to be committed, and nothing of it is there",
                    transaction=tx.name,
                    expected="committed",
                    found="rolled back",
                )
            )
        elif tx.rolled_back and all(effects):
            found.append(
                Violation(
                    kind=Kind.CONTRADICTED,
                    promise="G8",
                    text=f"{tx.name} was told to be rolled back, and all of it is there",
                    transaction=tx.name,
                    expected="rolled back",
                    found="committed",
                )
            )
    return found


def _effects(case: Case, tx: Transaction) -> list[tuple[str, bool]]:
    """Of each effect that can be told apart: what it is, and whether it is in place."""
    made = [(f"{m.id} in {m.queue}", case.filled(place_of(m))) for m in tx.makes if case.judged(m.queue)]
    if tx.committed or any(in_place for _, in_place in made):
        taken = [m for m in tx.takes if case.judged(m.queue)]
        return made + [(f"{m.id} out of {m.queue}", place_of(m) not in case.lying) for m in taken]
    return made
