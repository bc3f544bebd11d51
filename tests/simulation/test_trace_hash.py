"""A seed is one run, in every process and for every observer: the hash of everything that happens is the same."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulator.cluster import SimCluster
from tests.simulator.seed_run import ROOT, run_cluster

SEEDS = (14, 21, 25)
"""Cheap seeds with groups of 4, 5 and 3 brokers, catch-ups, step-downs and refusals."""
WIPED = (5, 8)
"""A broker loses its data, is expelled, and comes back as new."""
PROGRAM = """
import sys
from tests.simulation.steps_kit import all_blind
from tests.simulator.cluster import SimCluster
from tests.simulator.seed_run import run_cluster
with all_blind():
    for seed in map(int, sys.argv[1:]):
        cluster = SimCluster(seed)
        assert run_cluster(cluster).held
        assert not cluster.checkers.reference.end, "a checker was at work"
        print(seed, cluster.world.events, cluster.world.trace_hash)
"""


def test_equal_seeds_are_equal_runs_in_processes_that_hash_differently() -> None:
    """Checkers and a story that is kept change nothing: the other process has neither."""
    told = []
    for seed in (*SEEDS, *WIPED):
        watched = SimCluster(seed, keep_story=True)
        assert run_cluster(watched).held
        assert watched.world.story
        assert watched.checkers.reference.end
        assert seed not in WIPED or watched.world.faults["wipe"]
        told.append(f"{seed} {watched.world.events} {watched.world.trace_hash}")
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *map(str, (*SEEDS, *WIPED))]
    other = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert other.splitlines() == told
    assert len({line.split()[2] for line in told}) == len(told), "other seeds are other runs"
