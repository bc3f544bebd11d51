"""The wheel that is built from this tree works where this tree is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.cluster_process import free_ports

ROOT = Path(__file__).parents[2]
PERSISTENT = pika.BasicProperties(delivery_mode=2)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    """Its output; without what leads back into this tree."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "UNDERSTUDY", "VIRTUAL"))
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``understudy`` in a new environment that holds the wheel, what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("understudy-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"understudy"}
    assert not [name for name in names if {"tests", "scripts"} & set(name.split("/")) or name.endswith(".toml")]
    venv.create(folder / "venv")
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv/bin/python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return folder / "venv/bin/understudy"


def test_three_brokers_of_the_wheel_take_a_transaction(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", cwd=tmp_path).startswith("understudy 0.")
    port = free_ports(3)
    command: list[str | Path] = [program, "cluster", "--brokers", "3", "--data", tmp_path / "data", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as cluster:
        try:
            deadline = time.monotonic() + 90
            while statuses(program, tmp_path) != ["active", "ready", "ready"]:
                assert cluster.poll() is None
                assert time.monotonic() < deadline, statuses(program, tmp_path)
                time.sleep(0.2)
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            channel = connection.channel()
            channel.tx_select()
            for queue in ("from", "to"):
                channel.queue_declare(queue, durable=True)
                channel.basic_publish("", queue, b"both or none", PERSISTENT)
            channel.tx_commit()
            connection.close()
            rows = brokers(program, tmp_path)
            assert [queue["ready"] for queue in rows[0]["queues"]] == [1, 1]
        finally:
            cluster.terminate()
            assert cluster.wait(60) == 0


def test_the_kit_for_coordinators_needs_the_wheel_alone(program: Path, tmp_path: Path) -> None:
    kit = ("-m", "understudy.testing.coordinator_kit")
    said = run(program.with_name("python"), *kit, "unordered", "--seeds", "1", "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in said.splitlines()]
    assert {row["passed"] for row in rows} == {True}
    assert "C-07" in {number for row in rows for number in row["requirements"]}


def brokers(program: Path, folder: Path) -> list[dict[str, Any]]:
    shown = json.loads(run(program, "status", "--data", folder / "data", "--json", cwd=folder))
    return sorted(shown["brokers"], key=lambda row: row["status"])


def statuses(program: Path, folder: Path) -> list[str]:
    return [row["status"] for row in brokers(program, folder)] if (folder / "data").exists() else []
