"""Several programs on one transaction, with resource managers that know which branch is what. All is done step by step.

A program dies between two steps, or its link is cut, or the answer to a step is lost; the state server is started again from what
it has recorded. Afterwards recovery runs, and the resource managers tell whether all or nothing was committed.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from typing import Any

import attrs

from tests.unit.xa.rig import JOB, NOW_MS, hello
from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import RecoveryFailedError, StateServerLostError, XaError
from understudy.xa.core.manager.program import ProgramWork
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Step, Steps, Tell, Verb, VerbName
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.state import MAX_ATTEMPTS, StateCore
from understudy.xa.core.register.wire import Begin, Claim, Claimed, Enter, Ok, Reply, Request, Share, Welcome
from understudy.xa.core.xid import Xid, resource_of

RESOURCES = ["bank", "queues"]
GID = f"{1:064x}"
ALL = [*RESOURCES, "bank~1", "queues~1"]
"""The branches of the program that began, and of one that has joined."""


@attrs.define
class Manager:
    """A resource manager: branches to their state. An active one is gone with the session that works on it.

    Attributes:
        prepared: branches in doubt.
        active: branch to its session.
        started, committed: all that ever were.
    """

    prepared: set[Xid] = attrs.field(factory=set)
    active: dict[Xid, int] = attrs.field(factory=dict)
    started: set[Xid] = attrs.field(factory=set)
    committed: set[Xid] = attrs.field(factory=set)

    def call(self, verb: Verb, session: int, *, refuses: bool) -> Answer:
        xid = verb.xid
        if verb.name is VerbName.START:
            self.active[xid] = session
            self.started.add(xid)
        elif verb.name is VerbName.PREPARE:
            del self.active[xid]
            if refuses:
                return Answer(XaCode.RBDEADLOCK)
            self.prepared.add(xid)
            return Answer(XaCode.OK, proof="told later")
        elif verb.name is VerbName.OUTCOME:
            assert verb.proof == "told later"
            return Answer(XaCode.HEURCOM if xid in self.committed else XaCode.HEURRB)
        elif verb.name in (VerbName.COMMIT, VerbName.ROLLBACK):
            return self._completed(xid, session, commits=verb.name is VerbName.COMMIT)
        return OK

    def _completed(self, xid: Xid, session: int, *, commits: bool) -> Answer:
        holder = self.active.get(xid)
        if holder is not None and holder != session:
            return Answer(XaCode.RETRY)
        if holder is None and xid not in self.prepared:
            return Answer(XaCode.NOTA)
        self.active.pop(xid, None)
        self.prepared.discard(xid)
        if commits:
            self.committed.add(xid)
        return OK

    def ended(self, session: int) -> None:
        self.active = {xid: found for xid, found in self.active.items() if found != session}


class World:
    """The state server and the resource managers."""

    def __init__(self, shards: int = 1, max_attempts: int = MAX_ATTEMPTS) -> None:
        self.core = StateCore([{} for _ in range(shards)], max_attempts)
        self._max_attempts = max_attempts
        self.managers = {name: Manager() for name in RESOURCES}
        self.open = False
        self.alive: set[int] = set()
        self._numbers = itertools.count(1)

    def connection(self) -> int:
        number = next(self._numbers)
        self.alive.add(number)
        self.core.received(number, hello(), NOW_MS)
        return number

    def restart(self) -> None:
        shards = range(len(self.core._shards))
        images = [{one.gid: one for one in copy.deepcopy(self.core.image(shard))} for shard in shards]
        self.core = StateCore(images, self._max_attempts)
        self.alive.clear()

    def cut(self, connection: int) -> None:
        if connection in self.alive:
            self.alive.discard(connection)
            self.core.left(connection)

    def done(self, step: Step, connection: int, *, refuses: bool = False) -> Any:
        if isinstance(step, Verb):
            return self.managers[resource_of(step.resource)].call(step, connection, refuses=refuses)
        if isinstance(step, Tell):
            if connection not in self.alive:
                raise StateServerLostError("lost")
            return self.core.received(connection, step.request, NOW_MS).reply
        return None

    def recover(self) -> None:
        """All that waits, unless a session works on it, which is met at the next recovery."""
        connection = self.connection()
        with contextlib.suppress(RecoveryFailedError):
            while isinstance(reply := self.core.received(connection, Claim(early=True), NOW_MS).reply, Claimed):
                run(self, recover(reply.entry), connection)
        self.cut(connection)

    def check(self) -> bool:
        """Nothing is left, and all or nothing is committed; returns whether it is."""
        entries = [entry for shard in range(len(self.core._shards)) for entry in self.core.image(shard)]
        assert entries == []
        started = {(name, xid) for name, one in self.managers.items() for xid in one.started}
        committed = {(name, xid) for name, one in self.managers.items() for xid in one.committed}
        assert not any(one.prepared or one.active for one in self.managers.values()), self.managers
        assert committed in (set(), started), (committed, started - committed)
        return bool(committed)


def run(world: World, steps: Steps[Any], connection: int) -> Any:
    """All steps, one after the other."""
    try:
        step = next(steps)
        while True:
            try:
                answer = world.done(step, connection)
            except StateServerLostError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


class Program:
    """One program, a step at a time.

    Attributes:
        told: the name of the error that it ended with, or what it was told; "" while it works, "dead" if it was killed.
        refuses: its branch in `queues` is not prepared.
    """

    def __init__(self, world: World, *, joins: bool, ends: str, wait_ms: int = 1000) -> None:
        self.world = world
        self.connection = world.connection()
        self.refuses = ends == "refuses"
        self.told = ""
        self.trace: list[str] = []
        self._core = ProgramWork(GID, JOB) if joins else GlobalTransaction(GID, JOB, wait_ms)
        self._steps = self._life(ends)
        self._step: Step | None = None

    def _life(self, ends: str) -> Steps[str]:
        core = self._core
        if isinstance(core, ProgramWork):
            yield from core.enter(RESOURCES)
        else:
            yield from core.begin(RESOURCES)
            yield from core.share()
            self.world.open = True
        if ends == "raises":
            yield from core.rollback("raised")
            return "rolled back"
        if isinstance(core, ProgramWork):
            yield from core.vote()
            return "voted"
        outcome = yield from core.commit()
        return outcome.name

    def opens(self) -> None:
        """Go on until others may join."""
        while not self.world.open:
            self.advance()

    def ends(self) -> None:
        """Go on until it is told how it has ended."""
        while not self.told:
            self.advance()

    def advance(self, *, loses: bool = False) -> None:
        """One step; with `loses` its answer is lost, if it is one of the state server."""
        steps: Any = self._steps
        try:
            if self._step is None:
                self._step = next(steps)
            self.trace.append(self._step.label)
            refuses = self.refuses and self._step.label.startswith("prepare.queues")
            try:
                answer = self.world.done(self._step, self.connection, refuses=refuses)
                if loses and isinstance(self._step, Tell):
                    self.world.cut(self.connection)
                    raise StateServerLostError("lost")
            except StateServerLostError as error:
                self._step = steps.throw(error)
            else:
                self._step = steps.send(answer)
        except StopIteration as end:
            self._ended(end.value)
        except XaError as error:
            self._ended(type(error).__name__)

    def die(self) -> None:
        self._ended("dead")

    def _ended(self, told: str) -> None:
        self.told = told
        self.world.cut(self.connection)
        for manager in self.world.managers.values():
            manager.ended(self.connection)


def any_order(seed: int) -> tuple[World, list[Program]]:
    """Up to three programs, in an order and with accidents that the seed says, and their recovery."""
    chance = random.Random(seed)
    world = World(shards=chance.choice([1, 3]), max_attempts=1000)
    ends = ["", "", "", "", "raises", "refuses"]
    first = Program(world, joins=False, ends=chance.choice(ends), wait_ms=chance.choice([0, 200, 4000]))
    programs = [first]
    joins = chance.randrange(4)
    accidents = chance.choice([0, 0.01, 0.05])
    while working := [one for one in programs if not one.told]:
        if world.open and joins and chance.random() < 0.7:
            joins -= 1
            programs.append(Program(world, joins=True, ends=chance.choice(ends)))
        one = chance.choice([*working, *(one for one in working if one is not first)])
        happens = chance.random()
        if happens < accidents:
            one.die()
        elif happens < accidents * 2:
            world.cut(one.connection)
        elif happens < accidents * 2.2:
            world.restart()
        elif happens < accidents * 2.6:
            world.recover()
        else:
            one.advance(loses=chance.random() < accidents)
    world.recover()
    return world, programs


# -- requests without a program ---------------------------------------------------------------------------------------


def say(world: World, connection: int, request: Request) -> Reply:
    """One request of a connection, as the core answers it."""
    return world.core.received(connection, request, NOW_MS).reply


def entry(world: World) -> Entry:
    """The only one that is recorded."""
    (found,) = world.core.image(0)
    return found


def opened(max_attempts: int = MAX_ATTEMPTS) -> tuple[World, int]:
    """The connection of a program that has begun a transaction, which others may join."""
    world = World(max_attempts=max_attempts)
    first = world.connection()
    assert say(world, first, Begin(GID, RESOURCES)) == Ok()
    assert say(world, first, Share(GID)) == Ok()
    return world, first


def joined(max_attempts: int = MAX_ATTEMPTS) -> tuple[World, int, int]:
    """The connections of a program that has begun, and of one that has joined."""
    world, first = opened(max_attempts)
    second = world.connection()
    assert say(world, second, Enter(GID, RESOURCES)) == Welcome(1)
    return world, first, second
