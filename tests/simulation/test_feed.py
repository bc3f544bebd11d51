"""The feed of simulated clusters: what a broker holds can be told from its feed alone, read in pieces, whatever happens to it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from tests.simulation.cluster import SimCluster
from tests.simulation.command import main
from tests.simulation.disk import MemoryStorage
from tests.simulation.feed_model import FeedModel
from tests.simulation.seed_run import run_cluster
from tests.simulation.sim_feed import SimFeed
from understudy.broker.core.recovery import Recovery
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal_recovery import scan
from understudy.observers.events_schema import Event
from understudy.observers.feed_reader import FeedReader
from understudy.replicator.broker_replicator import BrokerReplicator

SEEDS = (4, 5, 20, 122, 175)
"""Among them catch-ups, step-downs, branches, brokers that lose their data, and one that lets go of a log that fills its disk."""


def recovered(storage: MemoryStorage) -> BrokerState:
    """What a start would make of that disk."""
    state = BrokerState(0)
    replicator = BrokerReplicator(state)
    scan(storage.clone(), Recovery(state, replicator.replay_note, replicator.replay_extras))
    return state


def durable_ids(state: BrokerState) -> dict[int, set[int]]:
    """What a journal keeps of the queues."""
    return {
        queue.id: {entry.id for entry in queue.entries.values() if entry.message.persistent}
        for queue in state.queues.values()
        if queue.durable
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_queues_and_transactions_can_be_told_from_the_feed(seed: int) -> None:
    cluster = SimCluster(seed)
    models: dict[str, FeedModel] = defaultdict(FeedModel)
    feed = SimFeed(cluster, lambda broker, events: models[broker].take(events))
    result = run_cluster(cluster)
    assert result.held, result
    feed.finish()
    assert models.keys() == cluster.nodes.keys()
    for name, node in cluster.nodes.items():
        model = models[name]
        assert model.whole, f"{name} has a gap"
        assert set(model.applied.values()) <= {1}, f"{name} has applied a transaction twice"
        state = recovered(node.storage)
        wanted = durable_ids(state)
        found = {queue: model.queues[queue] for queue in wanted}
        assert found == wanted, name


def test_the_command_writes_a_file_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--minima", "0", "--feed", str(tmp_path / "feed")]) == 0
    files = sorted((tmp_path / "feed").iterdir())
    assert [file.name for file in files] == ["b1.jsonl", "b2.jsonl", "b3.jsonl"]
    for file in files:
        events = [json.loads(line) for line in file.read_text().splitlines()]
        assert {event["broker"] for event in events} == {file.stem}
        assert {"epoch", "prepare", "commit", "append", "apply"} <= {event["event"] for event in events}
        assert all(event["at_ms"] > 1_700_000_000_000 for event in events if event["event"] != "segment")


def test_a_feed_that_goes_on_anywhere_is_the_one_that_was_never_interrupted() -> None:
    """On the disk that a run with catch-ups and cuts leaves behind, at places that a seed draws."""
    cluster = SimCluster(20)
    run_cluster(cluster)
    random = Random(20)
    for node in cluster.nodes.values():
        reader = FeedReader(node.storage)
        lists: list[list[Event]] = []
        cursors: list[bytes | None] = []
        for events in reader.events():
            lists.append(events)
            cursors.append(reader.cursor())
        for place in random.sample(range(len(lists)), 12):
            resumed = FeedReader(node.storage, cursors[place])
            assert list(resumed.events()) == lists[place + 1 :]
            assert resumed.cursor() == cursors[-1]
