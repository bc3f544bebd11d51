"""Three real brokers: they find each other, one leads, it is killed, nothing that was answered is gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROGRAM, get, leaks_of_clients, remove_journals, wait_until
from tests.integration.cluster_process import Cluster, free_ports, running_cluster

pytestmark = pytest.mark.integration

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def calm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """For tests that leave it as it is: its first broker leads."""
    with running_cluster(tmp_path_factory.mktemp("calm")) as running:
        yield running


def commit(cluster: Cluster, number: int, queues: tuple[str, ...] = ("a", "b")) -> None:
    connection = cluster.connect()
    channel = connection.channel()
    for queue in queues:
        channel.queue_declare(queue, durable=True)
    channel.tx_select()
    for queue in queues:
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    channel.tx_commit()
    connection.close()


def bodies(cluster: Cluster, queue: str) -> list[int]:
    connection = cluster.connect()
    channel = connection.channel()
    got = []
    while (each := channel.basic_get(queue))[0] is not None:
        got.append(int(each[2]))
    with leaks_of_clients():
        connection.close()
    return got


def test_it_starts_with_the_first_broker_as_primary(tmp_path: Path) -> None:
    started = time.monotonic()
    with running_cluster(tmp_path) as cluster:
        took_s = time.monotonic() - started
        rows = cluster.rows()
        assert took_s < 12.0, f"it took {took_s:.1f} s"  # about 1 s on a quiet machine; the goal is 4
        assert {row["broker"]: (row["role"], row["status"], row["port"], row["epoch"]) for row in rows.values()} == {
            "b1": ("primary", "active", cluster.port, 1),
            "b2": ("backup", "ready", cluster.port + 1, 1),
            "b3": ("backup", "ready", cluster.port + 2, 1),
        }
        status = cluster.status()
        assert (status["group"], status["primary"], status["in_sync"]) == ("understudy", "b1", ["b1", "b2", "b3"])
        assert status["min_insync"] == 2
        for row in rows.values():
            assert get(row["ports"]["http"], "/readyz")[0] == (200 if row["role"] == "primary" else 503)
            assert get(row["ports"]["http"], "/livez")[0] == 200


def test_killing_the_primary_loses_nothing(cluster: Cluster) -> None:
    expected = []
    for number in range(4):
        commit(cluster, number)
        expected.append(number)
        primary = cluster.primary()
        os.kill(primary["pid"], signal.SIGKILL)
        started = time.monotonic()
        commit(cluster, 100 + number)
        took_s = time.monotonic() - started
        expected.append(100 + number)
        assert took_s < 15.0, f"the first commit after a kill took {took_s:.2f} s"
        successor = cluster.primary()
        assert (successor["broker"], successor["epoch"]) != (primary["broker"], primary["epoch"])
        assert bodies(cluster, "a") == bodies(cluster, "b") == expected
        rows = cluster.ready()
        assert rows[primary["broker"]]["pid"] != primary["pid"]


def test_the_example_of_the_readme_needs_one_address(calm_cluster: Cluster) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(import pika\n.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert '("localhost", 5673)' in example
    backup = f'("127.0.0.1", {calm_cluster.port + 1})'
    names: dict[str, Any] = {}
    with leaks_of_clients():
        exec(example.replace('("localhost", 5673)', backup), names)
        names["connection"].close()
    connection = calm_cluster.connect()
    channel = connection.channel()
    assert [channel.basic_get(queue, auto_ack=True)[2] for queue in ("from", "to")] == [b"both or none"] * 2
    for queue in ("from", "to"):
        channel.queue_delete(queue)
    connection.close()


@pytest.mark.timeout(700)
def test_each_broker_writes_its_feed(tmp_path: Path) -> None:
    """Into files that ``understudy feed`` reads as one feed when the cluster has ended."""
    wanted = {("b1", "told"), ("b1", "link_up"), ("b1", "commit"), ("b2", "commit"), ("b2", "role")}
    with running_cluster(tmp_path, "--feed", "messages", brokers=2) as cluster:
        folders = [cluster.data / "feed" / name for name in ("b1", "b2")]
        wait_until("both feeds have begun", lambda: all(folder.exists() for folder in folders))
        commit(cluster, 1)
        wait_until("journals and facts hold all of it", lambda: wanted <= feed_of(cluster.data), every_s=1.0)
        wait_until("files, a minute later", lambda: all(any(folder.glob("[0-9]*")) for folder in folders), 600.0)
    assert wanted <= feed_of(cluster.data / "feed")


def feed_of(directory: Path) -> set[tuple[str, str]]:
    """(broker, event) of all events."""
    done = subprocess.run(
        [PROGRAM, "feed", "--data", directory, "--json"], capture_output=True, check=False, timeout=60
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["broker"], row["event"]) for row in rows}


def test_a_dead_broker_is_shown_as_down(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--no-restart") as cluster:
        cluster.kill("b3")
        row = wait_until("b3 is down", lambda: next((r for r in [cluster.rows()["b3"]] if r["status"] == "down"), None))
        assert (row["pid"], row["role"], row["port"], row["epoch"]) == (None, None, cluster.port + 2, 1)
        commit(cluster, 1)
        assert bodies(cluster, "a") == [1]
        wait_until("b3 is expelled", lambda: cluster.rows()["b1"]["in_sync"] == ["b1", "b2"])
        shown = cluster.rows()["b1"]["lag"]["b3"]
        why = "it was expelled from the in-sync set: its link is lost, and the store says that it is not running"
        assert (shown["linked"], shown["running"], shown["blockers"][1:]) == (False, False, [why])
        assert 0 < shown["since_s"] < 60
        text = subprocess.run([PROGRAM, "status", "--data", cluster.data], capture_output=True, text=True, check=True)
        assert f"  b3 (as b1 has it), since {shown['since']}: {why}\n" in text.stdout
        cluster.kill("b1")
        wait_until("b2 leads", lambda: cluster.rows()["b2"]["role"] == "primary")
        status = cluster.status()
        assert status["primary"] == "b2"
        exits = [line for line in cluster.lines if line["event"] == "exit"]
        assert [(line["broker"], line["code"], line["restarts"]) for line in exits] == [
            ("b3", -9, False),
            ("b1", -9, False),
        ]
    assert {row["status"] for row in cluster.rows().values()} == {"down"}
    assert cluster.status()["epoch"] == 2


def test_all_killed_at_once_come_back_with_everything(cluster: Cluster) -> None:
    for number in range(5):
        commit(cluster, number)
    for row in cluster.rows().values():
        os.kill(row["pid"], signal.SIGKILL)
    wait_until("all have new processes", lambda: all(row["status"] != "down" for row in cluster.rows().values()))
    cluster.ready()
    assert bodies(cluster, "a") == bodies(cluster, "b") == list(range(5))


def test_a_paused_primary_steps_down_and_rejoins(cluster: Cluster) -> None:
    """SIGSTOP: a new primary takes over; what the old one had and nobody confirmed is gone when it comes back."""
    commit(cluster, 1)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", cluster.port))
    channel = connection.channel()
    channel.confirm_delivery()
    old = cluster.primary()
    os.kill(old["pid"], signal.SIGSTOP)
    wait_until("another broker leads", lambda: cluster.status()["primary"] not in ("b1", None))
    commit(cluster, 2)
    os.kill(old["pid"], signal.SIGCONT)
    with leaks_of_clients(), pytest.raises(pika.exceptions.AMQPError):
        channel.basic_publish("", "a", b"99", PERSISTENT)
    rows = cluster.ready()
    assert (rows["b1"]["role"], rows["b1"]["pid"]) == ("backup", old["pid"])
    assert rows["b1"]["counters"]["cores"] == 2
    assert bodies(cluster, "a") == bodies(cluster, "b") == [1, 2]


def test_the_group_survives_a_stop_and_a_start(tmp_path: Path) -> None:
    with running_cluster(tmp_path, keep=True) as cluster:
        commit(cluster, 1)
    with running_cluster(tmp_path) as again:
        assert bodies(again, "a") == bodies(again, "b") == [1]


def test_no_cpu_while_nothing_happens(calm_cluster: Cluster) -> None:
    """The supervisor waits; a broker ticks."""
    time.sleep(2)

    def cpu_s(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    pids = [row["pid"] for row in calm_cluster.rows().values()]
    before = [cpu_s(calm_cluster.process.pid), *map(cpu_s, pids)]
    time.sleep(5)
    used: list[Any] = [
        after - start for after, start in zip([cpu_s(calm_cluster.process.pid), *map(cpu_s, pids)], before, strict=True)
    ]
    assert used[0] <= 0.02, used
    assert max(used[1:]) < 0.25, used


def test_a_second_cluster_on_the_same_data_changes_nothing(calm_cluster: Cluster) -> None:
    """A second start used to write its own ports into the files of the running brokers, which used them at their next start."""
    cluster = calm_cluster
    files = {path: path.read_bytes() for path in cluster.data.glob("*.toml")}
    command = [str(PROGRAM), "cluster", "--data", str(cluster.data), "--port", str(free_ports(3))]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert second.returncode == 1
    assert second.stderr == f"understudy: data directory {cluster.data} is in use by process {cluster.process.pid}\n"
    assert {path: path.read_bytes() for path in cluster.data.glob("*.toml")} == files
    assert {row["status"] for row in cluster.rows().values()} == {"active", "ready"}


def test_port_in_use_stops_the_command(tmp_path: Path) -> None:
    """One port of three is taken: the other two brokers could run, and are stopped."""
    port = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        done = subprocess.run(
            [PROGRAM, "cluster", "--data", tmp_path / "group", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    remove_journals(tmp_path)
    assert done.returncode == 1
    ends = re.findall(r"b2  ended with code 1: (.*)", done.stdout)
    assert len(ends) == 1, done.stdout
    assert f"amqp cannot listen on 127.0.0.1:{port + 1}: " in ends[0]


def test_one_broker_is_a_group(tmp_path: Path) -> None:
    with running_cluster(tmp_path, brokers=1) as cluster:
        commit(cluster, 1)
        cluster.kill("b1")
        wait_until("b1 has a new process", lambda: cluster.rows()["b1"]["status"] == "active")
        assert bodies(cluster, "a") == [1]
        assert cluster.status()["min_insync"] == 1


def test_brokers_stop_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    pids = [row["pid"] for row in cluster.ready().values()]
    cluster.process.kill()
    cluster.process.wait()
    wait_until("all brokers have stopped", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert all("stopped" in log.read_text() for log in cluster.data.glob("*.log"))
    remove_journals(cluster.data)


def cpus_of(row: dict[str, Any]) -> set[int]:
    """The CPUs of a broker's process; all of its threads must have the same."""
    tasks = [int(task.name) for task in Path(f"/proc/{row['pid']}/task").iterdir()]
    assert len(tasks) > 1, "the journal and the store have threads of their own"
    found = {frozenset(os.sched_getaffinity(task)) for task in tasks}
    assert len(found) == 1, found
    return set(found.pop())


def bound_by_role(cluster: Cluster, first: int, second: int) -> bool:
    rows = cluster.ready()
    return all(cpus_of(row) == ({first} if row["role"] == "primary" else {second}) for row in rows.values())


@contextlib.contextmanager
def busy(cpu: int) -> Iterator[None]:
    """Work of other programs that leaves nothing of this CPU. Niced work counts as none, so there is enough to outweigh it."""
    work = f"import os; os.setpriority(os.PRIO_PROCESS, 0, 0); os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", work]))
            stack.callback(process.kill)
        yield


def test_the_primary_has_a_cpu_of_its_own_anew_at_each_promotion(tmp_path: Path) -> None:
    """While that CPU is full, the backups are not on it."""
    usable = os.sched_getaffinity(0)
    assert len(usable) >= 2, "this test needs two CPUs"
    first, second = sorted(usable)[-2:]
    os.sched_setaffinity(0, {first, second})  # what a container allows; the cluster inherits it
    try:
        with running_cluster(tmp_path) as cluster, busy(first):
            wait_until("the primary is alone on a CPU", lambda: bound_by_role(cluster, first, second))
            before = cluster.primary()["broker"]
            cluster.kill(before)
            wait_until("another leads", lambda: cluster.primary()["broker"] != before)
            wait_until("the primary is alone on a CPU", lambda: bound_by_role(cluster, first, second))
    finally:
        os.sched_setaffinity(0, usable)


def test_brokers_go_where_the_scheduler_likes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--no-pin") as cluster:
        assert all(os.sched_getaffinity(row["pid"]) == os.sched_getaffinity(0) for row in cluster.ready().values())
