"""Steps that a primary does by itself, at once, whenever it has learnt something: the end of its turn.

The stable position is found (Primary.stable_offset), applied (Applying.apply_prepare: the place of the decision), and the
role becomes active (Primary._consider_active). Doing this at the first possible moment covers every later one: that the turn
ended late is the same as that what it rests on was learnt late.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.client_steps import answer_of
from tests.model.manager_steps import gone
from tests.model.records import (
    BARRIER,
    CLOSED,
    COMMIT,
    EPOCH,
    IN_DOUBT,
    NONE,
    OUTCOME,
    ROLLED_BACK,
    Tx,
    applied,
    epoch_of,
    kind_of,
    record,
    same_prefix,
    transaction,
)
from tests.model.rules import Rules
from tests.model.state import COMMIT_TOLD, PREPARED_TOLD, ROLLBACK_TOLD, Broker, Role, World


class Waits(NamedTuple):
    """Conditions that a primary's completions wait for.

    Attributes:
        members: how many it counts in its set, itself among them.
        held: the offset beyond which some listed or guarded broker holds them.
        lowest: what every listed one has acknowledged.
    """

    members: int
    held: int
    lowest: int


def settle(rules: Rules, world: World, primary: Broker, waits: Waits) -> tuple[World, Broker, str]:
    """End a turn of ``primary``.

    Returns:
        The world and the primary afterwards, and the promise that is broken, "" for none.
    """
    role = primary.role
    assert role is not None
    stable = _stable(rules, primary, role, waits)
    chosen, broken = _chosen(rules, world, primary, role, stable, waits)
    facts = world.facts
    if _decides(rules, primary, stable, waits):
        primary = primary._replace(log=(*primary.log, record(role.epoch, COMMIT)))
        role = role._replace(open=1)
        facts |= COMMIT_TOLD
    if not role.active and _is_active(rules, primary, role, stable, waits):
        role = role._replace(active=1)
    if role.active:
        facts |= _told(rules, primary, role, stable, facts)
    role = role._replace(stable=stable)
    return world._replace(chosen=chosen, facts=facts), primary._replace(role=role), broken


def _stable(rules: Rules, primary: Broker, role: Role, waits: Waits) -> int:
    """The stable position; it stays while the set is below the minimum and never goes back in an epoch (Primary.stable_offset)."""
    if waits.members < rules.bounds.min_insync and rules.bug != "minimum-not-asked":
        return role.stable
    held = primary.synced if rules.bug == "stable-when-synced" else waits.held
    return max(role.stable, min(primary.synced, held))


def _chosen(
    rules: Rules, world: World, primary: Broker, role: Role, stable: int, waits: Waits
) -> tuple[tuple[int, ...], str]:
    """The log that has ever been stable, now that this primary takes its own for stable up to ``stable``."""
    chosen = world.chosen
    if stable == role.stable:
        return chosen, ""
    shared = same_prefix(primary.log[:stable], chosen)
    if shared < stable and shared < len(chosen):
        return chosen, "G2 agreed: two records were taken for stable at the same place of the log"
    if shared == stable:
        return chosen, ""
    broken = ""
    if waits.members < rules.bounds.min_insync:
        broken = "G4 durable: taken for stable while the in-sync set is below min_insync"
    return primary.log[:stable], broken


def _decides(rules: Rules, primary: Broker, stable: int, waits: Waits) -> bool:
    """True if this is the moment at which the transaction is committed: its PREPARE is stable, nothing follows it."""
    tx = transaction(primary.log)
    if tx.state != CLOSED or tx.prepare <= primary.start or primary.sure == 2:
        return False  # undecided, as far as it knows, are only those that it has not applied
    if rules.bug == "decided-at-local-fsync" and waits.members >= rules.bounds.min_insync:
        return tx.prepare <= primary.synced
    return tx.prepare <= stable


def _is_active(rules: Rules, primary: Broker, role: Role, stable: int, waits: Waits) -> bool:
    """Every listed broker has acknowledged EPOCH, and all before it is decided (DESIGN 5, promotion step 8)."""
    first = primary.log.index(record(role.epoch, EPOCH)) + 1
    if rules.bug == "active-too-early":
        return primary.synced >= first
    enough = waits.members >= rules.bounds.min_insync
    return waits.lowest >= first and enough and applied(primary.log, stable, True, primary.start) >= first


def _told(rules: Rules, primary: Broker, role: Role, stable: int, known_facts: int) -> int:
    """The outcomes that clients are told when this much is stable and the primary is active."""
    tx = transaction(primary.log)
    ended_by_promotion = tx.state == ROLLED_BACK and not tx.prepare
    known = tx.state != ROLLED_BACK or tx.outcome <= stable
    known = known or (rules.bug == "active-too-early" and ended_by_promotion) or rules.bug == "rollback-ok-at-once"
    facts = ROLLBACK_TOLD if tx.state == ROLLED_BACK and known else 0
    if rules.bounds.branch:
        return facts | _told_manager(rules, primary, role, stable, known_facts, tx)
    for raw in primary.log[:stable]:
        if epoch_of(raw) == role.epoch and kind_of(raw) == OUTCOME:
            facts |= ROLLBACK_TOLD
        elif epoch_of(raw) == role.epoch and kind_of(raw) == BARRIER and known:
            facts |= answer_of(primary)
    return facts


def _told_manager(rules: Rules, primary: Broker, role: Role, stable: int, facts: int, tx: Tx) -> int:
    """prepare-ok when DTX_PREPARE is stable; of a branch that is not there, that it is not, behind a BARRIER."""
    told = 0
    barred = record(role.epoch, BARRIER) in primary.log[:stable]
    if tx.state == IN_DOUBT:
        enough = primary.synced if rules.bug == "prepared-at-local-fsync" else stable
        told = PREPARED_TOLD if tx.prepared <= enough else 0
    if barred and (tx.state == NONE or (tx.state == IN_DOUBT and rules.bug == "asked-while-recovering")):
        told |= gone(facts)
    return told
