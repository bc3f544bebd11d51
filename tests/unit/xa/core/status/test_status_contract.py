"""Contract of the status: one suite for the engines `journal`, `mirrored` and `queue`. Each has a file for what it alone has."""

from __future__ import annotations

import pytest

from tests.unit.xa.core.status.model_queue import ModelQueue
from tests.unit.xa.core.status.status_engines import ENGINES, IN_FILES, Engine, Kills, Medium, live
from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.records_kit import entry, life
from understudy.xa.core.errors import StatusFileError
from understudy.xa.core.register.entry import Begun
from understudy.xa.state_server import stores

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=str)


def test_each_engine_of_the_state_server_is_here() -> None:
    assert {engine.name.split()[0] for engine in ENGINES} == {*stores.ENGINES}


LIVES = {
    "shared syncs": (1, 4, Kills.NEVER),
    "a sync each": (2, 1, Kills.NEVER),
    "killed after odd syncs": (2, 1, Kills.ODD),
    "killed after even syncs": (2, 1, Kills.EVEN),
}


@each_engine
@pytest.mark.parametrize("lived", LIVES)
def test_a_crash_anywhere_leaves_what_was_durable_or_under_way(engine: Engine, lived: str) -> None:
    """Of a sync all or nothing, or a prefix in the order of the log. The next process goes on from there, and sees no loss."""
    seen = live(engine, *LIVES[lived])
    assert seen.wrong == 0
    assert seen.crashes > engine.crashes
    if "killed" not in lived:  # each start of the engine `queue` writes an image: it need not rotate
        assert bool(seen.rotations) == ("rotates" in engine.name)


@pytest.mark.parametrize("engine", IN_FILES, ids=str)
def test_a_crash_during_the_first_format_formats_anew(engine: Engine) -> None:
    """A queue that holds no image is refused: `test_queue_file`."""
    seen = 0

    def crash() -> None:
        nonlocal seen
        for left in medium.after_crash():
            seen += 1
            assert engine.on(left, 0).open() == {}

    medium = engine.new()
    medium.on_change = crash
    engine.on(medium, 0).open()
    assert seen > 10


@each_engine
def test_each_sync_point_costs_one_sync(engine: Engine) -> None:
    """However many groups are appended before it."""
    medium: Medium = engine.new()
    store = engine.on(medium, 0)
    store.open()
    before = medium.syncs
    for number in range(1, 11):
        for record in (Begun(entry(number)), *life(number)[1:3]):
            store.append([record])
        store.sync()
        assert store.durable == store.sequence
    assert medium.syncs - before == 10


def moved(medium: CrashDisk | ModelQueue) -> CrashDisk | ModelQueue:
    """The records of shard 0 where those of shard 1 belong."""
    if isinstance(medium, ModelQueue):
        return medium
    found = CrashDisk()
    for name in medium.names():
        if "-0." in name and not name.endswith(".mark"):
            found.put(name.replace("-0.", "-1."), medium.read(name))
    return found


@each_engine
def test_the_status_of_another_shard_is_refused(engine: Engine) -> None:
    medium = engine.new()
    store = engine.on(medium, 0)
    store.open()
    store.append(life(1)[:4])
    store.sync()
    with pytest.raises(StatusFileError, match="of shard 0, and"):
        engine.on(moved(medium), 1).open()
