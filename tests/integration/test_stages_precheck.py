"""A stage asks the broker before its database commits: below the minimum of in-sync brokers nothing is committed."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.integration.stages_waiting import until_found
from tests.stress.group import Group, running_group
from understudy.client.stages import Retry, Stages, sqlite
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.channel import TxChannel

pytestmark = [pytest.mark.integration]

WATCHED_S = 1.0


class Asked:
    """Questions of the worker to its broker, and the answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.questions = 0
        self.answers: list[str] = []
        ask = TxChannel.precheck

        async def precheck(channel: TxChannel, *, brings: bool) -> str:
            self.questions += 1
            self.answers.append(await ask(channel, brings=brings))
            return self.answers[-1]

        monkeypatch.setattr(TxChannel, "precheck", precheck)


def rows(database: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as db:
        return db.execute("SELECT number FROM holds").fetchall()


async def _below_the_minimum(group: Group, folder: Path, asked: Asked) -> None:
    database = folder / "shop.db"
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE holds (number INTEGER)")
    (backup,) = group.backups()
    address = f"amqp://guest:guest@127.0.0.1:{group.primary().port}/"
    stages = Stages("shop", broker=address, database=sqlite(database))
    called = asyncio.Event()
    loop = asyncio.get_running_loop()

    @stages.stage("reserve", retry=Retry(1))
    def reserve(number: int, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO holds VALUES (?)", (number,))
        if not called.is_set():
            backup.kill()
            loop.call_soon_threadsafe(called.set)

    async with stages.begin():
        reserve.send(7)
    await stages.close()
    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await asyncio.wait_for(called.wait(), 60)
        await until_found("the broker is asked", lambda: asked.questions)
        await asyncio.sleep(WATCHED_S)  # no answer comes
        assert (rows(database), asked.answers) == ([], [])
        backup.spawn()
        # An attempt that fails would be the last one, so the wait was none.
        await until_found("the stage is done", lambda: rows(database) == [(7,)])
        worker.stop()
    assert rows(database) == [(7,)]


class PairOfTwo(Group):
    """Two brokers of which neither confirms anything alone."""

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 2) -> None:
        super().__init__(folder, extra, brokers=brokers)
        for each in self.brokers.values():
            text = each.config.read_text(encoding="utf-8")
            assert "min_insync = 1" in text
            each.config.write_text(text.replace("min_insync = 1", "min_insync = 2"), encoding="utf-8")


def test_below_the_minimum_a_stage_does_not_commit_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    with running_group(tmp_path, brokers=2, group_class=PairOfTwo) as group:
        asyncio.run(_below_the_minimum(group, tmp_path, asked))
