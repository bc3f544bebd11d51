"""Finding out if the store has lost the group: views are doubted, the answer to a later read decides."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from understudy.ha.following.stored_group import StoredGroup, is_behind
from understudy.ha.store.coordination import Answer, Coordination, GroupState

KNOWN = GroupState(epoch=5, primary="b1", members=("b1", "b2"), version=12, min_insync=1, founding=7)
OLDER = attrs.evolve(KNOWN, epoch=4, version=9)


@pytest.mark.parametrize(
    ("shown", "behind"),
    [
        (KNOWN, False),
        (None, True),
        (OLDER, True),
        (attrs.evolve(KNOWN, version=11), True),
        (attrs.evolve(KNOWN, version=13), False),
        (attrs.evolve(KNOWN, epoch=6, version=1), False),
        (attrs.evolve(OLDER, founding=8), False),
    ],
)
def test_what_is_behind_a_known_state(shown: GroupState | None, behind: bool) -> None:
    assert is_behind(KNOWN, shown) is behind
    assert not is_behind(None, shown)


class Reads:
    def __init__(self) -> None:
        self.requests: list[int] = []

    def read(self, request: int) -> None:
        self.requests.append(request)


def watch() -> tuple[StoredGroup, Reads]:
    reads, numbers = Reads(), iter(range(1, 100))
    return StoredGroup(cast("Coordination", reads), lambda: next(numbers), "node /g"), reads


def test_a_late_view_is_no_loss() -> None:
    stored, reads = watch()
    assert stored.noticed(KNOWN, OLDER, 0)
    assert (stored.asked(1), stored.answered(Answer.DONE, KNOWN), stored.missing) == (True, True, "")
    assert reads.requests == [1]


@pytest.mark.parametrize("shown", [None, OLDER])
def test_a_read_that_is_behind_is_a_loss_until_a_read_is_not(shown: GroupState | None) -> None:
    stored, reads = watch()
    stored.noticed(KNOWN, shown, 0)
    assert stored.answered(Answer.DONE, shown)
    assert "node /g" in stored.missing
    assert stored.shown == shown
    assert stored.noticed(KNOWN, shown, 10)
    assert reads.requests == [1]  # the same view again says nothing new
    stored.tick(KNOWN, 1_000, 1_000)
    assert reads.requests == [1, 2]
    stored.noticed(KNOWN, KNOWN, 1_001)  # while a read is under way: that may be older than the view
    assert not stored.answered(Answer.DONE, shown)
    assert stored.missing
    assert (reads.requests, stored.asked(3)) == ([1, 2, 3], True)
    assert stored.answered(Answer.DONE, KNOWN)
    assert not stored.missing
    stored.tick(KNOWN, 100_000, 1_000)
    assert len(reads.requests) == 3


def test_a_lost_answer_is_asked_for_again() -> None:
    stored, reads = watch()
    stored.noticed(KNOWN, None, 0)
    assert not stored.answered(Answer.LOST, None)
    stored.tick(KNOWN, 999, 1_000)
    assert reads.requests == [1]
    stored.tick(KNOWN, 1_000, 1_000)
    assert reads.requests == [1, 2]
    assert not stored.asked(1)
