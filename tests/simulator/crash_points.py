"""Which crash points of replication a death is at: CP-31 to CP-40 of the catalogue, told from what all brokers hold at that moment.

A sweep counts them (`minima`), so that nobody has to believe that its faults fall where it hurts. One death may be at several, for
several transactions. Only what is there is looked at; nothing of the run changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from understudy.ha.leading.primary import Primary

CRASH_POINTS = (*(f"CP-{number}" for number in range(31, 41)), "CP-20", "CP-32 branch", "CP-33 branch")


def points_of_death(node: SimNode, others: list[SimNode]) -> set[str]:
    """The crash points at which ``node`` dies, while ``others`` run."""
    primary = node.ha.primary
    last = {"CP-20"} if not others and node.node.state.prepared_branches() else set()
    if primary is None:
        return last | ({"CP-39"} if any(_voted(node, tx) for tx in node.node.state.transactions.values()) else set())
    backups = [other for other in others if other.name in primary.backups and primary.backups[other.name].listed]
    found: set[str] = last
    for tx in node.node.state.transactions.values():
        found.update(_undecided(node, primary, backups, tx))
    for tx_id in node.node.state.applying.owed:
        found.add("CP-36")  # what is applied was answered in the same turn
        found.update(_decided(backups, tx_id))
    return found


def points_of_step_down(node: SimNode) -> set[str]:
    """A primary that was stopped or cut off goes on, with transactions, and learns that it is fenced."""
    return {"CP-40"} if node.ha.primary is not None and node.node.state.transactions else set()


def points_of_refusal(node: SimNode) -> set[str]:
    """The primary ``node`` is about to roll back a transaction that a broker refuses, and that is closed."""
    return {"CP-38"} if _catches_up(node.ha.primary) else set()


def _catches_up(primary: Primary | None) -> bool:
    return primary is not None and any(not each.caught_up for each in primary.backups.values())


def _undecided(node: SimNode, primary: Primary, backups: list[SimNode], tx: TxBuffer) -> Iterator[str]:
    if tx.in_doubt:
        votes = sum(_voted(backup, backup.node.state.transactions.get(tx.tx_id)) for backup in backups)
        if backups and votes:
            yield "CP-33 branch" if votes == len(backups) else "CP-32 branch"
        return
    if tx.prepare is None:
        if tx.logged_events:
            yield "CP-31"
            ready = [each for each in primary.backups.values() if each.listed and each.link is not None]
            if any(each.since_ms > tx.opened_ms for each in ready) and not primary.in_sync.busy:
                yield "CP-37"
        return
    if _catches_up(primary):
        yield "CP-38"
    if tx.outcome_offset:
        if tx.commits:
            yield from _decided(backups, tx.tx_id)
        return
    votes = sum(_voted(backup, backup.node.state.transactions.get(tx.tx_id)) for backup in backups)
    if backups and votes == len(backups):
        yield "CP-33"
    elif votes:
        yield "CP-32"
    elif _voted(node, tx):
        yield "CP-34"  # what would be the decision, were it to lead again


def _decided(backups: list[SimNode], tx_id: int) -> Iterator[str]:
    """The primary has written COMMIT; who else has it?"""
    knows = sum(_has_outcome(backup, tx_id) for backup in backups)
    if not knows:
        yield "CP-34"
    elif knows < len(backups):
        yield "CP-35"


def _has_outcome(node: SimNode, tx_id: int) -> bool:
    tx = node.node.state.transactions.get(tx_id)
    return tx is None or tx.outcome_offset > 0


def _voted(node: SimNode, tx: TxBuffer | None) -> bool:
    """Its PREPARE, or DTX_PREPARE, is durable there, and no outcome follows."""
    if tx is None or tx.closing is None or tx.outcome_offset:
        return False
    return node.node.state.log.durable >= tx.closing_offset
