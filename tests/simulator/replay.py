"""One seed, or one scenario, again, with its story for people: who it is about, what happened, how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.simulator.campaign import run_mutated
from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import Fixed, Knobs
from tests.simulator.mutations import MUTATIONS
from tests.simulator.seed_run import SeedResult, run_cluster
from tests.simulator.shrinking import Script
from tests.simulator.shrinking.strike_text import show_strike
from tests.simulator.sim_client_logs import write_client_logs
from tests.simulator.sim_feed import FeedFiles, SimFeed
from understudy.broker.transactions.outcome_query import tx_id_text


def replay(
    seed: int,
    *,
    mutation: str = "",
    fixed: Fixed | None = None,
    trace: bool = False,
    feed: Path | None = None,
    clients: Path | None = None,
) -> tuple[SeedResult, list[str]]:
    """Run ``seed`` and tell about it; ``trace`` tells everything; of a mutated run nothing is ``fixed``.

    ``feed``: a directory for the event feed, a file a broker; ``clients``: one for the clients' logs. Not of a mutated run.
    """
    if mutation:
        result, strikes, cluster = run_mutated(mutation, seed, keep_story=trace)
        heading = [f"with {mutation} ({MUTATIONS[mutation].breaks}), which struck {strikes} times"]
    else:
        drawn = Knobs.draw(seed)
        cluster = SimCluster(seed, knobs=drawn.fixed(fixed) if fixed is not None else drawn, keep_story=trace)
        written = SimFeed(cluster, FeedFiles(feed).take, anew=True) if feed is not None else None
        result = run_cluster(cluster)
        if written is not None:
            written.finish()
        if clients is not None:
            write_client_logs(cluster, clients)
        heading = []
    knobs = cluster.knobs
    chance = (
        f"faults: {', '.join(sorted(set(knobs.faults)))}; one in {knobs.gap_ms} ms, bursts {knobs.burst}, "
        f"ambushes {knobs.ambush}"
    )
    return result, [_cast(cluster), chance, *heading, *(_story(cluster) if trace else ()), *_end(cluster, result)]


def replay_script(script: Script, *, trace: bool = False) -> tuple[SeedResult, list[str]]:
    """Run ``script`` and tell about it; ``trace`` tells everything."""
    ran = script.run(keep_story=trace)
    heading = [f"with {script.mutation} ({MUTATIONS[script.mutation].breaks})"] if script.mutation else []
    strikes = [show_strike(struck) for struck in script.strikes] or ["no strikes"]
    story = _story(ran.cluster) if trace else ()
    return ran.result, [_cast(ran.cluster), *strikes, *heading, *story, *_end(ran.cluster, ran.result)]


def _cast(cluster: SimCluster) -> str:
    """The participants, in one line."""
    knobs = cluster.knobs
    return (
        f"seed {cluster.world.seed}: {knobs.brokers} brokers, min_insync {knobs.min_insync}; "
        f"{knobs.tellers} tellers and {', '.join(sorted(knobs.workloads)) or 'nobody else'}"
    )


def _story(cluster: SimCluster) -> Iterator[str]:
    yield from cluster.world.story or ()
    yield "queues: " + ", ".join(
        f"{tx_id_text(queue.id)} is {queue.name}" for queue in cluster.checkers.reference.queues.values()
    )


def _end(cluster: SimCluster, result: SeedResult) -> Iterator[str]:
    report = result.report
    yield (
        f"{report.transactions} transactions decided ({report.committed} committed, {report.rolled_back} rolled back, "
        f"{report.resolved_by_asking} of them known by asking), {report.events} events, trace hash {report.trace_hash}"
    )
    if not result.held:
        yield cluster.describe()
