"""``understudy stages run``, and a worker in a thread: errors that come out of task groups within each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from understudy.client.stages import ConfigurationError, Stages
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.commands import run as commands
from understudy.client.stages.commands import running


async def refused(*_: Any) -> None:
    """Two slots whose login is refused at a reconnect, as a worker with a database runs them."""

    async def slot() -> None:
        raise ConfigurationError("the broker refuses the login: ACCESS_REFUSED")

    async with asyncio.TaskGroup() as outer:
        async with asyncio.TaskGroup() as inner:
            for _slot in range(2):
                inner.create_task(slot())
        outer.create_task(asyncio.sleep(0))


def shop() -> Stages:
    stages = Stages("shop", broker="amqp://nowhere/")

    @stages.stage("pay")
    def pay(order: int) -> None: ...

    return stages


def test_a_login_that_is_refused_at_a_reconnect_ends_the_command_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(commands.run)
    monkeypatch.setattr(commands, "load", lambda _: shop())
    monkeypatch.setattr(running, "run_here", lambda *given: asyncio.run(refused(*given)))
    result = CliRunner().invoke(app, ["shop:stages"])
    assert (result.exit_code, result.stderr) == (
        1,
        "understudy stages: the broker refuses the login: ACCESS_REFUSED\n",
    )


def test_a_worker_in_a_thread_raises_the_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "run", refused)
    worker = shop().run_in_thread()
    with pytest.raises(ConfigurationError, match="refuses the login"):
        worker.stop()
