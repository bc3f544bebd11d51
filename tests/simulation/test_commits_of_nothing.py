"""A transaction whose messages go nowhere is committed when that is stable: what they found deleted may still be cut (G4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.scenario import NEVER_MS, Program, calls, scenario


@pytest.mark.parametrize(("change", "args"), [(calls.delete, ("q",)), (calls.unbind, ("q", "x", "q"))])
def test_commit_ok_does_not_rest_on_what_may_be_cut(change: Callable[..., Program], args: tuple[Any, ...]) -> None:
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        other = group.hand()
        other(calls.declare, "q")
        other(calls.declare_exchange, "x", "direct")
        other(calls.bind, "q", "x", "q")
        hand = group.hand(transactional=True)
        first = group.primary
        for backup in group.backups:
            group.cut(first, backup)
        order = other.begin(change, *args)
        group.run_ms(20)
        assert not order.over, "the backups know nothing of it"
        hand.publish("q", b"committed", exchange="" if change is calls.delete else "x")
        commit = hand.commit()
        group.run_ms(50)
        assert not commit.over
        group.replace_primary(group.backups[0])
        group.mend()
        first.start()
        group.ready()
        group.everywhere("q")
