"""The feed of simulated clusters: what a broker holds can be told from its feed alone, read in pieces, whatever happens to it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.command import main
from tests.simulator.feed_model import FeedModel
from tests.simulator.seed_run import run_cluster
from tests.simulator.sim_feed import SimFeed
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal_recovery import scan
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import Event, event_name
from understudy.observers.feed.reader import FeedReader
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.testing.disk import MemoryStorage

SEEDS = (2, 4, 5, 20, 122, 175)
"""Among them catch-ups, step-downs, branches, brokers that lose their data, and one that lets go of a log that fills its disk."""


class Told:
    """The outcomes that clients were told, held against the journals of all brokers: an audit, in the small."""

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.confirmed: set[int] = set()
        self.enqueued: set[int] = set()
        self.in_transactions: dict[int, str] = {}
        self.names: Counter[str] = Counter()

    def take(self, events: list[Event]) -> None:
        for event in events:
            if event.incarnation.startswith("p"):
                self.names[event_name(type(event).__name__)] += 1
            match event:
                case schema.Told(outcome="committed") if event.csn:
                    self.committed.add(event.tx)
                case schema.Confirm() if event.first_offset:
                    self.confirmed.update(range(event.first_offset, event.last_offset + 1))
                case schema.Enqueue(tx=""):
                    self.enqueued.add(event.offset)
                case schema.Enqueue():
                    self.in_transactions[event.offset] = event.tx
                case schema.Hole():  # transient messages, which no journal keeps
                    self.enqueued.update(range(event.offset - event.count + 1, event.offset + 1))
                case _:
                    pass

    def check(self, committed: set[str]) -> None:
        assert self.committed
        assert self.committed <= committed
        for offset in self.confirmed - self.enqueued:  # a body in parts: it came in a transaction of its own
            assert self.in_transactions[offset] in committed


class Watched:
    """A run and its feed, by broker."""

    def __init__(self, seed: int) -> None:
        self.cluster = SimCluster(seed)
        self.models: dict[str, FeedModel] = defaultdict(FeedModel)
        self.told = Told()
        feed = SimFeed(self.cluster, self._take)
        self.result = run_cluster(self.cluster)
        feed.finish()

    def _take(self, broker: str, events: list[Event]) -> None:
        self.models[broker].take(events)
        self.told.take(events)


watched = cache(Watched)


def test_facts_that_are_no_record_are_in_the_feed() -> None:
    """Of every kind that there is, by the code of the real broker; and they change nothing."""
    kinds = "role status in_sync readiness blocker tracker_add tracker_clear vote expel admit promote step_down"
    kinds += " link_up link_down work_refused work_taken applied confirm told deliver requeue"
    names = watched(2).told.names + watched(360).told.names
    assert not set(kinds.split()) - names.keys()
    assert not names["dropped"]
    assert watched(2).result.report.trace_hash == run_cluster(SimCluster(2)).report.trace_hash


def recovered(storage: MemoryStorage) -> BrokerState:
    """The state that a start would make of that disk."""
    state = BrokerState(0)
    replicator = BrokerReplicator(state)
    scan(storage.clone(), Recovery(state, replicator.replay_note, replicator.replay_extras))
    return state


def durable_ids(state: BrokerState) -> dict[int, set[int]]:
    """Ids of the persistent messages that a journal keeps, by durable queue."""
    return {
        queue.id: {entry.id for entry in queue.entries.values() if entry.message.persistent}
        for queue in state.queues.values()
        if queue.durable
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_queues_and_transactions_can_be_told_from_the_feed(seed: int) -> None:
    run = watched(seed)
    cluster, models = run.cluster, run.models
    assert run.result.held, run.result
    run.told.check(set().union(*(model.committed for model in models.values())))
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
        assert {"epoch", "prepare", "commit", "append", "apply", "role", "link_up"} <= {
            each["event"] for each in events
        }
        assert all(event["at_ms"] > 1_700_000_000_000 for event in events if event["event"] != "segment")


def test_a_feed_that_goes_on_anywhere_is_the_one_that_was_never_interrupted() -> None:
    """On the disk that a run with catch-ups and cuts leaves behind, at places that a seed draws."""
    random = Random(20)
    for node in watched(20).cluster.nodes.values():
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
