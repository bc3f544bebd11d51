"""Supervisor: what it does when things come at the same time, and with who does not come back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from understudy.broker.server.exit_codes import ExitCode
from understudy.broker.server.supervisor import SupervisedBroker, Supervisor

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]  # processes


async def test_who_is_asked_to_stop_while_a_broker_is_being_started_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was not told, and killed 15 s later."""
    changes: list[dict[str, Any]] = []
    broker = SupervisedBroker(broker="b1", config=tmp_path / "b1.toml", log=tmp_path / "b1.log")
    supervisor = Supervisor([broker], restart=True, report=changes.append)

    async def start(_: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        supervisor._signalled()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await asyncio.create_subprocess_exec("sleep", "60", stdout=asyncio.subprocess.PIPE, stderr=log)

    monkeypatch.setattr(supervisor, "_start", start)
    began = time.monotonic()
    assert await supervisor.run() is ExitCode.OK
    assert time.monotonic() - began < 10
    assert [(change["event"], change["code"]) for change in changes] == [("exit", -15)]


STEADY = """echo '{"broker": "%s", "status": "active"}'; exec sleep 60"""


@pytest.mark.parametrize("was_there", [True, False])
async def test_who_was_there_and_cannot_come_back_takes_nobody_with_it(
    was_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the whole cluster: a broker that was killed, and whose start was then refused, say for a full disk."""
    changes: list[dict[str, Any]] = []
    seen = asyncio.Event()

    def report(change: dict[str, Any]) -> None:
        changes.append(change)
        seen.set()

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                seen.clear()
                await seen.wait()

    def ended(broker: str) -> list[int]:
        return [each["code"] for each in changes if each["event"] == "exit" and each["broker"] == broker]

    def steady(broker: str) -> bool:
        return any(each["event"] == "status" and each["broker"] == broker for each in changes)

    brokers = [
        SupervisedBroker(broker=name, config=tmp_path / name, log=tmp_path / f"{name}.log") for name in ("b1", "b2")
    ]
    supervisor = Supervisor(brokers, restart=True, report=report)
    started: list[asyncio.subprocess.Process] = []

    async def start(about: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        refused = about.broker == "b2" and (steady("b2") or not was_there)
        script = "sleep 0.2; exit 1" if refused else STEADY % about.broker
        process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=log)
        if about.broker == "b2":
            started.append(process)
        return process

    monkeypatch.setattr(supervisor, "_start", start)
    run = asyncio.ensure_future(supervisor.run())
    await until(lambda: steady("b1"))
    if was_there:
        await until(lambda: steady("b2"))
        started[0].kill()
        await until(lambda: ended("b2") == [-signal.SIGKILL, 1])
        assert not supervisor._stopping.is_set(), "it gave up on b2 when it reported that, and stopped b1"
        assert ended("b1") == []
        supervisor._signalled()
        assert await run is ExitCode.OK
    else:
        assert await run is ExitCode.REFUSED
    assert ended("b1") == [-signal.SIGTERM]
