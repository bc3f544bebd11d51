"""The logs of simulated clients, read again from their files, are judged as the books are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import attrs
import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.command import main
from tests.simulator.seed_run import run_cluster
from tests.simulator.sim_client_logs import write_client_logs
from tests.simulator.workloads import kept_queues
from understudy.client.verdicts import LOG_VERDICTS, Case, History, LogContent, Violation, read_logs


def found(case: Case) -> list[Violation]:
    return [violation for verdict in LOG_VERDICTS for violation in verdict(case)]


def of_kept(case: Case, kept: Collection[str]) -> Case:
    """``case``, without what transactions make for other queues."""
    transactions = {
        name: attrs.evolve(each, makes=tuple(made for made in each.makes if made.queue in kept))
        for name, each in case.history.transactions.items()
    }
    return attrs.evolve(case, history=attrs.evolve(case.history, transactions=transactions))


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_logs_are_judged_as_the_books_are(seed: int, tmp_path: Path) -> None:
    cluster = SimCluster(seed)
    assert run_cluster(cluster).held
    write_client_logs(cluster, tmp_path)
    kept = kept_queues(cluster.knobs)
    books = of_kept(cluster.accounts.case(kept), kept)
    read = attrs.evolve(books, history=History.of(read_logs(tmp_path)))
    assert read.history.transactions.keys() == books.history.transactions.keys()
    assert found(books) == found(read) == []
    # Against the log of a cluster to which nothing came, each of both says the same, too.
    empty = LogContent(came=(), left={}, outcomes={})
    complaints = [
        {(each.kind, each.subject, each.text) for each in found(attrs.evolve(case, log=empty))}
        for case in (books, read)
    ]
    assert complaints[0] == complaints[1]
    assert len(complaints[0]) > 50


def test_the_command_writes_a_file_a_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "clients"
    assert main(["--seed", "1", "--minima", "0", "--clients", str(folder)]) == 0
    assert {"plain.jsonl", "teller0.jsonl"} <= {path.name for path in folder.iterdir()}
    assert len(History.of(read_logs(folder)).transactions) >= 100
