"""``understudy audit``, ``report`` and ``stream`` of a cluster's feed in a real Kafka; tables in Delta, alerts in Kafka."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from scripts.service_tools.kafka_keeper import SharedKafka
from tests.integration.broker_process import wait_until
from tests.integration.kafka_reading import messages
from tests.integration.test_kafka_feed import Feed, topic_of
from tests.stress.group import running_group
from tests.stress.load import Load
from understudy.pipeline.submit import app

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

TOLD = '[journal]\nsegment_bytes = 4194304\nreserve_bytes = 0\n[feed]\ndetail = "messages"\n'
QUERIES = ("throughput", "latency", "watch")


@attrs.frozen
class Place:
    """Where one cluster's feed is, and which primary was killed."""

    kafka: str
    topic: str
    folder: Path
    killed: str

    @property
    def feed(self) -> list[object]:
        return ["--feed", f"kafka:{self.topic}", "--kafka", self.kafka, "--master", "local[2]", "--memory", "1g"]

    def stream(self, *more: object) -> list[object]:
        places = ("--checkpoint", self.folder / "checkpoint", "--out", self.folder / "tables", "--format", "delta")
        return ["stream", *self.feed, *places, "--once", *more]

    def table(self, name: str) -> list[dict[str, object]]:
        """All rows of a Delta table, as its log names the files."""
        root = self.folder / "tables" / name
        files: set[str] = set()
        for commit in sorted((root / "_delta_log").glob("*.json")):
            for action in map(json.loads, commit.read_text().splitlines()):
                files |= {action["add"]["path"]} if "add" in action else set()
                files -= {action["remove"]["path"]} if "remove" in action else set()
        return [row for file in files for row in pyarrow.parquet.read_table(root / file).to_pylist()]

    def forget_last_batches(self) -> None:
        """As if the stream had been killed behind the last writes of each query: its last batch is not known to be done."""
        for query in QUERIES:
            commits = self.folder / "checkpoint" / "queries" / query / "commits"
            last = max(int(path.name) for path in commits.glob("[0-9]*"))
            (commits / str(last)).unlink()
            (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def place(tmp_path: Path, kafka: str) -> Place:
    """Three brokers under load, whose primary is killed with SIGKILL; their whole feed is in a topic."""
    topic = topic_of(kafka, "pipeline")
    with running_group(tmp_path / "cluster", TOLD) as group:
        load = Load(group.ports, movers=2, pace_s=0.02)
        load.declare()
        feed = Feed(group.folder, tmp_path, "--kafka", kafka, "--topic", topic, "--hold", "kafka")
        with feed.running():
            wait_until("the feed has begun", (tmp_path / "feed.state").exists, 90.0)
            with load.running():
                load.wait_committed(8)
                primary = group.primary()
                primary.kill()
                load.wait_committed(8)
                group.start(primary.name)
                group.ready()
            group.settled()
            assert feed.end(signal.SIGTERM) == 0
        for broker in group.brokers.values():
            broker.stop()
        assert feed.once().exit_code == 0
    return Place(kafka, topic, tmp_path, primary.name)


@attrs.frozen
class Done:
    """The end of one command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


def run(line: Sequence[object]) -> Done:
    """Run a command in this process, whose Java is warm."""
    result = CliRunner().invoke(app, [str(word) for word in line])
    fault = repr(result.exception) if result.exception is not None else ""
    return Done(result.exit_code, result.stdout, result.stderr + fault)


def as_user(server: SharedKafka, user: str, password: str) -> list[str]:
    """Options for the SASL listener."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="{password}";'
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": login,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": server.cert,
    }
    options = [word for key, value in settings.items() for word in ("--kafka-option", f"kafka.{key}={value}")]
    return ["--kafka", server.sasl_hosts, *options]


@pytest.mark.usefixtures("spark", "handlers")
def test_a_feed_in_kafka_is_proved_reported_and_streamed(place: Place, kafka_server: SharedKafka) -> None:
    """A batch that runs again is in Delta once; its alerts come again with their keys."""
    alerts = topic_of(place.kafka, "pipeline-alerts", 1)
    nowhere = ("--feed", "kafka:nowhere", "--kafka", place.kafka)
    page = place.folder / "report.html"
    to_alerts = ("--alerts", f"kafka:{alerts}")
    lines: list[list[object]] = [
        ["audit", *place.feed, "--json", "--partitions", "2"],
        ["report", *place.feed, "--json", "--out", page],
        place.stream(*to_alerts),
        ["audit", *nowhere],
        ["report", *nowhere, "--out", page],
        ["stream", *nowhere, "--out", place.folder / "none", "--checkpoint", place.folder / "c"],
        place.stream("--alerts", "kafka:no-alerts"),
        ["audit", "--feed", f"kafka:{place.topic}", *as_user(kafka_server, "stranger", "wrong")],
        ["audit", "--feed", f"kafka:{place.topic}", *as_user(kafka_server, "stranger", "stranger-secret")],
    ]
    audited, reported, streamed, *refused = [run(line) for line in lines]
    assert audited.code == 0, audited.err
    proved = audited.json()
    assert (proved["verdict"], proved["brokers"], proved["missing"]) == ("PROVED", 3, [])
    assert proved["committed"] > 16
    assert "converting to Parquet" not in audited.err + reported.err  # a topic of few messages is a small feed

    assert reported.code == 0, reported.err
    failovers = reported.json()["failovers"]  # the first by the kill, others as the brokers are stopped in turn
    assert failovers[0]["was"] == place.killed
    assert "<html" in page.read_text()

    assert streamed.code == 0, streamed.err
    kinds = Counter(row["kind"] for row in place.table("alerts"))
    assert kinds["new_primary"] == 1 + len(failovers)
    told = messages(place.kafka, alerts)
    assert sorted(each.key for each in told) == sorted(str(row["id"]) for row in place.table("alerts"))
    assert all(each.key == each.row["id"] for each in told)
    absent = f"topic 'nowhere' at {place.kafka}: Kafka has no such topic"
    of_user = f"topic '{place.topic}' at {kafka_server.sasl_hosts}: "
    said = [absent] * 3 + [
        "topic 'no-alerts'",
        f"{of_user}Kafka refuses the credentials",
        f"{of_user}this user lacks an ACL",
    ]
    _named(refused, said)

    before = {name: place.table(name) for name in ("alerts", "open", "readiness")}
    assert all(before.values())
    place.forget_last_batches()
    again = run(place.stream(*to_alerts))
    assert again.code == 0, again.err
    assert {name: place.table(name) for name in before} == before
    twice = messages(place.kafka, alerts)
    assert len(twice) > len(told)
    assert {each.key for each in twice} == {each.key for each in told}


def _named(refused: list[Done], said: list[str]) -> None:
    for each, words in zip(refused, said, strict=True):
        assert (each.code, words in each.err) == (2, True), each.err
