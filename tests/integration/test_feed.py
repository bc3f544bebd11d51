"""``understudy feed`` on real brokers under load: brokers and reader are killed, and no commit is missing or told twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, ask_to_end, running_broker, wait_until
from tests.integration.conftest import SMALL_SEGMENTS
from tests.integration.feed_rows import Row, by_source, told_once, wait_for_rows
from tests.integration.small_disk import small_disk
from tests.stress.group import Group, running_group
from tests.stress.load import Load
from tests.stress.mover import Told

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 90.0


class Reader:
    """``understudy feed --follow --json`` of a group, which may be killed and goes on at its cursor."""

    def __init__(self, group: Group) -> None:
        self.output = group.folder / "feed.jsonl"
        self._command = [str(PROGRAM), "feed", "--data", str(group.folder), "--follow", "--hold", "test"]
        self._command += self._target(group)
        self.process: subprocess.Popen[bytes] | None = None
        self._rows: list[Row] = []
        self._read_to = 0

    @staticmethod
    def _target(group: Group) -> list[str]:
        return ["--json", "--cursor", str(group.folder / "feed.cursor")]

    def start(self) -> None:
        if self.output.exists():  # the last line may have been cut short by a kill
            text = self.output.read_bytes()
            self.output.write_bytes(text[: text.rfind(b"\n") + 1])
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.PIPE)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.poll() is None
        if how is signal.SIGKILL:
            self.process.kill()
        else:
            ask_to_end(self.process, how)
        code = self.process.wait(LIMIT_S)
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        self.process.stderr.close()
        return code

    @property
    def size(self) -> int:
        return self.output.stat().st_size

    def wait_for_more(self) -> None:
        size = self.size
        wait_until("the feed goes on", lambda: self.size > size, LIMIT_S)

    def rows(self) -> list[Row]:
        """All whole lines. Only what has come since the last call is read."""
        with self.output.open("rb") as file:
            file.seek(self._read_to)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._rows += numbered(whole)
        return self._rows


class FilesReader(Reader):
    """``understudy feed --follow --out`` of a group, into small files."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.output = group.folder / "files.stdout"
        self._out = group.folder / "files"

    @staticmethod
    def _target(group: Group) -> list[str]:
        return ["--out", str(group.folder / "files"), "--roll-seconds", "0.3"]

    @property
    def size(self) -> int:
        return len(list(self._out.glob("[0-9]*")))

    def rows(self) -> list[Row]:
        """Of all files. One that has its name does not change any more."""
        for path in sorted(self._out.glob("[0-9]*"))[self._read_to :]:
            self._rows += numbered(path.read_bytes())
            self._read_to += 1
        return self._rows


def fresh(directory: Path) -> list[Row]:
    done = subprocess.run(
        [PROGRAM, "feed", "--data", directory, "--json"], capture_output=True, check=True, timeout=120
    )
    assert done.stderr == b""
    return numbered(done.stdout)


def numbered(lines: bytes) -> list[Row]:
    """The events of brokers: not `end`, by which a reader says how far it is."""
    return [row for row in map(json.loads, lines.splitlines()) if row["event"] != "end"]


def test_kill_9_of_brokers_and_of_the_reader(tmp_path: Path) -> None:
    """Every commit told to a client is on every broker's feed, once; a feed that was killed is the one that was not."""
    with running_group(tmp_path) as group:
        load = Load(group.ports, movers=3, pace_s=0.1)  # it runs on while brokers come back: some 10,000 rows
        load.declare()
        reader, files = Reader(group), FilesReader(group)
        readers = (reader, files)
        for each in readers:
            each.start()
        with load.running():
            load.wait_committed(30)
            for each in readers:
                each.wait_for_more()
                assert each.end(signal.SIGKILL) == -signal.SIGKILL
            backup = group.backups()[0]
            backup.kill()
            load.wait_committed(20)
            for each in readers:
                each.start()
            group.start(backup.name)
            group.ready()
            for each in readers:
                each.wait_for_more()
            primary = group.primary()
            primary.kill()
            load.wait_committed(20)
            for each in readers:
                assert each.end(signal.SIGKILL) == -signal.SIGKILL
            group.start(primary.name)
            group.ready()
            for each in readers:
                each.start()
            load.wait_committed(20)
        group.settled()
        # Its messages carry a transaction's name: one that only takes has none.
        told = {each.name for each in load.transactions if each.told is Told.COMMITTED and each.puts}
        assert len(told) > 50
        # Nothing comes behind the last commit, so no batch says that it is applied: each broker tells it.
        wait_until("every commit is on every feed", lambda: not missing(reader, told, group), 300.0, every_s=0.2)
        for broker in group.brokers.values():
            broker.stop()
        whole = by_source(fresh(group.folder))
        wait_for_rows("the feed has caught up", lambda: told_once(reader.rows()), whole)
        # A feed that is asked to end keeps what it has read, and does not read on to the end.
        wait_for_rows("in files nothing is missing, or told twice", lambda: by_source(files.rows()), whole)
        assert reader.end(signal.SIGINT) == 0
        assert files.end(signal.SIGTERM) == 0
        assert len(files.rows()) == sum(map(len, whole.values()))
        assert whole.keys() == {name + source for name in group.brokers for source in ("", "/facts")}
        facts = Counter(row["event"] for name in group.brokers for row in whole[f"{name}/facts"])
        assert not facts["dropped"]
        assert facts["promote"] >= 2, "the founder, and its successor"
        assert {"role", "status", "link_up", "link_down", "readiness", "in_sync", "expel", "admit"} <= facts.keys()
        for name, rows in whole.items():
            assert not [row for row in rows if row["event"] == "gap"]
            follows_on(rows)
            once = Counter(row["tx"] for row in rows if row["event"] == "apply" and "tx" in row)
            assert set(once.values()) <= {1}, f"{name} has applied a transaction twice"


def missing(reader: Reader, told: set[str], group: Group) -> dict[str, set[str]]:
    """By broker: names of transactions that clients were told of, and that its feed does not apply."""
    names: dict[str, str] = {}
    found: dict[str, set[str]] = {broker: set() for broker in group.brokers}
    for row in reader.rows():
        if row["event"] == "prepare":
            names[row["tx"]] = row["name"]
        elif row["event"] in ("apply", "applied") and "tx" in row:
            found[row["broker"]].add(row["tx"])
    found = {broker: {names[tx] for tx in txs} for broker, txs in found.items()}
    return {broker: told - each for broker, each in found.items() if told - each}


def follows_on(rows: list[Row]) -> None:
    """No number is missing, and each segment says how long the one before it was."""
    last: dict[str, int] = {}
    for row in rows:
        incarnation, seq = row["incarnation"], row["seq"]
        assert seq == last.get(incarnation, 0) + 1, row
        last[incarnation] = seq
        if row["event"] == "segment" and "previous" in row:
            assert last[row["previous"]] == row["previous_events"]


def test_a_broker_keeps_what_a_reader_that_asked_for_it_has_not_read(tmp_path: Path) -> None:
    """Up to the bound: the reader is stopped while the broker writes more than that; then it reads on, with a gap that says so."""
    with running_broker(tmp_path, f"{SMALL_SEGMENTS}\n[feed]\nhold_bytes = {HELD * 65_536}\n") as broker:
        command = [str(PROGRAM), "feed", "--data", str(broker.data), "--follow", "--json", "--hold", "slow"]
        output = tmp_path / "feed.jsonl"
        with output.open("wb") as out:
            reader = subprocess.Popen(command, stdout=out)
        try:
            wait_until("the reader asks", (broker.data / "slow.hold").exists, LIMIT_S)
            reader.send_signal(signal.SIGSTOP)
            write_and_take(broker.port)
            wait_until("the broker lets go of what is beyond the bound", lambda: has_let_go(broker), LIMIT_S)
            reader.send_signal(signal.SIGCONT)
            wait_until("the rest goes when it is read", lambda: first_segment(broker.data) > HELD, LIMIT_S)
            least = MESSAGES // 3
            wait_until("it has read on", lambda: output.read_bytes().count(b'"event":"enqueue"') > least, LIMIT_S)
            reader.send_signal(signal.SIGINT)
            assert reader.wait(LIMIT_S) == 0
        finally:
            reader.kill()
            reader.wait()
        told = [json.loads(line) for line in output.read_bytes().splitlines()]
        # One, or more if the broker has let go of more since it was looked at.
        gaps = [row for row in told if row["event"] == "gap"]
        assert {row["reason"] for row in gaps} == {"dropped"}
        assert gaps[0]["from_segment"] == 1
        assert least < sum(row["event"] == "enqueue" for row in told) < MESSAGES


HELD = 20
"""Segments, of about 90: without the hold the last 24 or so would be kept, with little more than a quarter of the messages."""
MESSAGES = 4000


def write_and_take(port: int) -> None:
    """Many segments of messages, all of which are taken again, but for the last."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(MESSAGES):
            channel.basic_publish("", "q", b"x" * 1024, pika.BasicProperties(delivery_mode=2))
            if number % 100 == 99:
                channel.tx_commit()
            if number == MESSAGES * 3 // 4:
                channel.tx_commit()
                channel.queue_purge("q")


def has_let_go(broker: BrokerProcess) -> bool:
    """True if the broker has dropped segments and removed all of their files: that takes it a moment."""
    dropped = int(broker.status()["journal"]["dropped_segments"])
    return dropped > 0 and first_segment(broker.data) == 1 + dropped


def first_segment(data: Path) -> int:
    return min(int(path.name[:16]) for path in data.glob("*.journal"))


FEED_PLUGIN = """
[feed]
out = "files"
roll_s = 0.2
detail = "messages"
[plugins]
feed = true
"""


def publish(port: int, count: int) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))


def take_twice(port: int) -> None:
    """The first message is taken, given back and taken again."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))) as connection:
        channel = connection.channel()
        for answer in (channel.basic_nack, channel.basic_ack):
            method, _, _ = channel.basic_get("q")
            answer(method.delivery_tag)


def test_a_feed_waits_for_its_disk_and_its_broker_does_not(tmp_path: Path) -> None:
    """The files' disk is full, then read-only: the feed says so, and goes on when there is room. The broker goes on anyway."""
    with small_disk(tmp_path / "disk", 1) as disk:
        filler = disk.path / "filler"
        filler.write_bytes(b"")
        with contextlib.suppress(OSError), filler.open("ab") as file:
            while True:
                os.write(file.fileno(), bytes(4096))
        with running_broker(tmp_path, FEED_PLUGIN.replace('"files"', f'"{disk.path}/files"')) as broker:

            def files() -> list[Path]:
                return sorted((disk.path / "files").glob("[0-9]*"))

            def enqueued() -> int:
                found = [json.loads(line) for path in files() for line in path.read_bytes().splitlines()]
                return sum(row["event"] == "enqueue" for row in found)

            publish(broker.port, 5)
            wait_until(
                "it says that the disk is full",
                lambda: "No space left on device; the feed waits" in broker.log_text(),
                LIMIT_S,
            )
            publish(broker.port, 5)
            assert not files()
            filler.unlink()
            wait_until("it goes on", lambda: enqueued() == 10, LIMIT_S)
            assert "it can be written to again" in broker.log_text()
            disk.set_read_only(True)
            publish(broker.port, 5)
            wait_until(
                "it says that the disk is read-only",
                lambda: "Read-only file system; the feed waits" in broker.log_text(),
                LIMIT_S,
            )
            publish(broker.port, 5)
            disk.set_read_only(False)
            wait_until("it goes on again", lambda: enqueued() == 20, LIMIT_S)
            assert broker.status()["plugins"]["feed"]["starts"] == 1, "it is the same process"


def test_a_broker_runs_its_feed(tmp_path: Path) -> None:
    """The broker starts its feed at low priority, again when it is killed; the feed ends with the broker, however that ends."""
    out = tmp_path / "files"

    def rows() -> list[Row]:
        files = sorted(out.glob("[0-9]*"))
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]

    def enqueued() -> int:
        return sum(row["event"] == "enqueue" for row in rows())

    def feed_pid() -> int:
        found = broker.status()["plugins"]["feed"]["pid"]
        return int(found) if found is not None else 0

    def ended(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    with running_broker(tmp_path, FEED_PLUGIN) as broker:
        publish(broker.port, 3)
        take_twice(broker.port)
        wait_until("the feed tells", lambda: enqueued() == 3, LIMIT_S)
        first = feed_pid()
        assert os.getpriority(os.PRIO_PROCESS, first) >= 10
        os.kill(first, signal.SIGKILL)
        publish(broker.port, 3)
        wait_until("the next one goes on", lambda: enqueued() == 6, LIMIT_S)
        second = feed_pid()
        assert second not in (0, first)
        broker.kill()
        wait_until("it ends with the broker", lambda: ended(second), LIMIT_S)
        broker.start()
        publish(broker.port, 3)
        wait_until("a new one goes on", lambda: enqueued() == 9, LIMIT_S)
        third = feed_pid()
        assert broker.stop() == 0
        wait_until("it ends when the broker stops", lambda: ended(third), LIMIT_S)
        broker.start()
        found, again = told_once(rows()), [row for row in rows() if row["event"] != "end"]
        assert sum(map(len, found.values())) == len(again), "nothing is told twice"
        handed = [row for row in found["b1/facts"] if row["event"] in ("deliver", "requeue")]
        assert [row["event"] for row in handed] == ["deliver", "requeue", "deliver"]
        first_time, back, again_there = handed
        assert first_time["id"] == back["id"] == again_there["id"]
        assert ("redelivered" in first_time, again_there["redelivered"]) == (False, True)
        confirms = [row for row in found["b1/facts"] if row["event"] == "confirm"]
        confirmed = [each for row in confirms for each in range(row["first_offset"], row["last_offset"] + 1)]
        assert confirmed == [row["offset"] for row in found["b1"] if row["event"] == "enqueue"]
        for told in found.values():
            follows_on(told)
