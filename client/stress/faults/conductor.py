"""Conductor: strikes, heals, and waits until the group is well again, until enough was done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Final

import attrs

from understudy.client.runs.broker_group import GroupError
from understudy.client.runs.tally import Tally
from understudy.client.stress.faults.nemeses import Nemesis, Plan, Scene
from understudy.client.stress.faults.watch import Watch
from understudy.client.stress.places.place import Place

PEACE_S: Final = (0.2, 1.5)
"""All brokers are ready for so long before a strike."""
EARLY_SHARE: Final = 0.15
"""So many strikes do not wait until all brokers are ready: clients are served, and a broker may still be catching up."""
READY_S: Final = 60.0
"""Liveness: so long after the healing of a fault all brokers are ready, and clients are served."""


@attrs.frozen(kw_only=True)
class Fault:
    """One strike.

    Attributes:
        number: from 1.
        began_s: monotonic seconds, taken just before it.
        struck_s: when it was carried out: a process is dead, a container is paused.
        healed_s: when the healing was done.
        ready_s: when all brokers were ready again; None if another strike came first, or if they never were.
        primary, epoch: the broker that led just before.
        hits_primary: it is one of the targets.
        early: a broker was catching up when it came.
    """

    number: int
    kind: str
    targets: tuple[str, ...]
    began_s: float
    struck_s: float
    healed_s: float
    ready_s: float | None = None
    primary: str
    epoch: int
    hits_primary: bool
    kills: bool
    fails_over: bool
    early: bool


@attrs.frozen(kw_only=True)
class Goal:
    """When it is enough: after ``seconds``, or when the primary was killed ``kills`` times."""

    seconds: float | None = None
    kills: int | None = None


class Conductor:
    """Strikes one after the other.

    Args:
        tally: says when clients are served again.
        on_fault: told each fault, when it is healed.

    Attributes:
        faults: so far.
    """

    def __init__(
        self, place: Place, watch: Watch, tally: Tally, plan: Plan, random: Random, on_fault: Callable[[Fault], None]
    ) -> None:
        self.faults: list[Fault] = []
        self._place = place
        self._watch = watch
        self._tally = tally
        self._plan = plan
        self._random = random
        self._on_fault = on_fault

    @property
    def kills(self) -> int:
        """How often the primary was killed."""
        return sum(fault.kills and fault.hits_primary for fault in self.faults)

    async def run(self, goal: Goal) -> None:
        """Until the goal is reached and all is well.

        Raises:
            GroupError: the group was not well again in time, which is a violation of liveness.
        """
        began_s = time.monotonic()
        while not self._reached(goal, began_s):
            random = Random(self._random.getrandbits(64))  # noqa: S311  # the strike's own: how long it takes changes no other
            early = bool(self.faults) and random.random() < EARLY_SHARE
            if not early:
                await self._all_ready()
                await asyncio.sleep(random.uniform(*PEACE_S))
            await self._strike(self._plan.next(), random)
        await self._all_ready()

    def _reached(self, goal: Goal, began_s: float) -> bool:
        enough = goal.kills is not None and self.kills >= goal.kills
        late = goal.seconds is not None and time.monotonic() - began_s >= goal.seconds
        return enough or late

    async def _strike(self, nemesis: Nemesis, random: Random) -> None:
        await self._served()
        watch = self._watch
        await watch.wait_until("a broker is primary", lambda: watch.primary is not None, READY_S)
        primary = watch.primary
        assert primary is not None
        early = not watch.all_ready()
        backups = [name for name in watch.views if name != primary.broker]
        scene = Scene(place=self._place, primary=primary.broker, backups=backups, random=random)
        hold_s = random.uniform(*nemesis.hold_s)
        began_s = time.monotonic()
        blow = await nemesis.strike(scene)
        struck_s = time.monotonic()
        if nemesis.fails_over:
            self._tally.killed(struck_s)
        await asyncio.sleep(hold_s)
        await blow.heal()
        hits_primary = primary.broker in blow.targets
        fault = Fault(
            number=len(self.faults) + 1,
            kind=nemesis.name,
            targets=tuple(blow.targets),
            began_s=began_s,
            struck_s=struck_s,
            healed_s=time.monotonic(),
            primary=primary.broker,
            epoch=primary.epoch,
            hits_primary=hits_primary,
            kills=nemesis.needs == "kill",
            fails_over=nemesis.fails_over or (nemesis.needs == "kill" and hits_primary),
            early=early,
        )
        self.faults.append(fault)
        if not nemesis.fails_over:
            self._tally.killed(fault.healed_s)  # and clients must be served after it
        self._on_fault(fault)

    async def _served(self) -> None:
        until_s = time.monotonic() + READY_S
        while not self._tally.served:
            if time.monotonic() > until_s:
                raise GroupError(
                    f"no commit within {READY_S:g} s of the last fault, {self._last()}; {self._watch.describe()}"
                )
            await asyncio.sleep(0.01)

    async def _all_ready(self) -> None:
        await self._served()
        watch = self._watch
        healed_s = self.faults[-1].healed_s if self.faults else 0.0
        try:
            await watch.wait_until("all brokers are ready", lambda: watch.all_ready(healed_s), READY_S)
        except GroupError as error:
            raise GroupError(f"{error}; the last fault was {self._last()}") from None
        if self.faults and self.faults[-1].ready_s is None:
            self.faults[-1] = attrs.evolve(self.faults[-1], ready_s=time.monotonic())

    def _last(self) -> str:
        if not self.faults:
            return "none"
        last = self.faults[-1]
        return f"number {last.number}, {last.kind} of {', '.join(last.targets)}"
