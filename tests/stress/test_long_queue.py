"""A queue that grows and is emptied: no broker of the group stops for its collector, and memory goes back to the kernel.

``UNDERSTUDY_LONG_QUEUE=1000000`` makes the queue as long as that, ``UNDERSTUDY_DEEP_QUEUE`` that of the second test. ``-s`` shows
what held the event loops, and the memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import Finder, connect_to, declare
from tests.stress.group import WAIT_S, Group, GroupBroker, running_group
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]

LONG = int(os.environ.get("UNDERSTUDY_LONG_QUEUE", "200000"))
BODY = bytes(1_024)
AT_ONCE = 500
PAUSE_MS = 20.0
"""What a look of the collector may take, in processor time; at afefd57 it took 65 ms here."""
FREE_AGAIN = 0.5
"""Of what the messages had taken more than this part must have gone back."""
PROGRAM = Path(__file__).with_name("probed_broker.py")


class ProbedBroker(GroupBroker):
    def spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, PROGRAM, self.config], stderr=log, cwd=self.folder)
        return self.process

    def probe(self) -> dict[str, Any]:
        """Measurements of ``probed_broker`` since they were asked for last."""
        path = self.data.with_suffix(".holds")
        path.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        wait_until(f"{self.name} has told", path.exists, WAIT_S)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class ProbedGroup(Group):
    broker_class = ProbedBroker

    @property
    def probed(self) -> list[ProbedBroker]:
        return [broker for broker in self.brokers.values() if isinstance(broker, ProbedBroker)]


def publish(port: int, queue: str, count: int) -> None:
    """As fast as the broker reads; returns when all of it is in the queue."""
    properties = encode_properties(delivery_mode=2)
    many = publish_frames(1, "", queue, properties, BODY, 131_072) * AT_ONCE
    hello = (
        PROTOCOL_HEADER,
        encode_method(0, CONNECTION_START_OK, {}, "PLAIN", b"\0guest\0guest", "en_US"),
        encode_method(0, CONNECTION_TUNE_OK, 2047, 131_072, 0),
        encode_method(0, CONNECTION_OPEN, "/"),
        encode_method(1, CHANNEL_OPEN),
    )
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(b"".join(hello))
        for _ in range(count // AT_ONCE):
            client.sendall(many)
        client.sendall(encode_method(1, QUEUE_DECLARE, queue, True, False, False, False, False, {}))
        parser = FrameParser(0)
        while not any(event[1] == QUEUE_DECLARE_OK for event in parser.feed(client.recv(65_536))):
            pass


def longest_collection_ms(group: ProbedGroup, when: str) -> float:
    """Of all brokers, since this was asked last; and says what else is worth knowing."""
    print(f"\n{when}:")
    longest = 0.0
    for broker in group.probed:
        row, found = broker.row(), broker.probe()
        holds = ", ".join(f"{ms:.1f} ms at {at:.1f} s ({step})" for ms, at, step in found["holds"][:5])
        print(
            f"  {broker.name} ({row['role']}): {broker.resident_bytes() >> 20} MiB; loop held {holds}; longest collection",
            end=" ",
        )
        print(f"{found['longest_collection_ms']:.1f} ms; {row.get('collector')}; {row.get('heap')}")
        longest = max(longest, found["longest_collection_ms"])
    return longest


IN_MEMORY = '[limits]\nqueue_memory_bytes = "64GiB"\n'
ON_DISK = '[limits]\nqueue_memory_bytes = "64MiB"\n'
DEEP = int(os.environ.get("UNDERSTUDY_DEEP_QUEUE", "100000"))
"""Messages of which the bodies do not stay in memory: 100 MB, of which 64 may."""
MOST_MIB = 250
"""A broker may occupy so much, a million of messages or not."""


def test_a_queue_that_grows_stops_nobody_and_leaves_nothing(tmp_path: Path) -> None:
    with running_group(tmp_path, IN_MEMORY, group_class=ProbedGroup) as group:
        assert isinstance(group, ProbedGroup)
        primary = group.primary()
        declare(Finder(group.ports), ["long"])
        publish(primary.port, "long", AT_ONCE)
        group.agree()
        empty = {broker.name: broker.resident_bytes() for broker in group.probed}
        longest_collection_ms(group, "at the start")

        publish(primary.port, "long", LONG)
        assert group.agree()["long"][0] == LONG + AT_ONCE
        full = {broker.name: broker.resident_bytes() for broker in group.probed}
        assert longest_collection_ms(group, f"with {LONG} messages") < PAUSE_MS
        assert all(size > empty[name] + LONG * len(BODY) for name, size in full.items())

        connection = connect_to(primary.port)
        connection.channel().queue_purge("long")
        connection.close()
        for broker in group.probed:
            enough = full[broker.name] - FREE_AGAIN * (full[broker.name] - empty[broker.name])
            wait_until(f"{broker.name} gives memory back", lambda b=broker, e=enough: b.resident_bytes() < e, WAIT_S)  # type: ignore[misc]
        assert longest_collection_ms(group, "when it was emptied") < PAUSE_MS
        assert group.agree()["long"][0] == 0
        assert all(broker.row()["collector"]["longest_ms"] < PAUSE_MS for broker in group.probed)


def test_bodies_of_a_deep_queue_are_in_the_journal_alone_and_come_back_in_order(tmp_path: Path) -> None:
    """On every broker, before a restart of all and after it; consumers never wait for a disk on the event loop."""
    with running_group(tmp_path, ON_DISK, group_class=ProbedGroup) as group:
        assert isinstance(group, ProbedGroup)
        declare(Finder(group.ports), ["deep"])
        publish(group.primary().port, "deep", DEEP)
        for broker in group.brokers.values():
            wait_until(f"bodies leave the memory of {broker.name}", lambda b=broker: _paged_out(b) > DEEP // 2, WAIT_S)  # type: ignore[misc]
        assert largest_mib(group, f"with {DEEP} messages") < MOST_MIB
        group.stop()
        group.start()
        group.ready(*group.brokers)
        assert largest_mib(group, "after a restart") < MOST_MIB
        assert all(_paged_out(broker) > 0 for broker in group.brokers.values()), "bodies leave as the journal is read"
        connection = connect_to(group.primary().port)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1_000)
        for count, (method, _, body) in enumerate(channel.consume("deep", inactivity_timeout=WAIT_S), 1):
            assert method is not None, f"message {count} does not come"
            assert body == BODY
            if count % 500 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if count == DEEP:
                break
        connection.close()
        paging = group.primary().row()["paging"]
        assert paging["fetched"] > DEEP // 2
        assert paging["read_at_once"] == 0
        assert group.agree()["deep"][0] == 0


def largest_mib(group: ProbedGroup, when: str) -> int:
    """How many MiB the largest broker occupies; print it of each, and the processor time of its process."""
    for broker in group.probed:
        fields = Path(f"/proc/{broker.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        print(f"\n{when}: {broker.name} {broker.resident_bytes() >> 20} MiB, {seconds:.1f} s of processor time")
    return max(broker.resident_bytes() >> 20 for broker in group.probed)


def _paged_out(broker: GroupBroker) -> int:
    paged_out: int = broker.row().get("paging", {}).get("paged_out", 0)
    return paged_out
