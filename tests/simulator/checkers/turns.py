"""Turns: nothing that may be said waits for something else to happen first.

The invariant of `broker.core.life.turn.TurnEngine`, between any two events. Without it a broker is slow and not wrong: what it owes
goes out with the next tick of the clock, so no other checker sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.ledger import Violation

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode


def owes_no_turn(node: SimNode) -> None:
    """A turn is asked for if one is due, and a flush will come if something was left for one."""
    turns = node.turns
    if turns.asked:
        return
    broker = node.node.broker
    if broker.role.leading and broker.role.answering and _stable(node) > broker.log.stable:
        raise Violation("turns", f"{node.name} may answer up to {_stable(node)}, and no turn is asked for")
    if turns.left and not turns.waking:
        raise Violation("turns", f"{node.name} has left something for later, and nothing will come for it")


def _stable(node: SimNode) -> int:
    """As the primary would say now, and without any trace of the question."""
    primary = node.ha.primary
    if primary is None:
        return 0
    before = primary._stable
    stable = primary.stable_offset()
    primary._stable = before
    return stable
