"""``understudy promote --unclean``: the last resort, on real brokers and a real store."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import PROGRAM, STOP_TIMEOUT_S, leaks_of_clients, wait_until
from tests.stress.group import Group, GroupBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    try:
        yield group
        group.check_logs()
    finally:
        group.abandon()


def promote(broker: GroupBroker, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "promote", "--config", str(broker.config), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def publish(broker: GroupBroker, *bodies: bytes) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    for body in bodies:
        channel.basic_publish("", "q", body, PERSISTENT)
    channel.tx_commit()
    connection.close()


def take(broker: GroupBroker) -> bytes:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    method, _, body = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    channel.queue_declare("q", passive=True)
    connection.close()
    return bytes(body)


def contents(broker: GroupBroker) -> list[bytes]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    found = []
    while (got := channel.basic_get("q"))[0] is not None:
        found.append(got[2])
    with leaks_of_clients():
        connection.close()
    return found


def left_behind(group: Group) -> None:
    """b3 was expelled; then b1 and b2 took one message and confirmed two more; then all died."""
    group.start()
    group.ready()
    publish(group.primary(), b"1", b"2")
    group["b3"].kill()
    primary = group.primary()
    wait_until("b3 is expelled", lambda: sorted(primary.row()["in_sync"]) == ["b1", "b2"])
    assert take(primary) == b"1"
    publish(primary, b"3", b"4")
    group.agree()
    group.kill_all()


def test_a_broker_that_was_left_behind_leads_and_the_others_follow_it(group: Group) -> None:
    left_behind(group)
    survivor = group["b3"]
    asked = promote(survivor, "--unclean")
    assert asked.returncode == 1, asked.stderr
    assert "Everything that was confirmed after b3 left the in-sync set is lost" in asked.stdout
    assert "Nothing was changed" in asked.stdout
    assert "--yes" in asked.stdout

    survivor.spawn()  # and indeed nothing was
    wait_until("b3 waits", lambda: survivor.row()["status"] == "joining" and survivor.row()["blockers"])
    assert "not in the in-sync set {b1, b2}" in str(survivor.row()["blockers"])
    refused = promote(survivor, "--unclean", "--yes")
    assert (refused.returncode, "b3" in refused.stderr, len(refused.stderr.splitlines())) == (1, True, 1)
    survivor.kill()

    force = ("--unclean", "--yes", "--min-insync", "1")
    with socket.create_server(("127.0.0.1", group["b1"].port)):  # as if b1 ran where the store cannot see its process
        refused = promote(survivor, *force)
        assert refused.returncode == 1
        assert f"accepts connections at 127.0.0.1:{group['b1'].port}" in refused.stderr
        done = promote(survivor, *force, "--gone", "b1")
    assert done.returncode == 0, done.stderr
    assert "b2: pid " in done.stdout
    survivor.spawn()
    rows = group.ready("b3")
    assert rows["b3"]["epoch"] > 1_000, "no broker that is still dead can have seen it"
    assert contents(survivor) == [b"1", b"2"]
    publish(survivor, b"5")

    # What the others hold and the new primary does not is gone; what they have consumed of it is back.
    group.start("b1", "b2")
    group.ready()
    assert group.agree()["q"][0] == 3
    assert contents(survivor) == [b"1", b"2", b"5"]
    survivor.kill()
    assert contents(group.primary()) == [b"1", b"2", b"5"]


def test_with_its_minimum_the_group_waits_for_a_second_broker(group: Group) -> None:
    left_behind(group)
    assert promote(group["b3"], "--unclean", "--yes").returncode == 0
    group.start("b3")
    wait_until("b3 leads", lambda: group["b3"].row()["status"] == "recovering")
    assert "below min_insync 2" in str(group["b3"].row()["blockers"])
    group.start("b1")
    group.ready("b1", "b3")
    assert contents(group["b3"]) == [b"1", b"2"]


def test_it_is_refused_while_a_listed_broker_runs(group: Group) -> None:
    left_behind(group)
    group.start("b2")
    wait_until("b2 leads", lambda: group["b2"].row()["status"] == "recovering")
    group["b2"].pause()
    time.sleep(4)  # its lease has ended, but it may wake up
    refused = promote(group["b3"], "--unclean", "--yes")
    assert refused.returncode == 1
    assert f"b2 (pid {group['b2'].pid}) runs and is in the in-sync set" in refused.stderr
    group["b2"].resume()


def test_a_lost_store_is_made_anew(group: Group) -> None:
    group.start()
    group.ready()
    publish(group.primary(), b"1")
    group.agree()
    group.kill_all()
    for path in group.folder.glob("coordination.db*"):
        path.unlink()
    first = group["b1"]
    process = first.spawn()
    assert process.wait(STOP_TIMEOUT_S) == 1
    assert "understudy promote --unclean" in first.log_text()
    done = promote(first, "--unclean", "--yes", "--min-insync", "2")
    assert done.returncode == 0, done.stderr
    assert "the store knows no group 'understudy'" in done.stdout
    group.start()
    group.ready()
    assert contents(group.primary()) == [b"1"]


def test_without_unclean_it_says_how_a_broker_is_promoted(group: Group) -> None:
    done = promote(group["b1"])
    assert done.returncode == 1
    assert "--unclean" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_configuration_without_a_group_has_nothing_to_promote(tmp_path: Path) -> None:
    config = tmp_path / "b1.toml"
    config.write_text('[broker]\ndata = "data"\n')
    command = [str(PROGRAM), "promote", "--config", str(config), "--unclean"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "plugins.ha" in done.stderr


def test_the_data_of_a_broker_that_ran_alone_become_the_base_of_a_group(group: Group) -> None:
    """The plugin is switched on over them: the broker says what to do, and then nothing is lost."""
    first = group["b1"]
    whole = first.config.read_text(encoding="utf-8")
    first.config.write_text(whole.replace("ha = true", "ha = false"), encoding="utf-8")
    first.spawn()
    wait_until("it serves", first.serves)
    publish(first, b"1", b"2")
    assert first.process is not None
    first.process.terminate()
    assert first.process.wait(60) == 0

    first.config.write_text(whole, encoding="utf-8")
    assert first.spawn().wait(60) == 1
    said = first.log_text().splitlines()[-1]
    assert "written without the ha plugin and belongs to no group" in said
    assert "understudy promote --unclean --yes" in said

    done = promote(first, "--unclean", "--yes", "--min-insync", "1")
    assert done.returncode == 0, done.stderr
    group.start()
    group.ready()
    assert group.primary() is first
    assert contents(first) == [b"1", b"2"]
    assert group.agree()["q"][0] == 2
