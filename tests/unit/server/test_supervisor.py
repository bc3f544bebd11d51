"""Supervisor: what it does when things come at the same time."""

from __future__ import annotations

import asyncio
import time
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
