"""The promises of the ports in ``ha/store/coordination.py``, asked of each store: the file, the simulator's, ZooKeeper.

One broker asks at a time here, or several race; ``place.until`` lets time pass for whichever store it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import attrs
import pytest

from tests.simulator.sim_node import SimNode
from tests.simulator.sim_store import SESSION_MS, SimCoordination, SimStore
from tests.simulator.world import MS, World
from understudy.ha.store.coordination import (
    Answer,
    Bar,
    BrokerInfo,
    Coordination,
    Damage,
    GroupState,
    StoreAdmin,
    StoreChangedError,
)
from understudy.ha.store.edge.local import FileAdmin, FileCoordination
from understudy.ha.store.edge.stores import CoordinationDriver
from understudy.ha.store.edge.zookeeper.access import Access
from understudy.ha.store.edge.zookeeper.admin import ZooKeeperAdmin
from understudy.ha.store.edge.zookeeper.store import ZooKeeperCoordination
from understudy.ha.trial.edge.zookeeper_servers import Ensemble
from understudy.replicator.receiving.disk_claim import DiskClaim

pytestmark = pytest.mark.integration

LIMIT_S = 90.0
LONG_SESSION_S = 5.0
"""The loop stands still while a test does something else, which a store takes for a loop that hangs."""
FIRST = GroupState(epoch=1, primary="b1", members=("b1",), version=1, min_insync=1, founding=7)
SECOND = attrs.evolve(FIRST, members=("b1", "b2"), version=2)


def info(broker: str, **changes: Any) -> BrokerInfo:
    return BrokerInfo(**({"broker": broker, "link": f"{broker}:1", "amqp": f"{broker}:2"} | changes))


class Broker:
    """A broker of the group, as far as the store knows one: a port, and what is told to it."""

    def __init__(self) -> None:
        self.port: Coordination
        self.events: list[str] = []
        self.answers: dict[int, tuple[Answer, GroupState | None]] = {}
        self.view: tuple[GroupState | None, dict[str, BrokerInfo]] | None = None
        self.turns = 0
        self._requests = 0

    def group_changed(self, group: GroupState | None, brokers: dict[str, BrokerInfo]) -> None:
        self.view = (group, brokers)
        self.events.append("shown")

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        self.answers[request] = (answer, group)
        self.events.append(f"answer {request}")

    def turned(self) -> None:
        """A turn of the broker ends, with what it was told."""
        self.turns += 1

    def coordination_lost(self) -> None: ...
    def coordination_regained(self) -> None: ...

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def alive(self) -> set[str]:
        assert self.view is not None
        return {name for name, row in self.view[1].items() if row.alive}


class Place(Protocol):
    """One store, and brokers that open it."""

    def open(self, name: str) -> Broker: ...
    def close(self, name: str) -> None:
        """The process of the broker ends."""

    def until(self, holds: Callable[[], object]) -> None: ...
    def end(self) -> None: ...


class SimPlace:
    def __init__(self) -> None:
        self.world = World(1)
        self.store = SimStore(self.world)

    def open(self, name: str) -> Broker:
        broker = Broker()

        @attrs.define
        class Node:
            name: str
            incarnation: int

            def event(self, call: Callable[[Broker], None]) -> None:
                call(broker)

        node = cast("SimNode", Node(name, 1))
        broker.port = SimCoordination(self.store, node)
        self.store.nodes[name] = node
        self.store.renew(name)
        self.store.watch(node)
        self.world.at(100 * MS, self._renew, name)
        return broker

    def _renew(self, name: str) -> None:
        if name in self.store.nodes:
            self.store.renew(name)
            self.store.watch(self.store.nodes[name])
            self.world.at(100 * MS, self._renew, name)

    def close(self, name: str) -> None:
        del self.store.nodes[name]

    def until(self, holds: Callable[[], object]) -> None:
        assert self.world.run(self.world.now_us + 10 * SESSION_MS * MS, lambda: bool(holds()))

    def end(self) -> None: ...


class LoopPlace:
    """A store that is driven by a loop."""

    def __init__(self, make: Callable[[str, Broker, asyncio.TaskGroup], CoordinationDriver], admin: StoreAdmin) -> None:
        self.admin = admin
        self._make = make
        self._runner = asyncio.Runner()
        self._tasks = asyncio.TaskGroup()
        self._drivers: dict[str, CoordinationDriver] = {}
        self._runner.run(self._begin())

    async def _begin(self) -> None:
        await self._tasks.__aenter__()

    def open(self, name: str) -> Broker:
        broker = Broker()

        async def opened() -> CoordinationDriver:
            driver = self._make(name, broker, self._tasks)
            await driver.start()
            return driver

        self._drivers[name] = driver = self._runner.run(opened())
        broker.port = driver
        self.until(lambda: broker.view is not None)
        return broker

    def close(self, name: str) -> None:
        self._runner.run(self._drivers.pop(name).stop())

    def until(self, holds: Callable[[], object]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(LIMIT_S):
                while not holds():  # noqa: ASYNC110  # of several brokers, told by several threads
                    await asyncio.sleep(0.01)

        self._runner.run(wait())

    def end(self) -> None:
        for name in list(self._drivers):
            self.close(name)
        self._runner.close()


def file_place(folder: Path) -> LoopPlace:
    path = folder / "store.db"

    def make(name: str, broker: Broker, _: asyncio.TaskGroup) -> CoordinationDriver:
        return FileCoordination(path, "g", name, broker, broker.turned, poll_ms=10)

    return LoopPlace(make, FileAdmin(path, "g"))


def zookeeper_place(folder: Path, ensemble: Ensemble, session_s: float = LONG_SESSION_S) -> LoopPlace:
    access = Access(hosts=ensemble.hosts, chroot=f"/{folder.name}", session_s=session_s)

    def make(name: str, broker: Broker, tasks: asyncio.TaskGroup) -> CoordinationDriver:
        data = folder / name
        data.mkdir(exist_ok=True)
        return ZooKeeperCoordination(access, "g", name, data, broker, broker.turned, tasks)

    return LoopPlace(make, ZooKeeperAdmin(access, "g"))


@pytest.fixture(params=["file", "simulator", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made: Place
    match request.param:
        case "simulator":
            made = SimPlace()
        case "file":
            made = file_place(tmp_path)
        case _:
            made = zookeeper_place(tmp_path, request.getfixturevalue("ensemble"))
    yield made
    made.end()


@pytest.fixture(params=["file", "zookeeper"])
def real_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopPlace]:
    """Those that have commands, and answer in order: the simulator's answers overtake each other on purpose."""
    made = (
        file_place(tmp_path)
        if request.param == "file"
        else zookeeper_place(tmp_path, request.getfixturevalue("ensemble"))
    )
    yield made
    made.end()


def ask(place: Place, broker: Broker, what: str, *states: GroupState | None) -> tuple[Answer, GroupState | None]:
    """Make a request and wait for its answer."""
    number = broker.next_request()
    getattr(broker.port, what)(number, *states)
    place.until(lambda: number in broker.answers)
    return broker.answers[number]


def test_a_group_is_founded_once_and_changed_where_it_is_as_expected(place: Place) -> None:
    one, other = place.open("b1"), place.open("b2")
    assert ask(place, one, "read") == (Answer.DONE, None)
    assert ask(place, one, "replace", FIRST, SECOND) == (Answer.CONFLICT, None)
    assert ask(place, one, "found", FIRST) == (Answer.DONE, FIRST)
    assert ask(place, other, "found", attrs.evolve(FIRST, primary="b2", members=("b2",))) == (Answer.CONFLICT, FIRST)
    for wrong in (attrs.evolve(FIRST, epoch=2), attrs.evolve(FIRST, version=2), attrs.evolve(FIRST, founding=8)):
        assert ask(place, other, "replace", wrong, SECOND) == (Answer.CONFLICT, FIRST)
    assert ask(place, other, "replace", FIRST, SECOND) == (Answer.DONE, SECOND)
    assert ask(place, one, "replace", FIRST, attrs.evolve(FIRST, version=2)) == (Answer.CONFLICT, SECOND)
    assert ask(place, one, "read") == (Answer.DONE, SECOND)
    for broker in (one, other):
        place.until(lambda broker=broker: broker.view is not None and broker.view[0] == SECOND)  # type: ignore[misc]


def test_a_read_is_never_older_than_what_anybody_was_answered(place: Place) -> None:
    one, other = place.open("b1"), place.open("b2")
    held = FIRST
    ask(place, one, "found", held)
    for number in range(2, 12):
        writer, reader = (one, other) if number % 2 else (other, one)
        wanted = attrs.evolve(held, version=number)
        assert ask(place, writer, "replace", held, wanted) == (Answer.DONE, wanted)
        assert ask(place, reader, "read") == (Answer.DONE, wanted)
        held = wanted


def test_of_all_who_race_for_an_epoch_one_wins_it(place: Place) -> None:
    brokers = {name: place.open(name) for name in ("b1", "b2", "b3")}
    held = attrs.evolve(FIRST, members=("b1", "b2", "b3"))
    ask(place, brokers["b1"], "found", held)
    for epoch in range(2, 8):
        asked = {}
        for name, broker in brokers.items():
            asked[name] = number = broker.next_request()
            wanted = attrs.evolve(held, epoch=epoch, primary=name, version=held.version + 1)
            broker.port.replace(number, held, wanted)
        place.until(lambda asked=asked: all(number in brokers[name].answers for name, number in asked.items()))  # type: ignore[misc]
        answers = {name: brokers[name].answers[number] for name, number in asked.items()}
        (winner,) = [name for name, (answer, _) in answers.items() if answer is Answer.DONE]
        assert {group.primary for _, group in answers.values() if group is not None} == {winner}
        held = cast("GroupState", answers[winner][1])


def test_every_field_of_the_group_travels_and_goes(place: Place) -> None:
    """Also one that was added later: a default here is a test that lacks it."""
    one, other = place.open("b1"), place.open("b2")
    full = GroupState(
        epoch=3,
        primary="b1",
        members=("b1", "b2"),
        version=4,
        min_insync=2,
        founding=(1 << 63) - 1,
        damaged=(Damage("b2", "records 7 to 9: é"),),
        successor="b2",
        barred=(Bar("b3", "ann", "2026-01-01 00:00:00Z"),),
    )
    for field in attrs.fields(GroupState):
        if field.name != "forced":  # force writes that, below
            assert field.default is attrs.NOTHING or getattr(full, field.name) != field.default, field.name
    assert ask(place, one, "found", full) == (Answer.DONE, full)
    assert ask(place, other, "read") == (Answer.DONE, full)
    less = attrs.evolve(full, version=5, damaged=(), successor="", barred=())
    assert ask(place, other, "replace", full, less) == (Answer.DONE, less)
    assert ask(place, one, "read") == (Answer.DONE, less)


def test_what_a_broker_shows_is_seen_and_stays_when_it_is_gone(place: Place) -> None:
    one, other = place.open("b1"), place.open("b2")
    claim = DiskClaim(3, 17, 2**40)
    other.port.publish(info("b2", http="h:1", status="ready", position=2**40, blockers="queue é", claim=claim))
    place.until(lambda: one.view is not None and "b2" in one.view[1] and one.view[1]["b2"].alive)
    assert one.view is not None
    seen = attrs.evolve(one.view[1]["b2"], pid=0)
    assert seen == info("b2", http="h:1", status="ready", position=2**40, blockers="queue é", claim=claim)
    place.close("b2")
    place.until(lambda: "b2" not in one.alive())
    assert attrs.evolve(one.view[1]["b2"], pid=0) == attrs.evolve(seen, alive=False)

    again = place.open("b2")  # its claim stays until there is a new one
    again.port.publish(info("b2", status="joining"))
    place.until(lambda: one.view is not None and one.view[1]["b2"].status == "joining")
    assert (one.view[1]["b2"].claim, one.alive() >= {"b2"}) == (claim, True)
    anew = DiskClaim(4, 0, 1)
    again.port.publish(info("b2", status="ready", claim=anew))
    place.until(lambda: one.view is not None and one.view[1]["b2"].claim == anew)


def test_a_group_is_written_anew_over_exactly_what_the_store_shows(place: Place) -> None:
    one, other = place.open("b1"), place.open("b2")
    anew = attrs.evolve(SECOND, version=99)
    assert ask(place, one, "restore", FIRST, anew) == (Answer.CONFLICT, None)
    assert ask(place, one, "restore", None, FIRST) == (Answer.DONE, FIRST)
    assert ask(place, other, "restore", None, anew) == (Answer.CONFLICT, FIRST)
    assert ask(place, other, "restore", attrs.evolve(FIRST, min_insync=2), anew) == (Answer.CONFLICT, FIRST)
    assert ask(place, other, "restore", FIRST, anew) == (Answer.DONE, anew)
    assert ask(place, one, "read") == (Answer.DONE, anew)
    assert ask(place, one, "replace", anew, attrs.evolve(anew, version=100))[0] is Answer.DONE
    higher = attrs.evolve(anew, epoch=3, version=101)
    assert ask(place, one, "replace", attrs.evolve(anew, version=100), higher) == (Answer.DONE, higher)
    # The history has a higher epoch than what is to be written.
    assert ask(place, one, "restore", higher, attrs.evolve(anew, version=200)) == (Answer.CONFLICT, higher)


def test_no_group_is_founded_where_a_broker_holds_a_part_of_one(place: Place) -> None:
    one, other = place.open("b1"), place.open("b2")
    other.port.publish(info("b2", status="joining"))
    place.until(lambda: one.view is not None and "b2" in one.view[1])
    other.port.publish(info("b2", status="ready", claim=DiskClaim(3, 17, 40)))
    place.until(lambda: one.view is not None and one.view[1]["b2"].claim is not None)
    assert ask(place, one, "found", FIRST) == (Answer.CONFLICT, None)
    assert ask(place, one, "restore", None, FIRST) == (Answer.DONE, FIRST)


def test_answers_come_in_the_order_of_the_requests(real_place: LoopPlace) -> None:
    place = real_place
    one = place.open("b1")
    numbers = [one.next_request() for _ in range(30)]
    held = FIRST
    one.port.found(numbers[0], held)
    for number in numbers[1:]:
        if number % 3:
            wanted = attrs.evolve(held, version=held.version + 1)
            one.port.replace(number, held, wanted)
            held = wanted
        else:
            one.port.read(number)
    place.until(lambda: numbers[-1] in one.answers)
    assert [event for event in one.events if event != "shown"] == [f"answer {number}" for number in numbers]
    assert {answer for answer, _ in one.answers.values()} == {Answer.DONE}
    assert one.answers[numbers[-1]][1] == held
    assert one.events[0] == "shown", "the store is shown before anything is answered"
    assert one.turns >= len(one.events)


def test_commands_read_change_force_and_remember(real_place: LoopPlace) -> None:
    place, admin = real_place, real_place.admin
    assert (admin.read(), admin.history()) == ((None, {}), [])
    one = place.open("b1")
    ask(place, one, "found", FIRST)
    one.port.publish(info("b1"))
    place.until(lambda: one.view is not None and "b1" in one.view[1])
    group, brokers = admin.read()
    assert (group, brokers["b1"].alive, brokers["b1"].pid) == (FIRST, True, os.getpid())

    assert admin.replace(FIRST, SECOND) == SECOND
    place.until(lambda: one.view is not None and one.view[0] == SECOND)
    with pytest.raises(StoreChangedError, match="has changed meanwhile"):
        admin.replace(FIRST, SECOND)
    with pytest.raises(StoreChangedError, match="has changed meanwhile"):
        admin.force("b2", ("b2",), expected=FIRST)
    forced = admin.force("b2", ("b3", "b2"), seen_epoch=50, expected=SECOND, founding=9)
    assert (forced.primary, forced.members, forced.version, forced.founding) == ("b2", ("b2", "b3"), 3, 9)
    assert forced.forced == forced.epoch > 1_050
    assert admin.read()[0] == forced
    place.until(lambda: one.view is not None and one.view[0] == forced)
    place.close("b1")
    assert not admin.read()[1]["b1"].alive
    told = admin.history()
    assert [entry.is_forced for entry in told].count(True) == 1
    assert (told[-1].is_forced, told[-1].epoch, told[-1].by) == (True, forced.epoch, "")


def test_a_group_that_was_written_anew_is_recorded(real_place: LoopPlace) -> None:
    place, admin = real_place, real_place.admin
    one = place.open("b1")
    ask(place, one, "restore", None, FIRST)
    ask(place, one, "restore", FIRST, attrs.evolve(SECOND, version=99))
    first, second = admin.history()
    assert (first.by, first.epoch, second.version) == ("b1", 1, 99)
    assert first.what.startswith("written anew by b1, since the store showed no group")
    assert second.what.startswith("written anew by b1, since the store showed epoch 1, version 1")
