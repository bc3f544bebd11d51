"""SpaceWatch tells the core while the disk is nearly full, and once when it is not any more."""

from __future__ import annotations

import pytest

from understudy.broker.server.space_watch import SpaceWatch


class FakeReserve:
    low = False

    def check_space(self) -> bool:
        return self.low


@pytest.fixture
def told() -> list[str]:
    return []


def test_the_core_is_told_again_and_again_while_it_is_low(told: list[str]) -> None:
    """A backup passes it on, and its link may have been another one the last time."""
    reserve = FakeReserve()
    watch = SpaceWatch("/data", reserve, told.append)  # type: ignore[arg-type]
    watch.look()
    assert told == []
    reserve.low = True
    watch.look()
    watch.look()
    assert len(told) == 2
    assert "/data" in told[0]
    assert "below the reserve" in told[0]


def test_the_core_is_told_once_that_there_is_room_again(told: list[str]) -> None:
    reserve = FakeReserve()
    watch = SpaceWatch("/data", reserve, told.append)  # type: ignore[arg-type]
    reserve.low = True
    watch.look()
    reserve.low = False
    watch.look()
    watch.look()
    assert told[1:] == [""]
