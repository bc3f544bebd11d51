"""NodeDriver: a core hears that the disk is full before it takes new work, not at the next look of the housekeeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.unit.core.core_kit import Core
from understudy.broker.amqp.methods import QUEUE_DECLARE
from understudy.broker.config import parse
from understudy.broker.log.storage import RESERVE_NAME, ReserveState, StorageFullError
from understudy.broker.server.files.file_storage import DiskFile, FileStorage
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.turn import node_driver
from understudy.broker.server.turn.node_driver import NodeDriver
from understudy.testing.coordinator_kit.kit_client import AnyUser

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The housekeeping would find it out, too."""
    monkeypatch.setattr(node_driver, "TICK_S", 3600.0)


class FullStorage(FileStorage):
    """While it is ``full`` there is room for a segment only in place of the reserve."""

    full = False

    def free_bytes(self) -> int:
        return 0 if self.full else super().free_bytes()

    def create(self, name: str, size_bytes: int, *, zeroed: bool = True) -> DiskFile:
        if self.full and RESERVE_NAME in self.names():
            raise StorageFullError(f"no room for {name}")
        return super().create(name, size_bytes, zeroed=zeroed)


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[FullStorage]:
    storage = FullStorage(tmp_path)
    yield storage
    storage.close()


async def opened(storage: FullStorage) -> NodeDriver:
    """A driver whose core has written its EPOCH record, and so has its first segment."""
    toml = f'[broker]\ndata = "{storage.directory}"\n[journal]\nsegment_bytes = "64KiB"\nreserve_bytes = "1MiB"\n'
    driver = NodeDriver(parse(toml), storage, Plugins())
    await driver.open()
    while not driver.broker.role.answering:
        await driver.turned()
    return driver


async def test_a_core_that_starts_on_a_full_disk_refuses_new_work_from_the_first_on(storage: FullStorage) -> None:
    """The core used to take all work of its first second; more than there was room for ended it."""
    storage.full = True
    driver = await opened(storage)
    assert "below the reserve" in driver.broker.work.reason
    await driver.close("CONNECTION_FORCED", "the end")
    storage.full = False
    driver = await opened(storage)
    assert driver.broker.work.reason == "", "a core that is recovered anew finds that there is room"
    await driver.close("CONNECTION_FORCED", "the end")


class DriverCore(Core):
    """The core that a driver runs."""

    def __init__(self, driver: NodeDriver) -> None:
        assert driver.node is not None
        self.node = driver.node
        self.users = AnyUser()


async def test_a_core_hears_at_once_that_the_reserve_is_given_up(storage: FullStorage) -> None:
    driver = await opened(storage)
    assert driver.journal is not None
    assert driver.journal_driver is not None
    client = DriverCore(driver).client()
    client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {})
    await driver.turned()
    await driver.journal_driver.drain()
    assert driver.broker.work.reason == ""
    storage.full = True
    client.publish("q", bytes(100_000))  # more than a segment
    await driver.turned()
    await driver.journal_driver.drain()
    assert driver.journal.reserve.state is ReserveState.RELEASED
    await asyncio.sleep(0)
    assert "below the reserve" in driver.broker.work.reason
    await driver.close("CONNECTION_FORCED", "the end")
