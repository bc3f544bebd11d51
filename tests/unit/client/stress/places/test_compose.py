"""A run on containers forgets no crash, judges every stop, and leaves nothing on the host. No docker is needed."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path
from typing import Any

import pytest

from understudy.client.stress.places import compose
from understudy.client.stress.places.compose import BROKERS, SERVERS, ComposePlace
from understudy.client.stress.places.place import PlaceError

pytestmark = pytest.mark.asyncio


RUN = compose._run


class FakeHost:
    """Carries out nothing, and answers as docker does.

    Attributes:
        commands: every command line.
        failing: a command line that contains one of these fails, after it was noted.
        ended: exit code by container; the others run.
        code_of_stop: with which a container ends on docker stop.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.failing: list[str] = []
        self.ended: dict[str, int] = {}
        self.code_of_stop = 0

    async def listens(self, host: str, port: int) -> None:
        self.commands.append(f"wait for {host}:{port}")

    async def run(self, *command: str, **_: object) -> str:
        line = " ".join(command)
        self.commands.append(line)
        if any(each in line for each in self.failing):
            raise PlaceError(f"{line} failed")
        name = command[-1]
        if command[:2] == ("docker", "inspect"):
            running = str(name not in self.ended).lower()
            values = {"{{.State.Running}}": running, "{{.State.ExitCode}}": str(self.ended.get(name, 0))}
            return " ".join(values.get(each, "0") for each in command[3].split())
        if command[:2] == ("docker", "kill"):
            if name in self.ended:
                raise PlaceError(f"{name} is not running")
            self.ended[name] = 137
        if command[:2] == ("docker", "stop") and name not in self.ended:
            self.ended[name] = self.code_of_stop
        if command[:2] == ("docker", "start"):
            self.ended.pop(name, None)
        if " ps -q " in line:
            return name
        return ""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    host = FakeHost()
    monkeypatch.setattr(compose, "_run", host.run)
    monkeypatch.setattr(compose, "_listens", host.listens)
    return host


@pytest.fixture
def place(host: FakeHost, tmp_path: Path) -> ComposePlace:
    return ComposePlace(tmp_path / "cluster")


async def test_an_orderly_run_has_nothing_unexpected(host: FakeHost, place: ComposePlace) -> None:
    async with place:
        await place.kill("b1")
        await place.start("b1")
        await place.stop("b2")
        await place.start("b2")
        await place.kill("b3")
    assert place.unexpected == {}
    assert "down --volumes" in host.commands[-1]


async def test_a_crash_is_counted_though_the_container_is_killed_and_started_afterwards(
    host: FakeHost, place: ComposePlace
) -> None:
    async with place:
        host.ended["b1"] = 74
        await place.kill("b1")
        await place.start("b1")
    assert place.unexpected == {"b1 ended by itself with code 74": 1}


async def test_docker_restarts_no_container_of_a_run(place: ComposePlace, tmp_path: Path) -> None:
    async with place:
        text = (tmp_path / "cluster" / "override.yml").read_text()
    assert text.count('restart: "no"') == len(BROKERS) + len(SERVERS)


async def test_a_bad_exit_code_of_a_stop_under_load_is_counted(host: FakeHost, place: ComposePlace) -> None:
    async with place:
        host.code_of_stop = 70
        await place.stop("b1")
        await place.start("b1")
    assert place.unexpected == {"b1 ended with code 70 when it was asked to stop": 1}


async def test_containers_are_removed_though_their_logs_cannot_be_had(host: FakeHost, place: ComposePlace) -> None:
    host.failing.append(" logs ")
    async with place:
        pass
    assert "down --volumes" in host.commands[-1]
    assert len(place.unexpected) == 1


async def test_one_rule_that_stays_keeps_no_other_from_being_removed(host: FakeHost, place: ComposePlace) -> None:
    async with place:
        await place.impair("drop", "b1", "b2")
        await place.impair("drop", "b2", "b1")
        await place.disconnect("b3")
        host.failing.append("-D DOCKER-USER -s 172.29.77.22")
        with pytest.raises(PlaceError, match=r"-D DOCKER-USER -s 172\.29\.77\.22"):
            await place.repair()
        assert [each for each in host.commands if "iptables -w -D DOCKER-USER -s 172.29.77.21" in each]
        assert [each for each in host.commands if "network connect" in each]
        host.failing.clear()
        await place.repair()  # it was kept
        assert "-D DOCKER-USER -s 172.29.77.22" in host.commands[-1]


async def test_a_broker_takes_its_ports_before_it_is_cut_off(host: FakeHost, place: ComposePlace) -> None:
    """One that was just started ends without its address, and nothing starts it again."""
    async with place:
        await place.disconnect("b1")
    cut = next(number for number, line in enumerate(host.commands) if "network disconnect" in line)
    assert host.commands[cut - 3 : cut] == [f"wait for 172.29.77.21:{port}" for port in (5672, 8672, 7672)]


async def test_it_is_waited_for_whoever_listens() -> None:
    served = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with served:
        await compose._listens("127.0.0.1", served.sockets[0].getsockname()[1])


async def test_without_docker_nothing_is_begun(host: FakeHost, place: ComposePlace) -> None:
    host.failing = ["docker info"]
    with pytest.raises(PlaceError, match="--compose needs Docker, or take --local: docker info failed"):
        async with place:
            pass
    assert host.commands == ["docker info"]
    with pytest.raises(PlaceError, match="no-such-program cannot be run: No such file or directory"):
        await RUN("no-such-program")


async def test_a_rule_whose_insertion_was_interrupted_is_removed(
    host: FakeHost, place: ComposePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: str, **__: object) -> str:
        raise asyncio.CancelledError

    async with place:
        with monkeypatch.context() as patch:
            patch.setattr(compose, "_run", interrupted)
            with pytest.raises(asyncio.CancelledError):
                await place.impair("drop", "b1", "b2")
        await place.repair()
        assert "iptables -w -D DOCKER-USER" in host.commands[-1]


async def test_a_cancelled_command_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = asyncio.Event()
    make = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await make(*command, **options)
        made.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    held = tmp_path / "held"  # open for writing while one of both lives
    os.mkfifo(held)
    task = asyncio.create_task(compose._run("/bin/sh", "-c", f"exec 3> {held}; sleep 600 & echo up >&3; wait"))
    with await asyncio.to_thread(held.open) as reader:
        assert await asyncio.to_thread(reader.readline) == "up\n"
        await made.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended, _, _ = await asyncio.to_thread(select.select, [reader], [], [], 30)
        assert ended
        assert reader.read() == ""
