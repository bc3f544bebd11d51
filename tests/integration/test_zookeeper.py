"""Real brokers on real ZooKeeper servers: the primary is killed under load, and readiness is watched as users watch it."""

from __future__ import annotations

import json
import os
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.integration.cluster_process import running_cluster
from tests.integration.zookeeper_group import ROOT, Load, check, group_on, nodes_of, status, stored
from tests.stress.group import Group
from tests.stress.operator import order, run
from understudy.ha.trial.edge.zookeeper_servers import Ensemble

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("broken_connections")]

LONG_SESSION_S = 5.0
"""So long a broker that was killed is shown as alive: an operator's command must have ended by then."""


def test_a_backup_takes_over_under_load(ensemble: Ensemble, tmp_path: Path) -> None:
    hosts = f"{ensemble.hosts}/{tmp_path.name}"
    with group_on(ensemble, tmp_path) as group, nodes_of(hosts) as nodes:
        code, shown, _ = status(hosts, "--wait", "ready", "--timeout", "30s")
        assert code == 0
        assert "b1      primary  active" in shown
        assert sorted(nodes.get_children(f"{ROOT}/ready")) == sorted(nodes.get_children(f"{ROOT}/live"))
        with Load(group.ports) as load:
            for _ in range(2):
                load.goes_on()
                old = group.primary()
                old.kill()
                wait_until("another broker leads", lambda old=old: stored(nodes, "group")["primary"] != old.name)  # type: ignore[misc]
                load.goes_on()
                code, _, errors = status(hosts, "--expect", "ready")
                assert (code, old.name in errors) == (3, True)
                wait_until("its session has ended", lambda old=old: nodes.exists(f"{ROOT}/live/{old.name}") is None)  # type: ignore[misc]
                assert nodes.exists(f"{ROOT}/ready/{old.name}") is None
                assert stored(nodes, f"brokers/{old.name}")["link"]
                old.spawn()
                code, shown, errors = status(hosts, "--wait", "ready", "--timeout", "60s", "--json")
                assert code == 0, errors
        check(group.ports, load)
        assert json.loads(shown)["epoch"] == stored(nodes, "group")["epoch"] == 3
        said = [entry["what"] for entry in json.loads(shown)["history"]]
        assert said[0] == "founded by b1"
        assert len([what for what in said if "promoted" in what]) == 2


def test_an_operator_hands_over_expels_and_admits(ensemble: Ensemble, tmp_path: Path) -> None:
    hosts = f"{ensemble.hosts}/{tmp_path.name}"
    with group_on(ensemble, tmp_path) as group, nodes_of(hosts) as nodes:
        former = group.primary().name
        leader = order(group, "step-down")["primary"]
        assert stored(nodes, "group")["primary"] == leader != former
        group.ready(*group.brokers)
        assert order(group, "expel", former)["barred"] == [former]
        assert [bar["broker"] for bar in stored(nodes, "group")["barred"]] == [former]
        assert former not in stored(nodes, "group")["members"]
        order(group, "admit", former)
        group.ready(*group.brokers)
        said = [entry["what"] for entry in json.loads(status(hosts, "--json")[1])["history"]]
        assert any(f'successor "" -> "{leader}"' in what for what in said), said
        assert any(what.startswith(f"{former} leaves the set; barred [] -> ") for what in said), said


def by_config(group: Group, *words: str, code: int = 0) -> str:
    """A command that finds the primary, or changes the group, by the store that a broker's file names."""
    return run(*words, "--config", str(group["b1"].config), "--json", code=code)


def test_an_operator_changes_the_store_itself_while_no_primary_runs(ensemble: Ensemble, tmp_path: Path) -> None:
    with (
        group_on(ensemble, tmp_path, session_s=LONG_SESSION_S) as group,
        nodes_of(f"{ensemble.hosts}/{tmp_path.name}") as nodes,
    ):
        primary = group.primary().name
        target, other = sorted({*group.brokers} - {primary})
        assert json.loads(by_config(group, "expel", target))["broker"] == primary
        assert json.loads(by_config(group, "admit", target))["broker"] == primary
        group.ready(*group.brokers)
        group.kill_all()
        assert "session_s" in by_config(group, "expel", target, code=1)  # the store shows it as alive for so long
        wait_until("all sessions have ended", lambda: not nodes.get_children(f"{ROOT}/live"))

        done = json.loads(by_config(group, "expel", target))
        assert (done["broker"], done["changed"], done["barred"]) == ("the coordination store", True, [target])
        held = stored(nodes, "group")
        assert (target in held["members"], [bar["broker"] for bar in held["barred"]]) == (False, [target])
        assert not json.loads(by_config(group, "expel", target))["changed"]
        assert "min_insync" in by_config(group, "expel", other, code=1)
        assert stored(nodes, "group") == held
        assert "b9" in by_config(group, "expel", "b9", code=1)

        group.start()
        group.ready(primary, other)
        assert group[target].row()["status"] != "ready"
        assert json.loads(by_config(group, "admit", target))["changed"]
        group.ready(*group.brokers)
        history = json.loads(status(f"{ensemble.hosts}/{tmp_path.name}", "--json")[1])["history"]
        assert [entry["by"] for entry in history if entry["what"].startswith(f"{target} leaves the set; barred")][
            -1
        ] == ""


@pytest.fixture
def two_cpus() -> Iterator[tuple[int, int]]:
    """Those that this process, and what it starts, may use meanwhile: as in a container."""
    usable = os.sched_getaffinity(0)
    assert len(usable) >= 2, "this test needs two CPUs"
    first, second = sorted(usable)[-2:]
    os.sched_setaffinity(0, {first, second})
    yield first, second
    os.sched_setaffinity(0, usable)


def cpus_of_java(parent: int) -> set[int]:
    """Where any thread of the one Java process among the children of a process may run."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (server,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    return {cpu for task in Path(f"/proc/{server}/task").iterdir() for cpu in os.sched_getaffinity(int(task.name))}


def test_a_cluster_with_a_server_of_its_own(tmp_path: Path, two_cpus: tuple[int, int]) -> None:
    """`understudy cluster --zookeeper embedded`: it is there for the brokers, not on the primary's CPU, and gone after them."""
    with running_cluster(tmp_path, "--zookeeper", "embedded", brokers=3) as cluster:
        cluster.ready()
        assert os.sched_getaffinity(cluster.primary()["pid"]) == {two_cpus[0]}
        assert cpus_of_java(cluster.process.pid) == {two_cpus[1]}
        section = tomllib.loads((cluster.data / "b2.toml").read_text())["coordination"]
        assert section["kind"] == "zookeeper"
        (hosts,) = section["hosts"]
        code, shown, errors = status(hosts, "--wait", "ready", "--json")
        assert code == 0, errors
        assert {row["broker"] for row in json.loads(shown)["brokers"]} == {"b1", "b2", "b3"}
    host, port = hosts.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
