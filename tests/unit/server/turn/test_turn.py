"""The turn of NodeDriver: when it is ended, and in which order it hands things out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from understudy.broker.config import parse
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.log.journal_gate import JournalPort
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.plugins.edge_plugin import EdgePlugin
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.sockets.client_session import ClientSession
from understudy.broker.server.turn import node_driver
from understudy.broker.server.turn.node_driver import NodeDriver

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick asks for a turn, too."""
    monkeypatch.setattr(node_driver, "TICK_S", 3600.0)


class Story:
    """Core, link and client of a driver; all note what is done to them."""

    def __init__(self, *, leading: bool, urgent: bool = False) -> None:
        self.done: list[str] = []
        self.urgent = urgent
        self.broker = SimpleNamespace(tick=lambda *_: None)
        self.role = SimpleNamespace(leading=leading, answering=leading)
        self.state = SimpleNamespace(log=SimpleNamespace(position="nowhere"))
        self.driver = NodeDriver(
            parse(""),
            cast("FileStorage", None),
            Plugins(cast("EdgePlugin", SimpleNamespace(flush=self.flush_links, tick=lambda _: None))),
        )
        self.driver.turns.node = cast("BrokerNode", self)

    # the core
    def answer(self) -> None:
        self.done.append("answer")

    def gather(self, flush: bool) -> bool:
        self.done.append("gather")
        return False

    def after_turn(self) -> None:
        self.done.append("after")

    # the edges
    def flush_links(self) -> None:
        self.done.append("links")

    def flush(self) -> None:
        self.done.append("client")

    def wake(self) -> None:
        self.driver.woken(cast("ClientSession", cast("Any", self)))


async def turned() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_backup_ends_its_turn_at_once_and_a_primary_when_all_has_arrived() -> None:
    backup = Story(leading=False)
    backup.driver.request_turn(at_once=True)
    assert backup.done == ["answer", "gather", "links", "after"]
    await turned()
    assert len(backup.done) == 4, "it has been ended once"
    backup.driver.request_turn()
    backup.driver.request_turn(at_once=True)
    assert len(backup.done) == 4, "one is due already, and this shares it"
    await turned()
    assert len(backup.done) == 8
    primary = Story(leading=True)
    primary.driver.request_turn(at_once=True)
    primary.driver.request_turn(at_once=True)
    assert primary.done == []
    await turned()
    assert primary.done == ["answer", "gather", "links", "after"]


@pytest.mark.parametrize(
    ("urgent", "order"),
    [
        (False, ["answer", "client", "gather", "links", "after"]),
        (True, ["answer", "gather", "links", "client", "after"]),
    ],
)
async def test_who_waits_is_written_to_first(urgent: bool, order: list[str]) -> None:
    story = Story(leading=True, urgent=urgent)
    story.wake()
    await turned()
    assert story.done == order


@pytest.mark.parametrize("urgent", [False, True])
async def test_a_client_that_takes_more_has_it_in_the_next_turn(urgent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client written to before the links used to wait for the next tick of the clock: 50 ms for each bound of its output."""
    story = Story(leading=True, urgent=urgent)
    monkeypatch.setattr(story, "flush", story.driver.request_turn)
    story.wake()
    await turned()
    await turned()
    assert story.done.count("answer") == 2
    story.driver.request_turn()
    await turned()
    assert story.done.count("answer") == 3


async def test_a_socket_that_cannot_be_written_is_no_crash_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(leading=True)
    crashes: list[str] = []
    monkeypatch.setattr(story.driver, "crashed", lambda event, _: crashes.append(event))
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))

    def flush() -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(story, "flush", flush)
    story.wake()
    await turned()
    assert [type(error) for error in seen] == [OSError]
    assert crashes == []
    story.driver.request_turn()
    await turned()
    assert story.done == ["answer", "answer", "gather", "links", "after"], "the next turn is as ever"


async def test_a_jump_of_the_wall_clock_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"now": 1_000, "wall": 1_795_000_000_000}
    monkeypatch.setattr(node_driver, "_now_ms", lambda: times["now"])
    monkeypatch.setattr(node_driver, "_wall_ms", lambda: times["wall"])
    driver = Story(leading=True).driver
    driver.node = BrokerNode("b1", driver.limits, bytes, expiry_clock=driver.expiry_clock)
    driver.node.open(cast("JournalPort", SimpleNamespace(append=lambda frame: None)), times["now"], times["wall"])
    driver.on_tick = lambda: times.update(now=times["now"] + 50, wall=times["wall"] + 50)
    driver.on_tick()
    with capture_logs() as lines:
        driver._tick()
        times["wall"] += 7_200_000
        driver._tick()
        driver._tick()
    (line,) = [line for line in lines if line["event"] == "the wall clock jumped"]
    assert line["log_level"] == "warning"
    assert (line["old"], line["new"], line["by_s"]) == ("2026-11-18T11:06:40.100Z", "2026-11-18T13:06:40.100Z", 7_200)
