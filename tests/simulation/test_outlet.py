"""The outlet over simulated clusters: from every broker's journal, and every position, the same transactions come, each once."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from random import Random

import attrs
import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import NO_COMPACTION, Knobs
from tests.simulator.seed_run import run_cluster
from tests.simulator.sim_feed import SimFeed
from understudy.broker.log.position import Position
from understudy.broker.log.segment import NoJournalError
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import Event
from understudy.observers.outlet.errors import OutletGapError
from understudy.observers.outlet.reading.reader import NOTHING, OutletReader
from understudy.observers.outlet.reading.segments import JournalSegments
from understudy.observers.outlet.reading.units import Unit

SEEDS = (4, 20, 175)
"""Among them catch-ups, step-downs, branches, brokers that lose their data, and one that lets go of a log that fills its disk."""

REPEATS_BODIES = 12
"""A seed in which a MOVE carries the body."""

Flat = tuple[str, int, tuple[tuple[str, int, bytes], ...]]


def flat(unit: Unit) -> Flat:
    return (
        unit.tx,
        unit.csn,
        tuple((each.queue, each.entry_id, bytes(each.message.content())) for each in unit.messages),
    )


class Applied:
    """The transactions in the feeds of all brokers: by offset of PREPARE, the one that was applied there."""

    def __init__(self) -> None:
        self.transactions: dict[int, tuple[str, int]] = {}
        self.rows: dict[str, set[int]] = defaultdict(set)

    def take(self, broker: str, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, schema.Apply) and event.tx:
                assert self.transactions.setdefault(event.offset, (event.tx, event.csn)) == (event.tx, event.csn)
                self.rows[broker].add(event.offset)


def with_whole_journals(seed: int) -> Knobs:
    """As the seed draws them, but journals keep old segments, so that many positions can be read from."""
    return attrs.evolve(Knobs.draw(seed), compaction=NO_COMPACTION)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_journal_tells_the_same_from_every_position(seed: int) -> None:
    cluster, applied = SimCluster(seed, knobs=with_whole_journals(seed)), Applied()
    feed = SimFeed(cluster, applied.take)
    result = run_cluster(cluster)
    feed.finish()
    assert result.held, result
    reference: dict[int, Flat] = {}
    found: dict[str, list[int]] = {}
    for name, node in cluster.nodes.items():
        reader = OutletReader(node.storage, NOTHING, accept_gaps=True)
        units = [unit for units in reader.units() for unit in units]
        assert [unit.offset for unit in units] == sorted(unit.offset for unit in units)
        assert all(unit.messages for unit in units)
        for unit in units:
            assert reference.setdefault(unit.offset, flat(unit)) == flat(unit), f"{name} differs at {unit.offset}"
        found[name] = [unit.offset for unit in units if unit.offset >= reader.log.covered_from]
    sent = [each for each in reference.values() if each[0]]
    assert len({each[0] for each in sent}) == len(sent) > 20
    for offset, each in reference.items():
        if each[0]:
            assert applied.transactions[offset] == each[:2]
    ordered = [reference[offset][1] for offset in sorted(reference) if reference[offset][1]]
    assert ordered == sorted(ordered), "by CSN"
    _resumed_anywhere(cluster, reference, found, Random(seed))


def test_dead_letters_come_with_their_bodies_from_every_position() -> None:
    cluster = SimCluster(REPEATS_BODIES, knobs=with_whole_journals(REPEATS_BODIES))
    result = run_cluster(cluster)
    assert result.held, result
    reference: dict[int, Flat] = {}
    found: dict[str, list[int]] = {}
    dead = 0
    for name, node in cluster.nodes.items():
        reader = OutletReader(node.storage, NOTHING, accept_gaps=True)
        units = [unit for units in reader.units() for unit in units]
        messages = [each for unit in units if not unit.tx for each in unit.messages if each.message.moved]
        assert [each for each in messages if each.bodiless] == []
        assert all(each.message.size == len(each.message.content()) for each in messages)
        dead += len(messages)
        for unit in units:
            assert reference.setdefault(unit.offset, flat(unit)) == flat(unit), f"{name} differs at {unit.offset}"
        found[name] = [unit.offset for unit in units]
    assert dead > 20
    _resumed_anywhere(cluster, reference, found, Random(REPEATS_BODIES))


def _resumed_anywhere(
    cluster: SimCluster, reference: dict[int, Flat], found: dict[str, list[int]], random: Random
) -> None:
    """An outlet that was on one broker goes on at another one: what is behind the position comes, or an error."""
    whole = 0
    offsets = sorted(reference)
    for offset in random.sample(offsets, 8):
        epoch = 1 << 20  # no epoch of the log is newer: nothing was rewritten
        for name, node in cluster.nodes.items():
            reader = OutletReader(
                node.storage,
                Position(epoch, offset),
                "",
                JournalSegments(node.storage).place_of(min(offsets[0], offset)),
            )
            with suppress(NoJournalError):
                try:
                    units = [unit for units in reader.units() for unit in units]
                except OutletGapError:
                    continue
                end = reader.log.applied.offset
                wanted = [each for each in offsets if offset < each <= end]
                assert [unit.offset for unit in units] == wanted, (name, offset)
                assert [flat(unit) for unit in units] == [reference[each] for each in wanted]
                whole += bool(wanted)
    assert whole, "no journal could be read from any position"
