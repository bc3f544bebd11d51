"""The clients' own logs against a table of transactions: each rule finds its case, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from understudy.client.verdicts import ClientLog, Message
from understudy.pipeline.audit import client_logs
from understudy.pipeline.spark.errors import ClientLogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSACTIONS = (
    "founding string, tx string, name string, committed boolean, rolled_back boolean, transient long, came long, given long,"
    " left long"
)
FOUND = {
    ("G4", "client_committed", "gone"),
    ("G8", "client_rolled_back", "undone"),
    ("G8", "client_unresolved", "open"),
    ("G1", "client_partial", "torn"),
    ("G1", "client_partial", "untaken"),
    ("G1", "client_partial", "without an id"),
    ("G1", "client_partial", "not there"),
}


NAMES = (
    "whole",
    "gone",
    "undone",
    "open",
    "torn",
    "untaken",
    "deleted",
    "without an id",
    "not there",
    "passing",
)


def log_of(folder: Path) -> None:
    """Transactions of one client, each named for what comes of it."""
    folder.mkdir()
    with ClientLog(folder / "c.jsonl", "c", clock=lambda: 0.0) as log:
        for name in NAMES:
            log.began(name)
            log.sent([Message(f"{name}/{each}", "passing" if name == "deleted" else "q") for each in range(2)], name)
            log.acknowledged([Message(f"taken by {name}", "q")], name)
            log.commit_sent(name)
            if name == "open":
                log.unknown(name, "")
            elif name == "undone":
                log.rolled_back(name, "broker", "")
            else:
                log.committed(name)


def table(spark: SparkSession) -> DataFrame:
    effects = {
        "whole": (0, 2, 2, 1),
        "undone": (0, 2, 2, 1),
        "open": (0, 2, 2, 1),
        "torn": (0, 1, 1, 1),
        "untaken": (0, 2, 2, 0),
        "deleted": (0, 0, 0, 1),
        "without an id": (0, 2, 1, 1),
        "not there": (0, 1, 2, 1),
        "passing": (1, 1, 2, 1),
    }
    rows = [
        ("f", f"f/1.{number}", name, True, False, *numbers) for number, (name, numbers) in enumerate(effects.items())
    ]
    return spark.createDataFrame(rows, TRANSACTIONS)


def test_each_rule_finds_its_case(spark: SparkSession, tmp_path: Path) -> None:
    log_of(tmp_path / "clients")
    clients = client_logs.client_transactions(client_logs.read_client_logs(spark, tmp_path / "clients").lines)
    pairs = client_logs.matched(clients, table(spark))
    client_logs.require_one_run(pairs, "--clients")
    deletes = [("delete", "queue", "f", "passing"), ("delete", "exchange", "f", "q"), ("delete", "queue", "other", "q")]
    feed = spark.createDataFrame(deletes, "event string, what string, founding string, queue string")
    rows = client_logs.with_deleted(pairs, feed)
    found = {
        (row["promise"], row["kind"], name)
        for rule in client_logs.OF_CLIENTS
        for row in rule(rows).collect()
        for name in NAMES
        if f" {name}" in row["text"]
    }
    assert found == FOUND
    with pytest.raises(ClientLogError, match="logs of another run"):
        client_logs.require_one_run(client_logs.matched(clients, table(spark).filter("false")), "--clients")
