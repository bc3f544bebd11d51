"""A core that has handed over is followed by one that goes on with what it held, on the same journal, without reading it."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.broker.config import parse
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.log import journal_recovery
from understudy.broker.message import Message
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process.garbage import GarbageCollector
from understudy.broker.server.turn import node_driver
from understudy.broker.server.turn.node_driver import NodeDriver

MESSAGES = 200
PROPERTIES = b"\x10\x00\x02"
"""delivery-mode 2."""


@pytest.fixture
def thawed() -> Iterator[None]:
    """The driver's collector has frozen what was alive."""
    yield
    gc.unfreeze()
    gc.enable()


def depths(driver: NodeDriver) -> dict[str, int]:
    assert driver.node is not None
    return {queue.name: queue.depth for queue in driver.node.state.queues.values()}


async def publish(driver: NodeDriver, count: int) -> None:
    node = driver.node
    assert node is not None
    [queue] = [queue for queue in node.state.topology.registry.queues() if queue.name == "q"]
    for _ in range(count):
        node.broker.batch.publish([queue], Message("", "q", PROPERTIES, os.urandom(500), True), None)
        await driver.turned()
    while node.state.log.applied < node.state.log.end:
        await driver.turned()


def recoveries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The broker of each recovery from a journal, as it is made. What a recovery fills is not kept: cores are to go."""
    made: list[str] = []

    def recover(*args: object, **more: object) -> object:
        made.append(str(args[1]))
        return journal_recovery.recover(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(node_driver, "recover", recover)
    return made


@pytest.mark.asyncio
@pytest.mark.usefixtures("thawed")
async def test_it_holds_the_same_and_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.broker.server.turn.node_driver.TICK_S", 3600.0)
    made = recoveries(monkeypatch)
    storage = FileStorage(tmp_path)
    toml = f'[broker]\ndata = "{tmp_path}"\n[journal]\nsegment_bytes = "64KiB"\nreserve_bytes = "1MiB"\n'
    driver = NodeDriver(parse(toml), storage, Plugins())
    driver.garbage = GarbageCollector(1 << 60)
    try:
        await driver.open()
        await serves(driver)
        declare(driver, "q")
        await publish(driver, MESSAGES)
        for round_ in range(1, 4):
            first, journal = driver.node, driver.journal
            assert first is not None
            gone = weakref.ref(first)
            first.broker.batch.frozen = True
            first.broker.role.leading = False
            ended = await driver.hand_on("NOT_PRIMARY", "b1 has handed over to b2")
            assert ended is first
            await driver.open(ended)
            assert driver.node is not first
            assert driver.journal is journal
            assert depths(driver) == {"q": MESSAGES * round_}
            await serves(driver)
            await publish(driver, MESSAGES)
            del first, ended
            driver.garbage.look(1_000.0 * round_)
            assert gone() is None, "the core before has gone"
        assert len(made) == 1
        assert driver.journal is not None
        assert driver.journal.statistics().rolls > 5, "the new core is asked for checkpoints"
        await driver.close("CONNECTION_FORCED", "the end")
        await driver.open()
        assert len(made) == 2
        await serves(driver)
        assert depths(driver) == {"q": 4 * MESSAGES}, "the journal says the same"
    finally:
        await driver.close("CONNECTION_FORCED", "the end")
        storage.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("thawed")
async def test_what_it_cannot_tell_the_journal_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.broker.server.turn.node_driver.TICK_S", 3600.0)
    made = recoveries(monkeypatch)
    storage = FileStorage(tmp_path)
    driver = NodeDriver(
        parse(f'[broker]\ndata = "{tmp_path}"\n[journal]\nreserve_bytes = "1MiB"\n'), storage, Plugins()
    )
    try:
        await driver.open()
        await serves(driver)
        declare(driver, "q")
        await publish(driver, 10)
        assert driver.node is not None
        driver.node.broker.role.leading = False
        driver.node.state.log.applied -= 1
        assert await driver.hand_on("NOT_PRIMARY", "b1 has handed over to b2") is None
        assert driver.journal is None
        await driver.open()
        await serves(driver)
        assert depths(driver) == {"q": 10}
        assert len(made) == 2
    finally:
        await driver.close("CONNECTION_FORCED", "the end")
        storage.close()


async def serves(driver: NodeDriver) -> BrokerNode:
    node = driver.node
    assert node is not None
    while not node.broker.role.answering:
        await driver.turned()
    return node


def declare(driver: NodeDriver, name: str) -> None:
    assert driver.node is not None
    driver.node.broker.declarations.declare(
        "/", name, durable=True, auto_delete=False, arguments={}, level=ReplicationLevel.ALL, owner=None
    )
