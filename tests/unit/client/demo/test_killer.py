"""When the demo's killer is done: no load may end before the last failover has a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import cast

from understudy.client.demo.killer import Killer
from understudy.client.runs.broker_group import BrokerGroup, BrokerView
from understudy.client.runs.tally import Tally


class FakeGroup:
    """Always ready; a kill changes nothing."""

    all_ready = True
    primary = BrokerView(broker="b1", pid=7, role="primary", status="active", epoch=1)

    async def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        assert condition()

    def kill(self, view: BrokerView) -> None: ...

    def describe(self) -> str:
        return ""


class FakeTally:
    """Clients are served again when they have been asked for three times after a kill."""

    def __init__(self) -> None:
        self.asked = 3

    def killed(self, at_s: float) -> None:
        self.asked = 0

    @property
    def served(self) -> bool:
        self.asked += 1
        return self.asked >= 3


def test_it_waits_for_the_last_failover_though_the_time_is_over() -> None:
    tally = FakeTally()
    killer = Killer(cast("BrokerGroup", FakeGroup()), cast("Tally", tally), Random(1), 1, lambda kill: None)
    asyncio.run(killer.run(time.monotonic()))
    assert len(killer.kills) == 1
    assert tally.asked == 3
