"""A coordinator of another package in a real broker: what clients and operators see, and when another one may take over."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import BrokerProcess, remove_journals, running_broker, wait_until
from tests.integration.dtx_channel import OK, Xid
from tests.integration.dtx_workbench import Workbench

pytestmark = pytest.mark.integration

CONFIG = 78
MODULE = """
from understudy.broker.coordinators import GroupCommitCoordinator, Order, Refused


class NoSpam(GroupCommitCoordinator):
    api_version = 1

    def order(self, batch):
        bad = [tx for tx in batch if tx.refusable and tx.name == self.options["word"]]
        good = [tx for tx in batch if tx not in bad]
        return Order(now=good, refused=[Refused(tx, "no spam here") for tx in bad])

    def commit_ordered(self, tx, csn):
        if tx.name == "trip":
            raise OSError("tripped")
"""
UNDER = '[transactions]\ncoordinator = "nospam"\n[transactions.options]\nword = "spam"\n'
X = Xid(7, b"held", b"")
"""Its branch id is empty."""


def install(folder: Path) -> Path:
    """The package, as an installer leaves it; where it is."""
    about = folder / "site" / "nospam-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nospam\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[understudy.coordinators]\nnospam = nospam:NoSpam\n")
    (folder / "site" / "nospam.py").write_text(MODULE)
    return folder / "site"


def commit(broker: BrokerProcess, name: str) -> str:
    """ "" if it is committed, else what the client is told."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-understudy-tx": name})
        channel.basic_publish("", "q", name.encode(), properties)
        try:
            channel.tx_commit()
        except pika.exceptions.ChannelClosedByBroker as error:
            return f"{error.reply_code} {error.reply_text}"
        return ""


def prepare_branch(broker: BrokerProcess) -> None:
    bench = Workbench(broker.port, "coordinators")
    worker = bench.dtx()
    assert worker.start(X) == OK
    worker.channel.basic_publish("", "q", b"of the branch", pika.BasicProperties(delivery_mode=2))
    assert worker.end(X) == OK
    assert bench.tm().prepare(X) == OK
    bench.abandon()


def refused_start(broker: BrokerProcess) -> str:
    """The last line of a start that is refused for its configuration."""
    done = subprocess.run([*broker.command, broker.config], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == CONFIG, done.stderr
    return done.stderr.splitlines()[-1]


def test_a_coordinator_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)))
    broker = BrokerProcess(tmp_path, UNDER)
    monkeypatch.chdir(tmp_path)
    broker.start()
    try:
        assert commit(broker, "ham") == ""
        assert "406 PRECONDITION_FAILED - transaction" in (told := commit(broker, "spam"))
        assert told.endswith("rolled back: refused by coordinator nospam: no spam here")
        assert broker.status()["coordinator"]["health"] == "ok"
        assert commit(broker, "trip") == "", "what a hook raises afterwards changes nothing"
        row = broker.status()["coordinator"]
        assert (row["configured"], row["in_force"], row["participants"]) == ("nospam", "nospam", ["queues", "nospam"])
        assert (row["health"], row["errors"]) == ("failing", 1)
        assert row["newest_error"]["hook"] == "nospam.commit_ordered"
        assert row["groups"]["turn"] == 3
        shown = subprocess.run(
            [broker.command[0], "status", "--url", f"http://127.0.0.1:{broker.ports['http']}"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
        assert "b1: nospam, 1 errors, newest in nospam.commit_ordered: OSError: tripped" in shown.stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as page:
            series = page.read().decode().splitlines()
        assert "understudy_coordinator_errors_total 1.0" in series
        assert 'understudy_tx_groups_total{trigger="turn"} 3.0' in series

        prepare_branch(broker)
        broker.kill()
        text = broker.config.read_text()
        broker.config.write_text(text.replace(UNDER, ""))
        said = refused_start(broker)
        assert "'group_commit', but the log holds 1 undecided transactions of coordinator 'nospam': 7:held:." in said
        assert "Start with coordinator = 'nospam' until they are decided" in said

        broker.config.write_text(text)
        broker.start()
        bench = Workbench(broker.port, "coordinators")
        assert bench.tm().commit(X) == OK
        bench.close()
        assert broker.stop(signal.SIGTERM) == 0
        broker.config.write_text(text.replace(UNDER, ""))
        broker.start()
        row = broker.status()["coordinator"]
        assert (row["configured"], row["in_force"], row["participants"]) == ("group_commit", "null", ["queues"])
        wait_until("all is there", lambda: broker.status()["queue_totals"]["ready"] == 3)
        assert broker.stop() == 0
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        remove_journals(tmp_path)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ('coordinator = "nospan"', "coordinator 'nospan' is not installed (did you mean 'nospam'?)"),
        ('coordinator = "nospam"\nmax_withheld_ms = 0', "transactions.max_withheld_ms"),
        ('coordinator = "null"\n[plugins]\nha = true', "transactions.coordinator is 'null', which coordinates nothing"),
    ],
)
def test_a_choice_that_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, said: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)))
    monkeypatch.chdir(tmp_path)
    more = f'[coordination]\npath = "{tmp_path}/c.db"\n[link]\nport = 0\nsecret = "s"\n' if "ha" in extra else ""
    broker = BrokerProcess(tmp_path, f"[transactions]\n{extra}\n{more}")
    assert said in refused_start(broker)


COMMITTERS, QUEUES, COMMITS = 64, 4, 6


def commit_many(broker: BrokerProcess, number: int, start: threading.Barrier) -> None:
    """One committer: its transactions go to one of the queues, one after the other."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.tx_select()
        start.wait()
        for count in range(COMMITS):
            name = f"{number}-{count}"
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-understudy-tx": name})
            channel.basic_publish("", f"q{number % QUEUES}", name.encode(), properties)
            channel.tx_commit()


def names_in_the_log(broker: BrokerProcess) -> list[str]:
    """The transactions in the order of their PREPARE records."""
    command = [broker.command[0], "journal", "dump", broker.data]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    return [event["name"] for event in events if event.get("event") == "prepare"]


@pytest.mark.parametrize("under", ["", UNDER], ids=["group_commit", "nospam"])
def test_many_committers_share_fsyncs_and_each_queue_has_the_order_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)))
    with running_broker(tmp_path, under) as broker:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
            channel = connection.channel()
            for number in range(QUEUES):
                channel.queue_declare(f"q{number}", durable=True)
            start = threading.Barrier(COMMITTERS + 1)
            with ThreadPoolExecutor(COMMITTERS) as pool:
                done = [pool.submit(commit_many, broker, number, start) for number in range(COMMITTERS)]
                start.wait()
                before = broker.status()["journal"]["sync_times"]["syncs"]
                for each in done:
                    each.result()
            syncs = broker.status()["journal"]["sync_times"]["syncs"] - before
            found = [
                [
                    channel.basic_get(f"q{number}", auto_ack=True)[2].decode()
                    for _ in range(COMMITTERS * COMMITS // QUEUES)
                ]
                for number in range(QUEUES)
            ]
        print(f"{COMMITTERS * COMMITS} commits, {syncs} fsyncs")
        assert syncs < COMMITTERS * COMMITS / 2
        in_the_log = names_in_the_log(broker)
        for number, names in enumerate(found):
            assert names == [name for name in in_the_log if int(name.partition("-")[0]) % QUEUES == number]
