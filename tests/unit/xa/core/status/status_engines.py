"""Engines of the status as one contract sees them: each keeps its records in a place that a crash may leave in several states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Protocol, Self

import attrs

from tests.unit.xa.core.status.model_queue import ModelLog, ModelQueue
from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.records_kit import entry, life, states
from understudy.xa.core.register.entry import Begun
from understudy.xa.core.status.durable_mark import SHARDS
from understudy.xa.core.status.journal_file import StatusFile, StatusStore
from understudy.xa.core.status.mirrored_file import MirroredFile
from understudy.xa.core.status.queue_file import QueueFile

SELDOM = 10**9
OFTEN = 300
"""Octets between two rotations."""
_runs = itertools.count(1)


class Medium(Protocol):
    """The place where an engine keeps its records."""

    on_change: Callable[[], None]
    syncs: int

    def after_crash(self) -> Iterator[Self]: ...


@attrs.frozen(kw_only=True)
class Engine:
    """One engine, with its options.

    Attributes:
        new: makes a place that holds nothing.
        on: opens the status of a shard in a place, for a process whose predecessor is dead; the status is not read yet.
        whole_syncs: a crash leaves all of a sync or none. Else it leaves any number of the records that were appended, in order.
        crashes: states that a short life must have tried, at least.
    """

    name: str
    new: Callable[[], Any]
    on: Callable[[Any, int], StatusStore]
    whole_syncs: bool
    crashes: int

    def __str__(self) -> str:
        return self.name


def _with_shards() -> CrashDisk:
    """A folder that says of each shard that it has a mark: a missing one is a loss."""
    disk = CrashDisk()
    disk.put(SHARDS, b"1\n")
    return disk


def _journal(name: str, new: Callable[[], CrashDisk], rotate_octets: int) -> Engine:
    def on(disk: CrashDisk, shard: int) -> StatusStore:
        return StatusFile(disk, shard, rotate_octets=rotate_octets)

    return Engine(name=name, new=new, on=on, whole_syncs=False, crashes=100)


def mirrored(name: str, new: Callable[[], CrashDisk] = CrashDisk, kind: type[MirroredFile] = MirroredFile) -> Engine:
    """The engine `mirrored`, or one that is derived from it."""
    return Engine(name=name, new=new, on=kind, whole_syncs=True, crashes=200)


def _queue(name: str, rotate_octets: int) -> Engine:
    def on(queue: ModelQueue, shard: int) -> StatusStore:
        queue.owner = None
        run = f"run {next(_runs)}"
        return QueueFile(ModelLog(queue, name=run), shard, run, rotate_octets=rotate_octets)

    return Engine(name=name, new=ModelQueue, on=on, whole_syncs=True, crashes=5)


IN_FILES = (
    _journal("journal", CrashDisk, SELDOM),
    _journal("journal with a list of shards", _with_shards, SELDOM),
    _journal("journal that rotates", CrashDisk, 2 * OFTEN),
    _journal("journal that rotates, with a list of shards", _with_shards, 2 * OFTEN),
    mirrored("mirrored"),
    mirrored("mirrored with a list of shards", _with_shards),
)
ENGINES = (*IN_FILES, _queue("queue", SELDOM), _queue("queue that rotates", OFTEN))


class Kills(Enum):
    """The syncs after which a process is killed."""

    NEVER = None
    EVEN = 0
    ODD = 1


@attrs.define
class Seen:
    """Findings of a life with crashes.

    Attributes:
        crashes: states that crashes left.
        wrong: of these, those whose entries no order of the engine's promises allows.
        rotations: of the status.
    """

    crashes: int = 0
    wrong: int = 0
    rotations: int = 0


def live(engine: Engine, group: int, pace: int, kills: Kills = Kills.NEVER) -> Seen:
    """Two transactions live side by side; at each change of the place a crash is tried, and each state that it may leave is opened.

    Args:
        engine: which.
        group: so many records are appended at once.
        pace: so many groups share a sync.
        kills: after which syncs the process is killed, and the next one goes on. After other syncs the process does what it does
            every second.
    """
    records = [record for pair in zip(life(1), life(2), strict=True) for record in pair]
    wanted = states(records)
    seen = Seen()
    appended = durable = 0

    def crash() -> None:
        allowed = (wanted[durable], wanted[appended]) if engine.whole_syncs else wanted[durable : appended + 1]
        for left in medium.after_crash():
            seen.crashes += 1
            found = engine.on(left, 0).open()
            seen.wrong += found not in allowed
            again = engine.on(left, 0)
            assert again.open() == found
            again.append([Begun(entry(99))])
            again.sync()
            assert engine.on(left, 0).open() == {**found, entry(99).gid: entry(99)}

    medium = engine.new()
    store = engine.on(medium, 0)
    store.open()
    medium.on_change = crash
    for number, at in enumerate(range(0, len(records), group), 1):
        some = records[at : at + group]
        appended += len(some)
        store.append(some)
        if number % pace:
            continue
        if store.wants_rotation:
            store.rotate(list(wanted[appended].values()))
            seen.rotations += 1
        store.sync()
        durable = appended
        turn = number // pace % 2
        if kills.value == turn:  # the next process finds what the system has in its cache
            store = engine.on(medium, 0)
            assert store.open() == wanted[appended]
        elif kills is not Kills.NEVER or turn == 0:
            store.tick()
    return seen
