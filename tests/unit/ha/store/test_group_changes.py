"""Changes of a group, as the history of a store tells them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from understudy.ha.store.coordination import GroupState, HistoryEntry
from understudy.ha.store.group_changes import change_text

FIRST = GroupState(epoch=1, primary="b1", members=("b1", "b2"), version=1, min_insync=1, founding=7)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epoch": 2, "primary": "b2", "members": ("b2",)}, "b2 promoted, after b1; b1 leaves the set"),
        ({"members": ("b1", "b2", "b3")}, "b3 joins the set"),
        ({"successor": "b2"}, 'successor "" -> "b2"'),
        ({"min_insync": 2}, "min_insync 1 -> 2"),
        ({"version": 2}, "written over, to settle an answer that was lost, or to see that the store answers"),
    ],
)
def test_a_change_is_told_in_words(changes: dict[str, Any], told: str) -> None:
    assert change_text(FIRST, attrs.evolve(FIRST, **changes)) == told


def test_a_founding_and_a_forced_epoch_are_told() -> None:
    assert change_text(None, FIRST) == "founded by b1"
    forced = attrs.evolve(FIRST, epoch=1_001, primary="b3", members=("b3",), forced=1_001)
    told = change_text(FIRST, forced)
    assert told.startswith("forced: b3 is the base, in-sync {b3}; before: GroupState(epoch=1, ")
    assert change_text(None, forced) == "forced: b3 is the base, in-sync {b3}; before: None"
    assert HistoryEntry(wall_ms=0, epoch=1_001, version=2, by="", what=told).is_forced
