"""A turn that is not asked for, though it is due."""

from __future__ import annotations

from functools import partial

from tests.simulator.levels_kit import declare
from tests.simulator.scenario import Scenario
from tests.simulator.tampering.tampering import tampering

complaint = partial(tampering, "checkers/turns")


@complaint("turns", "may answer up to")
def an_acknowledgement_ends_no_turn(group: Scenario) -> None:
    primary = group.primary.ha.primary
    assert primary is not None
    primary.due_after = lambda message: False  # type: ignore[method-assign]
    declare(group.hand(), "q")


@complaint("turns", "has left something for later")
def a_flush_is_forgotten(group: Scenario) -> None:
    group.until("quiet", lambda: not group.primary.turns.left)

    def leave() -> bool:
        group.primary.turns.left, group.primary.turns.waking = True, False
        return False

    group.cluster.world.at(0, group.primary.run, leave)
    group.until("found", lambda: False)
