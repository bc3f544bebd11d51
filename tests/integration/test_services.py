"""``scripts/services`` as people and scripts use it: what it prints, what it leaves, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.integration.broker_process import wait_until

pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).parents[2] / "scripts"


def services(*arguments: str) -> subprocess.Popen[str]:
    """The process of the script, as it runs once the environment is there."""
    command = [sys.executable, "-m", "service_tools", *arguments]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def test_servers_are_there_until_the_process_is_stopped(tmp_path: Path) -> None:
    with services("zookeeper", "--servers", "3", "--json", "--data", str(tmp_path)) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            assert (len(said["pids"]), said["data"]) == (3, str(tmp_path))
            assert sorted(path.name for path in tmp_path.iterdir()) == [
                "zookeeper-1",
                "zookeeper-2",
                "zookeeper-3",
                "zookeeper.pid",
            ]
            client = KazooClient(said["address"])
            client.start(30)
            client.create("/kept", b"1")
            client.stop()
            client.close()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for pid in said["pids"]:
        wait_until("its servers have ended", lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--data", "{file}/x"], 1, "scripts/services: [Errno 20] Not a directory: "),
        (["--tick-ms", "0"], 2, "'0' is no number of milliseconds from 1 to 99999"),
        (["--servers", "8"], 2, "invalid choice: 8"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with services("zookeeper", *(each.format(file=file) for each in arguments)) as process:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, told in errors, "Traceback" in errors) == (code, True, False), errors


def test_detached_servers_run_until_they_are_stopped(tmp_path: Path) -> None:
    """The command ends when the server is up; a second start there is refused; `stop` ends the server, and then finds none."""

    def done(*arguments: str) -> tuple[int, str, str]:
        with services(*arguments, "--data", str(tmp_path)) as process:
            out, errors = process.communicate(timeout=100)
            return process.returncode, out, errors

    tmp_path.chmod(0o711)
    code, out, errors = done("zookeeper", "--detach", "--json")
    try:
        assert (code, errors) == (0, "")
        said = json.loads(out)
        client = KazooClient(said["address"])
        client.start(30)
        client.stop()
        client.close()
        code, out, errors = done("zookeeper", "--detach")
        assert (code, out) == (1, "")
        assert f"zookeeper of {tmp_path} runs already, as process " in errors
    finally:
        code, out, errors = done("stop")
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"zookeeper \(process [0-9]+\) is stopped\n", out)
    assert not Path(f"/proc/{said['pids'][0]}").exists()
    assert done("stop") == (1, "", f"scripts/services: no servers run in {tmp_path}\n")
