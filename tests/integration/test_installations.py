"""An installation from this tree, in each form that it comes in, is whole, and works where this tree is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.cluster_process import free_ports

ROOT = Path(__file__).parents[2]
ROOMS = tuple(sorted(each.name for each in (ROOT / "understudy").iterdir() if each.is_symlink()))
OF_UNDERSTUDY = tuple(f"understudy/{name}" for name in ("__init__.py", "in_thread.py", "py.typed", "run_folder.py"))
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
BUILT_HERE = ("--no-deps", "--no-build-isolation")
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
def rooms() -> set[str]:
    """Every file that belongs into an installation, below ``understudy``."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", *ROOMS, *OF_UNDERSTUDY, cwd=ROOT)
    return {line.removeprefix("understudy/") for line in listed.splitlines() if (ROOT / line).exists()}


def source(folder: Path, *, links: bool) -> Path:
    """A copy of this tree; without ``links`` a small text stands in place of each, as ZIP archives have it."""
    copy = folder / "source"
    for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines():
        there, here = copy / name, ROOT / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_symlink() and not links:
            there.write_text(str(here.readlink()))
        elif here.is_symlink() or here.is_file():
            shutil.copy2(here, there, follow_symlinks=False)
    return copy


def from_zip(folder: Path) -> str:
    return shutil.make_archive(str(folder / "zip"), "zip", source(folder, links=False).parent, "source")


def from_tar(folder: Path) -> str:
    return shutil.make_archive(str(folder / "tar"), "gztar", source(folder, links=True).parent, "source")


def from_sdist(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("understudy-*.tar.gz")
    return found


def from_wheel(folder: Path) -> Path:
    run(*PIP, "wheel", *BUILT_HERE, "--wheel-dir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("understudy-*.whl")
    return found


def from_git(folder: Path) -> str:
    """A repository of its own: what is not committed here is to be in it."""
    copy = source(folder, links=True)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "all")):
        run(*git, *words, cwd=copy)
    return f"git+file://{copy}"


@pytest.mark.parametrize("made", [from_zip, from_tar, from_sdist, from_wheel, from_git])
def test_an_installation_has_every_file_of_the_rooms(
    made: Callable[[Path], str | Path], rooms: set[str], tmp_path: Path
) -> None:
    """And nothing at the top level but the package and its metadata."""
    target = tmp_path / "installed"
    run(*PIP, "install", *BUILT_HERE, "--no-compile", "--target", target, made(tmp_path), cwd=tmp_path)
    assert {each.name for each in target.iterdir() if each.suffix != ".dist-info"} == {"understudy", "bin"}
    package = target / "understudy"
    assert {str(each.relative_to(package)) for each in package.rglob("*") if each.is_file()} == rooms


def refused(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, timeout=300)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def test_an_installation_that_would_be_hollow_is_refused(tmp_path: Path) -> None:
    copy = source(tmp_path, links=False)
    install = (*PIP, "install", *BUILT_HERE, "--target", tmp_path / "installed")
    said = refused(*install, "--editable", copy, cwd=tmp_path)
    assert "understudy/broker, understudy/client, understudy/ha, " in said
    assert "no symbolic link to the room of that name" in said
    shutil.rmtree(copy / "replicator")
    said = refused(*install, copy, cwd=tmp_path)
    assert "lacks replicator/__init__.py" in said
    assert not (tmp_path / "installed" / "understudy").exists()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``understudy`` in a new environment that holds a wheel of a ZIP archive, what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv")
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv/bin/python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", from_zip(folder), cwd=folder)
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
