"""``understudy journal check``: of a broker that runs, of one that was killed, and of a damaged one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, running_broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MESSAGES = 50
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def check(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "journal", "check", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def checked(directory: Path) -> dict[str, Any]:
    result = check(directory, "--json")
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (0 if found["damaged"] is None else 1)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".journal"}


def publish(broker: BrokerProcess, *sections: bytes) -> None:
    """One transaction for each section."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    for section in sections or (b"",):
        for number in range(MESSAGES):
            channel.basic_publish("", "q", section + str(number).encode() * 100, PERSISTENT)
        channel.tx_commit()
    connection.close()


def drain(broker: BrokerProcess) -> list[bytes]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    bodies = []
    while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
        bodies.append(body)
    connection.close()
    return bodies


def test_a_broker_that_runs_and_one_that_was_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        publish(broker)
        running = checked(broker.data)
        assert (running["broker"], running["damaged"]) == ("b1", None)
        assert running["records"]["tx-enqueue"] == MESSAGES
        assert running["records"]["prepare"] == 1
        broker.kill()
        before = contents(broker.data)
        found = checked(broker.data)
        assert found["last_offset"] == sum(found["records"].values()) == running["last_offset"]
        text = check(broker.data).stdout
        assert text.startswith(f"journal {broker.data}: broker b1 of group ")
        assert "whole    every byte that was synced is there" in text
        assert contents(broker.data) == before
        broker.start()


def test_a_damaged_one_and_its_repair(tmp_path: Path) -> None:
    """Of three transactions the second is damaged: start and check say what would be lost; the repair leaves the first one."""
    with running_broker(tmp_path) as broker:
        publish(broker, b"one ", b"two ", b"three ")
        locked = check(broker.data, "--repair")
        assert (locked.returncode, locked.stdout) == (1, "")
        assert f"data directory {broker.data} is in use by process" in locked.stderr
        broker.kill()
        segment = min(broker.data.glob("*.journal"))
        buf = bytearray(segment.read_bytes())
        buf[buf.index(b"two 0")] ^= 1
        segment.write_bytes(buf)

        assert broker.spawn().wait(60) == 1
        refused = broker.log_text()
        found = checked(broker.data)
        damaged, loss = found["damaged"], found["loss"]
        assert damaged["file"] == segment.name
        assert 0 < damaged["position"] <= buf.index(b"wo 0")
        assert MESSAGES <= found["records"]["tx-enqueue"] < 2 * MESSAGES
        assert found["last_offset"] == sum(found["records"].values()) == loss["offset"]
        assert loss["text"] in refused
        assert f"{segment.name} is damaged at byte " in refused
        assert f"`understudy journal check --repair {broker.data}`" in refused
        assert (loss["keeps_nothing"], loss["aside"]) == (False, [segment.name])
        assert MESSAGES <= loss["messages"] < 2 * MESSAGES
        assert loss["transactions"] >= 1
        text = check(broker.data).stdout
        assert f"DAMAGED  {segment.name} at byte {damaged['position']:,}: " in text
        assert loss["text"] in text
        assert segment.read_bytes() == buf

        done = check(broker.data, "--repair", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        kept = found["repaired"]["kept"][segment.name]
        assert (broker.data / kept).read_bytes() == buf
        assert (found["journal"]["damaged"], found["journal"]["last_offset"]) == (None, loss["offset"])
        dumped = subprocess.run([str(PROGRAM), "journal", "dump", str(broker.data)], capture_output=True, check=True)
        assert dumped.stdout.count(b"\n") > MESSAGES
        broker.start()
        assert "journal: repaired" in broker.log_text()
        assert drain(broker) == [b"one " + str(number).encode() * 100 for number in range(MESSAGES)]


def test_what_is_no_journal(tmp_path: Path) -> None:
    nothing = check(tmp_path)
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == (
        f"understudy: there is no journal in {tmp_path}: no file is named like 0000000000000001.journal\n"
    )
    file = tmp_path / "file"
    file.write_text("")
    assert check(file).stderr == f"understudy: {file} is no directory\n"
    assert check(tmp_path / "none").stderr == f"understudy: {tmp_path / 'none'} is not there\n"
    (tmp_path / "0000000000000001.journal").write_bytes(b"x" * 8192)
    found = check(tmp_path)
    assert found.returncode == 1
    assert "nobody can tell whose" in found.stdout
    assert "DAMAGED  0000000000000001.journal at byte 0: the segment header is damaged" in found.stdout
