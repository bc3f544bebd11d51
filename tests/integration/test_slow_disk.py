"""A disk that becomes slow: the loop meets it once or twice, then links, heartbeats and other clients have the loop again."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Self

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.slow_disk import SLOW_NAME
from tests.stress.clients import connect_to
from tests.stress.group import Group, GroupBroker, running_group

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SLOW_DISK = Path(__file__).with_name("slow_disk.py")
HELD = 3
"""Syncs on the loop of a broker whose disk has become slow: two, and one for a group that was under way."""
QUEUES = ("q1", "q2")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class SlowBroker(GroupBroker):
    """A broker on a disk whose slowness a file says."""

    command = (sys.executable, SLOW_DISK)


class SlowGroup(Group):
    """All brokers have the same disk."""

    broker_class = SlowBroker

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 3) -> None:
        super().__init__(folder, extra, brokers=brokers)
        self.takes(0)

    def takes(self, ms: float) -> None:
        """From now on each sync takes so much longer."""
        new = self.folder / "slow-ms.new"
        new.write_text(str(ms), encoding="ascii")
        new.replace(self.folder / SLOW_NAME)

    def syncs(self) -> dict[str, dict[str, float]]:
        return {name: row["journal"]["sync_times"] for name, row in self.rows().items()}


class Load:
    """Two clients that commit transactions of 100 messages, one after the other, in groups of more than 64 KiB."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.committed = 0
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.errors, self.errors

    def _run(self) -> None:
        try:
            connection = connect_to(self.port)
            channel = connection.channel()
            channel.tx_select()
            while not self._stop.is_set():
                for number in range(100):
                    channel.basic_publish("", QUEUES[number % 2], bytes(1_000), PERSISTENT)
                channel.tx_commit()
                with self._lock:
                    self.committed += 1
            connection.close()
        except BaseException as error:  # noqa: BLE001  # the test says it
            self.errors.append(error)


@contextlib.contextmanager
def patient_client(port: int) -> Iterator[Any]:
    """A connection with heartbeats of 1 s, which neither side may miss."""
    connection = connect_to(port, heartbeat=1)
    yield connection
    connection.process_data_events(0)
    assert connection.is_open
    connection.close()


def waits_ms(channel: Any, seconds: float) -> list[float]:
    """How long the broker takes to answer what needs no disk, in milliseconds."""
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        channel.basic_qos(prefetch_count=1)
        found.append((time.monotonic() - began) * 1_000)
        time.sleep(0.005)
    return found


def test_a_slow_disk_holds_neither_loop_nor_links(tmp_path: Path) -> None:
    with running_group(tmp_path, group_class=SlowGroup) as group:
        assert isinstance(group, SlowGroup)
        primary = group.primary()
        setup = connect_to(primary.port)
        for queue in QUEUES:
            setup.channel().queue_declare(queue, durable=True)
        setup.close()
        epoch = primary.row()["epoch"]
        with patient_client(primary.port) as connection, Load(primary.port) as load:
            channel = connection.channel()
            for slow_ms, seconds in ((5, 1.0), (20, 1.5), (100, 3.0)):
                group.takes(slow_ms)
                before, committed = group.syncs(), load.committed
                waits = waits_ms(channel, seconds)
                after = group.syncs()
                found = {
                    name: {key: after[name][key] - before[name][key] for key in ("syncs", "on_loop")} for name in after
                }
                print(f"{slow_ms} ms a sync: {found}, longest on the loop "
                      f"{[round(times['longest_on_loop_us'] / 1_000, 1) for times in after.values()]} ms; answers after "
                      f"{median(waits):.1f} ms, at most {max(waits):.1f} ms")  # fmt: skip
                assert load.committed > committed
                assert all(each["syncs"] > 5 for each in found.values()), found
                assert all(each["on_loop"] <= HELD for each in found.values()), found
                if slow_ms >= 100:
                    assert median(waits) < slow_ms / 2, f"{median(waits)} ms: the loop waits for the disk"
            group.takes(0)
        slow = group.syncs()
        channel = connect_to(primary.port).channel()
        channel.tx_select()

        def on_the_loop_again() -> bool:
            for _ in range(20):
                channel.basic_publish("", QUEUES[0], b"x", PERSISTENT)
                channel.tx_commit()
            return all(times["on_loop"] > slow[name]["on_loop"] + 10 for name, times in group.syncs().items())

        wait_until("a quick disk is synced on the loop again", on_the_loop_again)
        channel.queue_purge(QUEUES[0])
        channel.connection.close()
        rows = group.ready()
        assert {row["epoch"] for row in rows.values()} == {epoch}
        assert "nothing was heard from" not in group.logs()
        digests = group.agree(QUEUES)
        assert digests[QUEUES[1]][0] == 50 * load.committed
