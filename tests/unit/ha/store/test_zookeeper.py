"""The session when kazoo gives up, and the store when answers and the loss of the connection arrive together."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import structlog
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler

from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, GroupState
from understudy.ha.store.edge.zookeeper import store as zookeeper_store
from understudy.ha.store.edge.zookeeper.access import Access
from understudy.ha.store.edge.zookeeper.group_node import GroupNode
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession
from understudy.ha.store.edge.zookeeper.store import ZooKeeperCoordination
from understudy.ha.store.nodes import Paths, encode_group
from understudy.ha.store.zookeeper_requests import Node, UnreachedError, check

LIMIT_S = 30.0
GROUP = GroupState(epoch=1, primary="b1", members=("b1",), version=1, min_insync=1, founding=7)


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["by an error", "refused"])
async def test_a_connection_that_ends_by_itself_begins_again(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, attempts, again = asyncio.get_running_loop(), [], asyncio.Event()

    def connect(_: ConnectionHandler, __: object) -> object:
        attempts.append(ends)
        if len(attempts) < 3:
            if ends == "by an error":
                raise UnicodeError("label empty or too long")
            return STOP_CONNECTING
        loop.call_soon_threadsafe(again.set)
        return STOP_CONNECTING

    monkeypatch.setattr(ConnectionHandler, "_connect_loop", connect)
    session = ZooKeeperSession(Access(hosts="zk:1", session_s=0.3), lambda _: None, lambda _: None, wait_s=1.0)
    session.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            await again.wait()
    finally:
        await session.stop()
    assert session.complaint == ("UnicodeError: label empty or too long" if ends == "by an error" else "")


@pytest.mark.asyncio
async def test_an_answer_may_be_dropped() -> None:
    """As where the one before is an error: nothing is left that asyncio or Python complains of."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    session = ZooKeeperSession(Access(hosts="zk:1"), lambda _: None, lambda _: None, wait_s=1.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        session.get("/group")
        session.children("/live")
        session.change(check("/"))
        gc.collect()
    assert (complaints, [str(each.message) for each in warned]) == ([], [])
    with pytest.raises(UnreachedError):
        await session.get("/group")


class FakeSession:
    """A session whose server holds one group; each answer comes when the test gives it."""

    def __init__(self, access: Access, connected: Any, changed: Any, *, wait_s: float) -> None:
        self.access, self.connected, self.changed, self.wait_s = access, connected, changed, wait_s
        self.is_connected = False
        self.session_id = 1
        self.complaint = ""
        self.asked: list[tuple[str, asyncio.Future[Any]]] = []

    def start(self) -> None:
        """Do nothing: the client connects when the test says so."""

    async def stop(self) -> None:
        """Nothing is left running."""

    def turn(self, connected: bool) -> None:
        self.is_connected = connected
        self.connected(connected)

    def _ask(self, what: str) -> Awaitable[Any]:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((what, answer))
        return answer

    def get(self, path: str, *, watch: bool = False) -> Awaitable[Any]:
        return self._ask(f"get {path}")

    def children(self, path: str, *, watch: bool = False) -> Awaitable[Any]:
        return self._ask(f"children {path}")

    def exists(self, path: str, *, watch: bool = False) -> Awaitable[Any]:
        return self._ask(f"exists {path}")

    def make_folder(self, path: str) -> Awaitable[Any]:
        return self._ask(f"make {path}")

    def change(self, *changes: Any) -> Awaitable[Any]:
        return self._ask(f"change {changes[0].path}")

    def answer(self) -> None:
        """Give the answer to the oldest request."""
        what, answer = self.asked.pop(0)
        verb, path = what.split()
        if verb == "get":
            owner = 1 if "/live/" in path else 0
            value = encode_group(GROUP, {}) if path.endswith("/group") else b"{}"
            answer.set_result(Node(value, 0, owner))
        else:
            answer.set_result(["b1"] if path.endswith("/live") else [])

    async def answer_until(self, what: str) -> None:
        """Answer all requests before this one, which is asked then, and not answered."""
        async with asyncio.timeout(LIMIT_S):
            while not (self.asked and self.asked[0][0].endswith(what)):
                if self.asked:
                    self.answer()
                await asyncio.sleep(0)


async def settled() -> None:
    """Each task runs until it waits for something that the test has to do."""
    for _ in range(20):
        await asyncio.sleep(0)


class Listener:
    def __init__(self) -> None:
        self.told: list[str] = []

    def group_changed(self, group: GroupState | None, brokers: dict[BrokerId, BrokerInfo]) -> None:
        self.told.append("changed")

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        self.told.append(answer.value)

    def coordination_lost(self) -> None:
        self.told.append("lost")

    def coordination_regained(self) -> None:
        self.told.append("regained")


@pytest.mark.asyncio
async def test_a_last_answer_does_not_regain_a_store_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_store, "ZooKeeperSession", FakeSession)
    listener = Listener()
    async with asyncio.TaskGroup() as tasks:
        store = ZooKeeperCoordination(Access(hosts="zk:1"), "g", "b1", tmp_path, listener, lambda: None, tasks)
        session: Any = store._session
        await store.start()
        session.turn(True)
        await session.answer_until("/group")
        session.answer()
        session.turn(False)  # before the task that waits for the answer runs
        await settled()
        assert listener.told == ["lost"]

        session.turn(True)
        await session.answer_until("/group")
        session.turn(False)
        session.turn(True)
        session.answer()
        await session.answer_until("/live")  # nothing was told, and everything is read again
        assert listener.told == ["lost"]
        await session.answer_until("/group")
        session.answer()
        await settled()
        assert listener.told == ["lost", "regained", "changed"]
        await store.stop()


@pytest.mark.asyncio
async def test_a_history_that_could_not_be_trimmed_is_trimmed_later() -> None:
    session: Any = FakeSession(Access(hosts="zk:1"), None, None, wait_s=1.0)
    node = GroupNode(session, Paths("g"), "b1")
    node.has_grown = True
    for reached in (False, True):
        trim = asyncio.ensure_future(node.trim_history())
        await settled()
        ((what, answer),) = session.asked
        assert what.startswith("children ")
        session.asked.clear()
        if reached:
            answer.set_result([])
            await trim
        else:
            answer.set_exception(UnreachedError("no answer within 1 s"))
            with pytest.raises(UnreachedError):
                await trim
        assert node.has_grown is not reached


@pytest.mark.asyncio
async def test_reasons_that_alternate_are_told_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_store, "ZooKeeperSession", FakeSession)
    now_s = 1_000.0

    class Clock:
        def time(self) -> float:
            return now_s

    async with asyncio.TaskGroup() as tasks:
        store = ZooKeeperCoordination(Access(hosts="zk:1"), "g", "b1", tmp_path, Listener(), lambda: None, tasks)
    store._loop = Clock()  # type: ignore[assignment]
    reasons = cycle(["zk1 refuses", "zk2 cannot be resolved", "zk3 is silent"])

    def told_in_s(seconds: int) -> int:
        nonlocal now_s
        with structlog.testing.capture_logs() as logs:
            for _ in range(5 * seconds):
                now_s += 0.2
                store._set_trouble(next(reasons))
        return sum(each["event"] == "coordination lost" for each in logs)

    assert told_in_s(124) in {6, 7}  # at once, then after 4, 8, 16, 32 and 60 s
    assert told_in_s(3_600) in {59, 60}
    store._set_trouble("")
    assert told_in_s(10) == 3  # at once, after 2 and 4 s
