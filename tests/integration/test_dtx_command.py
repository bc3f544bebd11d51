"""``understudy dtx``: branches whose transaction manager is gone, on one broker and in a group of three, completed by hand."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, get, running_broker, wait_until
from tests.integration.cluster_process import Cluster, running_cluster
from understudy.broker.amqp.encode import ack_frame, publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    BASIC_GET_OK,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    METHODS,
    QUEUE_DECLARE,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.command_line.amqp_address import AmqpAddress
from understudy.broker.command_line.amqp_call import CHANNEL, AmqpCaller, connect
from understudy.broker.command_line.dtx_command import PASSWORD_VARIABLE
from understudy.broker.security import hash_password
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PERSISTENT = encode_properties(delivery_mode=2)
Done = subprocess.CompletedProcess[str]


def dtx(*arguments: object, environment: dict[str, str] | None = None) -> Done:
    command = [str(PROGRAM), "dtx", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


def listed(*arguments: object) -> list[tuple[str, str]]:
    """(xid, state) of each branch."""
    done = dtx("list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [(row["xid"], row["state"]) for row in json.loads(done.stdout)["in_doubt"]]


def ids(xid: str) -> tuple[int, bytes, bytes]:
    parsed = Xid.parse(xid)
    return parsed.format_id, parsed.global_id, parsed.branch_id


def prepare(address: AmqpAddress, xid: str, queue: str) -> None:
    """A branch that takes one message out of ``queue`` and puts two into it; then its transaction manager is gone."""
    with connect(address) as manager:
        manager.call(QUEUE_DECLARE, queue, False, True, False, False, False, {})
        manager.send(publish_frames(CHANNEL, "", queue, PERSISTENT, b"before", 131072))
        manager.call(DTX_SELECT)
        assert manager.call(DTX_START, *ids(xid), False, False) == (XaStatus.OK,)
        tag = take(manager, queue)
        manager.send(ack_frame(CHANNEL, tag))
        for body in (b"1", b"2"):
            manager.send(publish_frames(CHANNEL, "", queue, PERSISTENT, body, 131072))
        assert manager.call(DTX_END, *ids(xid), False, False) == (XaStatus.OK,)
        assert manager.call(DTX_PREPARE, *ids(xid))[0] == XaStatus.OK


def take(manager: AmqpCaller, queue: str) -> int:
    """The delivery tag of the next message."""
    manager.send(encode_method(CHANNEL, BASIC_GET, queue, False))
    tag: int = manager._expect(BASIC_GET_OK)[0]
    return tag


def verdict(address: AmqpAddress, key: int, xid: str) -> XaStatus:
    """The answer to the transaction manager that comes back after all."""
    more = (False,) if key == DTX_COMMIT else ()
    assert METHODS[key].name in ("dtx.commit", "dtx.rollback")
    with connect(address) as manager:
        return XaStatus(manager.call(key, *ids(xid), *more)[0])


def bodies(port: int, queue: str) -> list[bytes]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    connection.close()
    return found


# -- one broker -------------------------------------------------------------------------------------------------------


def test_a_branch_is_committed_by_hand_and_forgotten(broker: BrokerProcess, queue: str) -> None:
    url, amqp = f"http://127.0.0.1:{broker.ports['http']}", f"amqp://127.0.0.1:{broker.port}"
    address = AmqpAddress(port=broker.port)
    xid = "7:order%2017:%00b"
    prepare(address, xid, queue)
    (row,) = [row for row in broker.page("/dtx")[1]["in_doubt"] if row["xid"] == xid]
    assert (row["state"], row["enqueues"], row["dequeues"], row["queues"]) == ("prepared", 2, 1, [queue])
    assert 0 <= row["age_s"] < 60
    shown = dtx("list", "--url", url)
    assert re.search(rf"^/ +7:order%2017:%00b +prepared .* 2 +1 +{re.escape(queue)}$", shown.stdout, re.MULTILINE)
    assert broker.status()["transactions"]["in_doubt"] == 1
    status = subprocess.run([PROGRAM, "status", "--url", url], capture_output=True, text=True, check=True, timeout=60)
    assert "  b1: 1 prepared branch waits to be decided" in status.stdout

    asked = dtx("commit", xid, "--amqp", amqp)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "give --yes" in asked.stderr
    assert listed("--url", url) == [(xid, "prepared")]

    done = dtx("commit", xid, "--amqp", amqp, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Branch {xid} in vhost '/' is committed by hand (by 127.0.0.1:{broker.port}); ")
    assert listed("--url", url) == [(xid, "committed")]
    assert listed("--data", broker.data) == [(xid, "committed")]
    counts = broker.status()["transactions"]
    assert (counts["in_doubt"], counts["completed"]) == (0, 1)
    assert verdict(address, DTX_COMMIT, xid) is XaStatus.HEURHAZ
    assert bodies(broker.port, queue) == [b"1", b"2"]

    again = dtx("rollback", xid, "--amqp", amqp, "--yes")
    assert again.returncode == 1
    assert "409 ILLEGAL_STATE" in again.stderr
    done = dtx("forget", xid, "--data", broker.data, "--json")
    assert json.loads(done.stdout) == {
        "vhost": "/",
        "xid": xid,
        "done": "forgotten",
        "amqp": f"127.0.0.1:{broker.port}",
    }
    assert listed("--url", url) == []
    assert dtx("list", "--url", url).stdout == "b1 (standalone): no branch is in doubt\n"


def test_a_branch_that_nobody_knows(broker: BrokerProcess) -> None:
    amqp = f"amqp://127.0.0.1:{broker.port}"
    for command in (["commit", "--yes"], ["rollback", "--yes"], ["forget"]):
        done = dtx(*command, "0:nobody:b1", "--amqp", amqp)
        assert (done.returncode, done.stdout) == (1, "")
        assert "404 NOT_FOUND - no branch 0:nobody:b1 in vhost '/'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_who_is_not_let_in(broker: BrokerProcess) -> None:
    wrong = dtx("forget", "0:g:b", "--amqp", f"amqp://guest:wrong@127.0.0.1:{broker.port}")
    assert wrong.returncode == 1
    assert "refused the connection of user 'guest': 403 ACCESS_REFUSED" in wrong.stderr
    nowhere = dtx("forget", "0:g:b", "--amqp", f"amqp://127.0.0.1:{broker.port}/nowhere")
    assert nowhere.returncode == 1
    assert "vhost 'nowhere' not found" in nowhere.stderr


def test_what_was_rolled_back_by_hand_is_remembered_by_the_disk(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        address, xid = AmqpAddress(port=broker.port), "0:g:b"
        prepare(address, xid, "q")
        broker.kill()
        broker.start()
        assert listed("--data", broker.data) == [(xid, "prepared")]
        assert dtx("rollback", xid, "--data", broker.data, "--yes").returncode == 0
        broker.kill()
        broker.start()
        assert listed("--data", broker.data) == [(xid, "rolled back")]
        assert verdict(address, DTX_ROLLBACK, xid) is XaStatus.HEURHAZ
        assert bodies(broker.port, "q") == [b"before"]
        assert dtx("forget", xid, "--data", broker.data).returncode == 0
        assert listed("--data", broker.data) == []


def test_it_takes_the_permission_for_it(tmp_path: Path) -> None:
    def user(name: str, configure: str) -> str:
        hashed = hash_password(f"{name}'s", bytes(16), ln=4)
        head = f"[[users]]\nname = '{name}'\npassword_hash = '{hashed}'\n"
        return f"{head}[users.vhosts.'/']\nconfigure = '{configure}'\nwrite = '.*'\nread = '.*'\n"

    with running_broker(tmp_path, user("app", "^q$") + user("operator", "^understudy\\.dtx$")) as broker:
        xid = "0:g:b"
        prepare(AmqpAddress(port=broker.port, user="app", password="app's"), xid, "q")
        refused = dtx("commit", xid, "--data", broker.data, "--yes", "--user", "app", "--password", "app's")
        assert refused.returncode == 1
        assert (
            "403 ACCESS_REFUSED - configure access to exchange 'understudy.dtx' in vhost '/' refused" in refused.stderr
        )
        assert listed("--data", broker.data) == [(xid, "prepared")]
        environment = {**os.environ, PASSWORD_VARIABLE: "operator's"}
        done = dtx("commit", xid, "--data", broker.data, "--yes", "--user", "operator", environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert listed("--data", broker.data) == [(xid, "committed")]


# -- a group ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("group")) as running:
        yield running


def all_say(cluster: Cluster, *expected: tuple[str, str]) -> None:
    """Each broker, itself."""
    ports = {broker: row["ports"]["http"] for broker, row in cluster.rows().items()}
    found: dict[str, list[tuple[str, str]]] = {}

    def agreed() -> bool:
        for broker, port in ports.items():
            found[broker] = [(row["xid"], row["state"]) for row in get(port, "/dtx")[1].get("in_doubt", ())]
        return all(each == list(expected) for each in found.values())

    wait_until(f"all say {expected}", agreed)
    assert len(found) == cluster.brokers


def a_backup(cluster: Cluster) -> dict[str, Any]:
    return next(row for row in cluster.rows().values() if row["role"] == "backup")


def test_every_broker_lists_it_and_a_backup_shows_the_way_to_the_primary(cluster: Cluster) -> None:
    xid = "0:order%2017:b1"
    primary = cluster.primary()
    prepare(AmqpAddress(port=primary["port"]), xid, "q")
    all_say(cluster, (xid, "prepared"))
    for row in cluster.rows().values():
        assert listed("--url", f"http://127.0.0.1:{row['ports']['http']}") == [(xid, "prepared")]
    shown = dtx("list", "--data", cluster.data)
    assert shown.stdout.splitlines()[0] == f"{primary['broker']} (active):"
    assert shown.stdout.splitlines()[-1].startswith("the same on b")

    done = dtx("commit", xid, "--yes", "--amqp", f"amqp://127.0.0.1:{a_backup(cluster)['port']}")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"is committed by hand (by 127.0.0.1:{primary['port']})" in done.stdout
    all_say(cluster, (xid, "committed"))
    assert dtx("forget", xid, "--data", cluster.data).returncode == 0
    all_say(cluster)
    assert dtx("list", "--data", cluster.data).stdout.startswith(
        f"{primary['broker']} (active): no branch is in doubt\n"
    )
    assert bodies(primary["port"], "q") == [b"1", b"2"]
    unknown = dtx("forget", xid, "--data", cluster.data)
    assert unknown.returncode == 1
    assert f"404 NOT_FOUND - no branch {xid}" in unknown.stderr


def test_it_is_completed_on_the_primary_that_comes_after(cluster: Cluster) -> None:
    xid = "0:after:b1"
    prepare(AmqpAddress(port=cluster.primary()["port"]), xid, "r")
    before = cluster.primary()["broker"]
    cluster.kill(before)
    wait_until("another broker leads", lambda: cluster.primary()["broker"] != before)
    cluster.ready()
    all_say(cluster, (xid, "prepared"))
    assert dtx("rollback", xid, "--data", cluster.data, "--yes").returncode == 0
    all_say(cluster, (xid, "rolled back"))
    address = AmqpAddress(port=cluster.primary()["port"])
    assert verdict(address, DTX_COMMIT, xid) is XaStatus.HEURHAZ
    assert dtx("forget", xid, "--data", cluster.data).returncode == 0
    all_say(cluster)
    assert bodies(address.port, "r") == [b"before"]


def test_a_broker_that_hangs_is_named(cluster: Cluster) -> None:
    backup = a_backup(cluster)
    os.kill(backup["pid"], signal.SIGSTOP)
    try:
        shown = dtx("list", "--data", cluster.data)
    finally:
        os.kill(backup["pid"], signal.SIGCONT)
    assert shown.returncode == 0
    assert f"{backup['broker']} (unresponsive): its list is not known" in shown.stdout
