"""Steps of a branch's transaction manager, besides prepare, and its conclusions from answers.

It stands outside and forgets nothing: what it was told and what it has decided outlive every failover (facts of the world). It
decides once. What it has decided it says to whoever serves, an ex-primary too, again and again until it is answered. A decision is
no new work: it is taken below the minimum.

Sources: broker/core/branches/dtx_manager.py (commit, rollback, _not_there); docs/dtx.md, what holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.records import BARRIER, IN_DOUBT, NONE, OPEN, PREPARE, ROLLBACK, record, transaction
from tests.model.rules import PLAIN, Rules, Step, append
from tests.model.state import (
    COMMIT_TOLD,
    OPENED,
    PREPARED_TOLD,
    ROLLBACK_TOLD,
    SAYS_COMMIT,
    SAYS_ROLLBACK,
    Broker,
    World,
)

ANY_TOLD: Final = COMMIT_TOLD | ROLLBACK_TOLD


def steps(rules: Rules, world: World, primary: Broker) -> Iterator[Step]:
    """Steps in which the manager speaks to ``primary``."""
    role = primary.role
    if not rules.bounds.branch or role is None:
        return
    facts = world.facts
    tx = transaction(primary.log)
    if not role.active:
        if rules.bug == "asked-while-recovering" and tx.state == IN_DOUBT and _asks(facts):
            yield from _not_there(rules, world, primary, role.epoch)
        return
    prepared = tx.state == IN_DOUBT and tx.prepared <= role.stable  # else it is PREPARING here: 409 to a commit
    if prepared and facts & PREPARED_TOLD and not facts & SAYS_ROLLBACK:
        decided = world._replace(facts=facts | SAYS_COMMIT)
        yield Step("the manager says commit: {b} appends PREPARE", PLAIN, decided, append(primary, PREPARE))
    if (tx.state == IN_DOUBT or (tx.state == OPEN and rules.bounds.rollback)) and not facts & SAYS_COMMIT:
        decided = world._replace(facts=facts | SAYS_ROLLBACK)
        yield Step("the manager says rollback: {b} appends ROLLBACK", PLAIN, decided, append(primary, ROLLBACK))
    if tx.state == NONE and _asks(facts):
        yield from _not_there(rules, world, primary, role.epoch)
    elif tx.state == NONE and rules.bounds.rollback and facts & OPENED and not facts & ANY_TOLD:
        # It has heard nothing since it opened the branch, and gives it up.
        decided = world._replace(facts=facts | SAYS_ROLLBACK)
        yield from _not_there(rules, decided, primary, role.epoch)


def _asks(facts: int) -> bool:
    """True if the manager has something to say or to ask, and was not answered."""
    return bool(facts & (PREPARED_TOLD | SAYS_COMMIT | SAYS_ROLLBACK)) and not facts & ANY_TOLD


def _not_there(rules: Rules, world: World, primary: Broker, epoch: int) -> Iterator[Step]:
    """A primary without the branch says so behind a BARRIER: it has not been replaced then (DtxManager._not_there)."""
    if rules.bug == "gone-at-once":
        told = world._replace(facts=world.facts | gone(world.facts))
        yield Step("the manager asks for the branch, {b} does not know it and says so: 404", PLAIN, told, primary)
    elif record(epoch, BARRIER) not in primary.log:
        text = "the manager asks for the branch, {b} does not know it and appends BARRIER"
        yield Step(text, PLAIN, world, append(primary, BARRIER))


def gone(facts: int) -> int:
    """The fact that the manager takes a 404 for: what it has said is done. If it has said nothing, the branch is lost."""
    return COMMIT_TOLD if facts & SAYS_COMMIT else ROLLBACK_TOLD


def is_answered(facts: int) -> bool:
    """True if the manager may forget the branch, if it has decided."""
    committed = not facts & SAYS_COMMIT or facts & COMMIT_TOLD
    return bool(committed and (not facts & SAYS_ROLLBACK or facts & ROLLBACK_TOLD))
