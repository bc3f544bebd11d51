"""Options that cannot be are refused, with the option, the value and what is known."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from understudy.client.stress import stress
from understudy.client.stress.faults.conductor import Goal
from understudy.client.stress.faults.nemeses import NEMESES
from understudy.client.stress.places import local
from understudy.client.stress.wishes import WishError, Wishes, asked

OPTIONS: dict[str, Any] = {
    "place": "local", "seconds": 60.0, "kills": None, "seed": 1, "nemesis": "all", "workload": "bank", "clients": 12,
    "rate": 100.0, "libraries": "pika", "store": "file", "mutation": "",
}  # fmt: skip


def wishes(**options: Any) -> Wishes:
    return asked(**OPTIONS | options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nemesis": "kill-primary,earthquake"}, "there is no earthquake; there are kill-primary, kill-backup"),
        ({"nemesis": " , "}, "name at least one of kill-primary"),
        ({"nemesis": "zk-kill"}, "zk-kill cannot be done here, with --local --store file"),
        (
            {"nemesis": "pause-backup,kill-backup", "seconds": None, "kills": 2},
            "--kills 2: pause-backup, kill-backup kills no primary, so the run would not end: add one of kill-primary, kill-two",
        ),
        (
            {"workload": "casino"},
            "--workload casino: there is none of that name; there are bank, fifo, large-tx, dtx, deadletters",
        ),
        ({"libraries": "puka"}, "there is no puka; there are pika, aio-pika, kombu"),
        ({"store": "etcd"}, "there are file, zookeeper"),
        ({"mutation": "earthquake"}, "--mutation earthquake: there is none of that name; there are"),
        ({"place": "compose", "store": "file"}, "--compose: its store is zookeeper"),
        ({"place": "compose", "store": "", "mutation": "half-a-transaction"}, "brokers are those of the image"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WishError) as caught:
        wishes(**options)
    assert words in str(caught.value)


def test_faults_that_kill_no_primary_end_with_the_time() -> None:
    assert wishes(nemesis="pause-backup", kills=2).goal == Goal(seconds=60.0, kills=2)
    assert wishes(nemesis="pause-backup,kill-two", seconds=None, kills=2).goal == Goal(seconds=None, kills=2)


def test_without_docker_there_is_no_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(WishError, match="docker and docker-compose are not on PATH"):
        wishes(place="compose", store="")


def test_all_is_what_the_place_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_can_mount", lambda: False)
    names = wishes().nemeses
    assert {"kill-primary", "pause-primary", "cut", "delay"} <= set(names) < NEMESES.keys()
    assert not {"zk-kill", "store-cut", "disk-full", "disconnect-primary"} & set(names)
    assert {"zk-kill", "store-cut"} <= set(wishes(store="zookeeper").nemeses)


@pytest.mark.parametrize("both", [False, True])
def test_one_place_is_named(both: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        stress(local=both, compose=both)
    assert caught.value.exit_code == 2
    assert "one of --local and --compose" in capsys.readouterr().err
