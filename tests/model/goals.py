"""Goals that must stay reachable: progress, as far as "there is a way" states it.

``live``       from every state there is a way, without another fault, to all brokers up, listed and equal, with nothing undecided,
               and the manager of a branch answered if it has decided.
``available``  from every state with at most one broker down there is a way, without another fault and without a restart, to a
               primary that serves, with a set of at least ``min_insync`` whose members are all up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.model.manager_steps import is_answered
from tests.model.records import CLOSED, IN_DOUBT, OPEN, transaction
from tests.model.rules import PLAIN, RESTART, Rules
from tests.model.state import IDLE, Broker, World, view_of

LIVE: Final = "live"
AVAILABLE: Final = "available"
STEPS_ALLOWED: Final = {LIVE: RESTART, AVAILABLE: PLAIN}
"""The worst kind of step that the way may take."""


def is_asked(goal: str, brokers: Sequence[Broker]) -> bool:
    """True if the goal must be reachable from a state with these brokers."""
    return goal == LIVE or sum(not broker.up for broker in brokers) <= 1


def is_reached(goal: str, rules: Rules, world: World, brokers: Sequence[Broker]) -> bool:
    """True if a state of ``world`` and ``brokers`` fulfils the goal."""
    for broker in brokers:
        role = broker.role
        if role is not None and role.epoch == world.epoch and role.active:
            others = [other for other in brokers if other is not broker]
            tx = transaction(broker.log)
            if goal == LIVE:
                quiet = not role.busy and not role.open and tx.state not in (OPEN, CLOSED, IN_DOUBT)
                quiet = quiet and is_answered(world.facts)
                return quiet and broker.log == world.chosen and all(_equal(other, broker) for other in others)
            members = [other for other in others if _listed_by(other, role.epoch)]
            enough = len(members) + 1 >= rules.bounds.min_insync
            return enough and tx.state != CLOSED and all(member.up for member in members)
    return False


def _listed_by(broker: Broker, epoch: int) -> bool:
    view = view_of(broker, epoch)
    return view is not None and bool(view.listed)


def _equal(backup: Broker, primary: Broker) -> bool:
    """True if ``backup`` is ready: listed in the store and by its primary, and its equal."""
    assert primary.role is not None
    ready = backup.up and backup.listed and backup.link == primary.role.epoch and _listed_by(backup, primary.role.epoch)
    whole = not backup.part and backup.filling is None and not backup.flight and backup.campaign == IDLE
    return bool(ready and whole and backup.log == primary.log and backup.synced == len(backup.log))
