"""Killer: when the primary dies.

Two kinds of kill, told apart in the report. An ordinary one comes at a random moment when all brokers are ready. One in five comes
while a backup catches up: right after an ordinary kill, when the broker that died is linked again and not yet in the in-sync set.
Then the group has no broker to spare: who is promoted must wait for one of the other two, so this failover takes as long as the
start of a broker.

A moment of the second kind is short and may be missed; it is then tried again after the next ordinary kill, and after up to three
more than were asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Final

from understudy.client.demo.figures import ALL_READY, CATCHING_UP, Kill
from understudy.client.runs.broker_group import DOWN, BrokerGroup, BrokerView, GroupError
from understudy.client.runs.tally import Tally

CATCHING_UP_SHARE: Final = 5
ORDINARY_BEFORE: Final = 2
"""So many ordinary kills come before each of the other kind."""
PEACE_S: Final = (0.1, 0.6)
"""At least so long all brokers are ready before a kill, at random."""
LAST_PEACE_S: Final = 3.0
READY_TIMEOUT_S: Final = 30.0
REJOIN_TIMEOUT_S: Final = 20.0
SPARE_KILLS: Final = 3
TICK_S: Final = 0.01
LOOK_S: Final = 0.003


class Killer:
    """Kills the primary ``wanted`` times.

    Args:
        tally: says when clients are served again after a kill.
        on_kill: told each kill, after it.

    Attributes:
        kills: done so far.
    """

    def __init__(
        self, group: BrokerGroup, tally: Tally, random: Random, wanted: int, on_kill: Callable[[Kill], None]
    ) -> None:
        self.kills: list[Kill] = []
        self._group = group
        self._tally = tally
        self._random = random
        self._wanted = wanted
        self._catching_up_owed = wanted // CATCHING_UP_SHARE
        self._on_kill = on_kill

    async def run(self, end_s: float) -> None:
        """Kill, spread over the time until ``end_s`` (monotonic seconds), and go on after it if kills are owed.

        Raises:
            GroupError: the brokers did not get ready again.
        """
        ordinary = self._wanted - self._catching_up_owed
        began_s = time.monotonic()
        slot_s = max(0.0, end_s - LAST_PEACE_S - began_s) / max(1, ordinary)
        number = 0
        while number < ordinary or (self._catching_up_owed and number < ordinary + SPARE_KILLS):
            await asyncio.sleep(began_s + (number + self._random.random()) * slot_s - time.monotonic())
            victim = await self._kill_when_ready()
            number += 1
            done = len(self.kills) - number
            if self._catching_up_owed and number >= ORDINARY_BEFORE * (done + 1):
                await self._kill_while_catching_up(victim)
        if self.kills:  # the time may be over: the load must not end before the last failover
            await self._served_and("the last failover is over", lambda: True, READY_TIMEOUT_S)

    async def _kill_when_ready(self) -> str:
        while True:
            await self._served_and("all brokers are ready", lambda: self._group.all_ready, READY_TIMEOUT_S)
            await asyncio.sleep(self._random.uniform(*PEACE_S))
            primary = self._group.primary
            if self._group.all_ready and primary is not None:
                self._kill(primary, ALL_READY)
                return primary.broker

    async def _kill_while_catching_up(self, victim: str) -> None:
        """Kill the primary while ``victim``, who was killed before, catches up; or not at all, if it is in the set too soon.

        The primary itself is asked, every few milliseconds: what brokers announce comes up to 50 ms late, and by then the
        backup may be in the in-sync set.
        """
        group = self._group
        await self._served_and(
            f"{victim} is started again", lambda: group.views[victim].status != DOWN, REJOIN_TIMEOUT_S
        )
        until_s = time.monotonic() + REJOIN_TIMEOUT_S
        while (primary := group.primary) is not None and time.monotonic() < until_s:
            shown = (await group.page(primary.broker, "/status"))["lag"].get(victim)
            if shown is not None and shown["linked"]:
                if not shown["listed"]:
                    self._kill(primary, CATCHING_UP)
                    self._catching_up_owed -= 1
                return
            await asyncio.sleep(LOOK_S)

    async def _served_and(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition of the group, and for clients to be served since the last kill: else it has no failover time."""
        until = time.monotonic() + timeout_s
        while True:
            await self._group.wait_until(what, condition, max(TICK_S, until - time.monotonic()))
            if self._tally.served:
                return
            if time.monotonic() > until:
                raise GroupError(f"no commit within {timeout_s:g} s of the last kill; {self._group.describe()}")
            await asyncio.sleep(TICK_S)

    def _kill(self, primary: BrokerView, kind: str) -> None:
        assert primary.pid is not None
        kill = Kill(at_s=time.monotonic(), kind=kind, broker=primary.broker, pid=primary.pid, epoch=primary.epoch)
        self._tally.killed(kill.at_s)
        self._group.kill(primary)
        self.kills.append(kill)
        self._on_kill(kill)
