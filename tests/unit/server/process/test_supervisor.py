"""Supervisor: what it does when things come at the same time, and with who does not come back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from understudy.broker.server.process import supervisor as module
from understudy.broker.server.process.exit_codes import ExitCode
from understudy.broker.server.process.supervisor import SupervisedBroker, Supervisor

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


class Watch:
    """Notes what a supervisor reports, and lets a test wait for it."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self._seen = asyncio.Event()

    def report(self, change: dict[str, Any]) -> None:
        self.changes.append(change)
        self._seen.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self._seen.clear()
                with contextlib.suppress(TimeoutError):  # what it waits for may be an end, which is not reported
                    await asyncio.wait_for(self._seen.wait(), 0.2)

    def ended(self, broker: str) -> list[int]:
        return [each["code"] for each in self.changes if each["event"] == "exit" and each["broker"] == broker]

    def times_steady(self, broker: str) -> int:
        return sum(each["event"] == "status" and each["broker"] == broker for each in self.changes)

    def steady(self, broker: str) -> bool:
        return self.times_steady(broker) > 0


STEADY = """echo '{"broker": "%s", "status": "active"}'; exec sleep 60"""


@pytest.mark.parametrize("was_there", [True, False])
async def test_who_was_there_and_cannot_come_back_takes_nobody_with_it(
    was_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole cluster used to end when a broker was killed and its start was then refused, say for a full disk."""
    watch = Watch()
    brokers = [
        SupervisedBroker(broker=name, config=tmp_path / name, log=tmp_path / f"{name}.log") for name in ("b1", "b2")
    ]
    supervisor = Supervisor(brokers, restart=True, report=watch.report)
    started: list[asyncio.subprocess.Process] = []

    async def start(about: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        refused = about.broker == "b2" and (watch.steady("b2") or not was_there)
        script = "sleep 0.2; exit 1" if refused else STEADY % about.broker
        process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=log)
        if about.broker == "b2":
            started.append(process)
        return process

    monkeypatch.setattr(supervisor, "_start", start)
    run = asyncio.ensure_future(supervisor.run())
    await watch.until(lambda: watch.steady("b1"))
    if was_there:
        await watch.until(lambda: watch.steady("b2"))
        started[0].kill()
        await watch.until(lambda: watch.ended("b2") == [-signal.SIGKILL, 1])
        assert not supervisor._stopping.is_set(), "it gave up on b2 when it reported that, and stopped b1"
        assert watch.ended("b1") == []
        supervisor._signalled()
        assert await run is ExitCode.OK
    else:
        assert await run is ExitCode.REFUSED
    assert watch.ended("b1") == [-signal.SIGTERM]


@pytest.mark.parametrize("reached", ["ready", "catchup"])
@pytest.mark.parametrize("lacking", ["log", "process"])
async def test_a_broker_that_cannot_be_started_again_is_tried_again_and_takes_nobody_with_it(
    lacking: str, reached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor used to end, with all brokers that served, when no log file could be opened or no process be made."""
    watch = Watch()
    brokers = [
        SupervisedBroker(broker=name, config=tmp_path / name, log=tmp_path / f"{name}.log") for name in ("b1", "b2")
    ]
    supervisor = Supervisor(brokers, restart=True, report=watch.report)
    started: list[asyncio.subprocess.Process] = []
    lacks = False

    async def start(about: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        if lacks and lacking == "process":
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        script = STEADY % about.broker
        command = ("sh", "-c", script.replace("active", reached) if about.broker == "b2" else script)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
        if about.broker == "b2":
            started.append(process)
        return process

    monkeypatch.setattr(supervisor, "_start", start)
    run = asyncio.ensure_future(supervisor.run())
    await watch.until(lambda: run.done() or (watch.steady("b1") and watch.steady("b2")))
    log = tmp_path / "b2.log"
    lacks = True
    if lacking == "log":
        log.unlink()
        log.mkdir()
    started[0].kill()
    await watch.until(lambda: run.done() or len(watch.ended("b2")) >= 3)
    assert not run.done(), run
    assert watch.ended("b2")[:3] == [-signal.SIGKILL, ExitCode.INTERNAL, ExitCode.INTERNAL]
    assert watch.changes[-1]["restarts"] is True
    assert ("Is a directory" if lacking == "log" else os.strerror(errno.EAGAIN)) in watch.changes[-1]["log"]
    lacks = False
    if lacking == "log":
        log.rmdir()
    await watch.until(lambda: run.done() or watch.times_steady("b2") == 2)
    assert watch.ended("b1") == []
    supervisor._signalled()
    assert await run is ExitCode.OK


class Asked:
    """Stands in for the process of each broker: notes who is sent what, in order, and does what the test says on SIGTERM."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.brokers = {each.about.broker: each for each in supervisor._brokers}
        self.story: list[str] = []
        self.on_term: dict[str, Callable[[], None]] = {}
        for name, broker in self.brokers.items():
            send_signal = partial(self.sent, name)
            broker.process = cast(
                "asyncio.subprocess.Process", SimpleNamespace(returncode=None, send_signal=send_signal)
            )
            broker.told = {"role": "backup"}

    def sent(self, name: str, number: int) -> None:
        self.story.append(f"{name} {signal.Signals(number).name}")
        if number == signal.SIGTERM and name in self.on_term:
            self.on_term[name]()

    def leads(self, name: str, status: str = "active") -> None:
        self.brokers[name].told = {"role": "primary", "status": status}

    def quiet(self, name: str) -> None:
        self.story.append(f"{name} quiet")
        self.brokers[name].quiet.set()


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Supervisor, Asked]:
    names = ("b1", "b2", "b3")
    brokers = [SupervisedBroker(broker=name, config=tmp_path / name, log=tmp_path / f"{name}.log") for name in names]
    supervisor = Supervisor(brokers, restart=True, report=lambda _: None)
    supervisor._stopping.set()
    return supervisor, Asked(supervisor)


async def test_a_primary_that_hangs_keeps_the_others_from_nothing(
    asked: tuple[Supervisor, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging primary used to delay the stop by 15 s: a backup took over, and all were killed without being asked."""
    supervisor, brokers = asked
    monkeypatch.setattr(module, "HEARS_WITHIN_S", 0.05)
    brokers.leads("b1")
    brokers.on_term["b1"] = lambda: brokers.leads("b3")

    def stops_slowly() -> None:
        brokers.leads("b3", "stopping")
        asyncio.get_running_loop().call_later(0.2, brokers.quiet, "b3")

    brokers.on_term["b3"] = stops_slowly
    all_asked = asyncio.Event()
    brokers.on_term["b2"] = all_asked.set
    stopper = asyncio.ensure_future(supervisor._stop_when_asked())
    async with asyncio.timeout(30):
        await all_asked.wait()
    stopper.cancel()
    assert brokers.story == ["b1 SIGTERM", "b3 SIGTERM", "b3 quiet", "b2 SIGTERM"], (
        "who says that it stops is waited for"
    )


async def test_nobody_is_killed_who_was_not_asked_to_stop(
    asked: tuple[Supervisor, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, brokers = asked
    monkeypatch.setattr(module, "HEARS_WITHIN_S", 0.05)
    monkeypatch.setattr(module, "KILL_AFTER_S", 0.5)
    monkeypatch.setattr(module, "LAST_GRACE_S", 0.2)
    brokers.leads("b1")
    brokers.on_term["b1"] = lambda: brokers.leads("b1", "stopping")  # and it never gets there
    await supervisor._stop_when_asked()
    asked_first = ["b1 SIGTERM", "b2 SIGTERM", "b3 SIGTERM"]
    assert brokers.story == [*asked_first, "b1 SIGKILL", "b2 SIGKILL", "b3 SIGKILL"]


async def test_one_that_could_never_be_started_is_refused(tmp_path: Path) -> None:
    watch = Watch()
    broker = SupervisedBroker(broker="b1", config=tmp_path / "b1.toml", log=tmp_path / "none" / "b1.log")
    assert await Supervisor([broker], restart=True, report=watch.report).run() is ExitCode.REFUSED
    assert watch.ended("b1") == [ExitCode.REFUSED]
    assert "none/b1.log" in watch.changes[0]["log"]
