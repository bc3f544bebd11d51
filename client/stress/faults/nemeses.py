"""Nemeses: the kinds of fault, by name. Each says what it strikes, how long it holds, and how it is healed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import Final

import attrs

from understudy.client.stress.places.place import Place

KILL_PRIMARY: Final = "kill-primary"

Heal = Callable[[], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Scene:
    """The facts that a nemesis is given when it strikes.

    Attributes:
        primary: the broker that leads.
        backups: the others.
        random: of this strike alone.
    """

    place: Place
    primary: str
    backups: Sequence[str]
    random: Random

    @property
    def all(self) -> list[str]:
        return [self.primary, *self.backups]

    def backup(self) -> str:
        return self.random.choice(self.backups)


@attrs.frozen
class Blow:
    """A strike that has been carried out: whom it hit, and what heals it."""

    targets: Sequence[str]
    heal: Heal


Strike = Callable[[Scene], Awaitable[Blow]]


@attrs.frozen(kw_only=True)
class Nemesis:
    """One kind of fault.

    Attributes:
        needs: what the place must be able to do.
        hold_s: from the strike to the healing, at random between the two.
        kills: it may kill the primary with SIGKILL.
        fails_over: the primary is gone for clients, so a failover follows.
    """

    name: str
    needs: str
    hold_s: tuple[float, float]
    strike: Strike
    kills: bool = False
    fails_over: bool = False


# -- processes -------------------------------------------------------------------------------------------------------


async def _kill(scene: Scene, targets: Sequence[str]) -> Blow:
    await asyncio.gather(*map(scene.place.kill, targets))
    return Blow(targets, lambda: _start(scene, targets))


async def _start(scene: Scene, targets: Sequence[str]) -> None:
    for target in scene.random.sample(list(targets), len(targets)):
        await scene.place.start(target)


async def _pause(scene: Scene, targets: Sequence[str]) -> Blow:
    async def resume() -> None:
        for target in targets:
            await scene.place.resume(target)

    for target in targets:
        await scene.place.pause(target)
    return Blow(targets, resume)


async def _stop(scene: Scene, target: str) -> Blow:
    await scene.place.stop(target)
    return Blow((target,), lambda: scene.place.start(target))


async def _kill_two(scene: Scene) -> Blow:
    """The primary and a backup, or both backups, at once."""
    return await _kill(scene, scene.random.sample(scene.all, 2))


# -- the coordination store ------------------------------------------------------------------------------------------


def _servers(scene: Scene, least: int, most: int) -> list[str]:
    return scene.random.sample(
        list(scene.place.stores), min(scene.random.randint(least, most), len(scene.place.stores))
    )


# -- disks -----------------------------------------------------------------------------------------------------------


async def _fill_disk(scene: Scene) -> Blow:
    target = scene.random.choice(scene.place.small_disks)
    await scene.place.fill_disk(target)
    return Blow((target,), lambda: scene.place.empty_disk(target))


# -- the network -----------------------------------------------------------------------------------------------------


def _impair(kind: str, *, both: bool, around_all: bool = False) -> Strike:
    async def strike(scene: Scene) -> Blow:
        victim = scene.random.choice(scene.all)
        others = [each for each in scene.all if each != victim]
        peers = others if around_all or scene.random.random() < 0.5 else [scene.random.choice(others)]
        outward = both or scene.random.random() < 0.5
        inward = both or not outward
        for peer in peers:
            if outward:
                await scene.place.impair(kind, victim, peer)
            if inward:
                await scene.place.impair(kind, peer, victim)
        arrow = "<->" if both else "->" if outward else "<-"
        return Blow((f"{victim} {arrow} {', '.join(peers)}",), scene.place.repair)

    return strike


async def _disconnect(scene: Scene, target: str) -> Blow:
    await scene.place.disconnect(target)
    return Blow((target,), scene.place.repair)


async def _cut_store(scene: Scene) -> Blow:
    """A broker hears nothing of the store, and the store nothing of it."""
    victim = scene.random.choice(scene.all)
    for server in scene.place.stores:
        await scene.place.impair("drop", victim, server)
        await scene.place.impair("drop", server, victim)
    return Blow((f"{victim} <-> the store",), scene.place.repair)


NEMESES: Final[dict[str, Nemesis]] = {
    each.name: each
    for each in (
        Nemesis(
            name=KILL_PRIMARY, needs="kill", hold_s=(0.1, 1.5), kills=True, fails_over=True,
            strike=lambda scene: _kill(scene, [scene.primary]),
        ),
        Nemesis(
            name="kill-backup", needs="kill", hold_s=(0.1, 1.5), strike=lambda scene: _kill(scene, [scene.backup()])
        ),
        Nemesis(name="kill-two", needs="kill", hold_s=(0.1, 1.5), kills=True, strike=_kill_two),
        Nemesis(
            name="kill-all", needs="kill", hold_s=(0.1, 1.0), kills=True, fails_over=True,
            strike=lambda scene: _kill(scene, scene.all),
        ),
        Nemesis(
            name="restart-primary", needs="stop", hold_s=(0.1, 1.0), fails_over=True,
            strike=lambda scene: _stop(scene, scene.primary),
        ),
        Nemesis(
            name="pause-primary", needs="pause", hold_s=(6.0, 12.0), fails_over=True,
            strike=lambda scene: _pause(scene, [scene.primary]),
        ),
        Nemesis(
            name="pause-backup", needs="pause", hold_s=(0.5, 9.0),
            strike=lambda scene: _pause(scene, [scene.backup()]),
        ),
        Nemesis(name="zk-kill", needs="store", hold_s=(1.0, 6.0), strike=lambda scene: _kill(scene, _servers(scene, 1, 1))),
        Nemesis(name="zk-pause", needs="store", hold_s=(1.0, 8.0), strike=lambda scene: _pause(scene, _servers(scene, 1, 2))),
        Nemesis(
            name="zk-kill-quorum", needs="store", hold_s=(2.0, 10.0),
            strike=lambda scene: _kill(scene, _servers(scene, 2, 3)),
        ),
        Nemesis(name="disk-full", needs="disk", hold_s=(2.0, 8.0), strike=_fill_disk),
        Nemesis(name="delay", needs="net", hold_s=(2.0, 6.0), strike=_impair("delay", both=True, around_all=True)),
        Nemesis(name="one-way", needs="cut", hold_s=(1.0, 9.0), strike=_impair("drop", both=False)),
        Nemesis(name="cut", needs="cut", hold_s=(1.0, 9.0), strike=_impair("drop", both=True)),
        Nemesis(name="store-cut", needs="store-cut", hold_s=(1.0, 9.0), strike=_cut_store),
        Nemesis(
            name="disconnect-primary", needs="disconnect", hold_s=(4.0, 10.0), fails_over=True,
            strike=lambda scene: _disconnect(scene, scene.primary),
        ),
        Nemesis(
            name="disconnect-backup", needs="disconnect", hold_s=(1.0, 9.0),
            strike=lambda scene: _disconnect(scene, scene.backup()),
        ),
        Nemesis(
            name="zk-disconnect", needs="disconnect", hold_s=(1.0, 9.0),
            strike=lambda scene: _disconnect(scene, _servers(scene, 1, 1)[0]),
        ),
        Nemesis(name="clog", needs="net", hold_s=(1.0, 9.0), strike=_impair("clog", both=True)),
    )
}  # fmt: skip


def possible(means: Collection[str]) -> list[str]:
    """The names of those that a place with such means can carry out."""
    return [name for name, nemesis in NEMESES.items() if nemesis.needs in means]


class Plan:
    """Which nemesis comes next, drawn from a seed.

    Each block has every kind once. If kill-primary is among them, it comes three times around each other kind.
    """

    KILLS_AROUND: Final = 3

    def __init__(self, random: Random, names: Sequence[str]) -> None:
        self._random = random
        self._names = names
        self._block: list[str] = []

    def next(self) -> Nemesis:
        if not self._block:
            self._block = self._drawn()
        return NEMESES[self._block.pop()]

    def _drawn(self) -> list[str]:
        random, kill = self._random, KILL_PRIMARY
        if kill not in self._names:
            return random.sample(self._names, len(self._names))
        others = [name for name in self._names if name != kill]
        block = [kill]
        for other in random.sample(others, len(others)):
            block += random.sample([other, *[kill] * self.KILLS_AROUND], 1 + self.KILLS_AROUND)
        return block
