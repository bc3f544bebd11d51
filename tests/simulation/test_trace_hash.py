"""A seed is one run, whatever process it runs in: the hash of everything that happens is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from functools import cache

import pytest

from tests.simulation.steps_kit import Blind
from tests.simulator import cluster
from tests.simulator.checkers import came_once, holders, moved_once, routes
from tests.simulator.checkers.accounts import Accounts
from tests.simulator.checkers.restart import Restart
from tests.simulator.cluster import SimCluster
from tests.simulator.seed_run import ROOT, run_cluster

SEEDS = (14, 21, 25)
"""Cheap seeds with groups of 4, 5 and 3 brokers, catch-ups, step-downs and refusals."""
WIPED = (5, 8)
"""A broker loses its data, is expelled, and comes back as new."""
PROGRAM = """
import sys
from tests.simulator.seed_run import run_seed
for seed in map(int, sys.argv[1:]):
    print(seed, run_seed(seed).report.trace_hash)
"""


@cache
def _hashes(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *map(str, SEEDS)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_equal_seeds_are_equal_runs_in_processes_that_hash_differently() -> None:
    first = _hashes("1")
    assert len(first.splitlines()) == len(SEEDS)
    assert _hashes("4242") == first


def test_other_seeds_are_other_runs() -> None:
    assert len({line.split()[1] for line in _hashes("1").splitlines()}) == len(SEEDS)


def test_a_story_that_is_kept_changes_nothing() -> None:
    silent, telling = SimCluster(SEEDS[0]), SimCluster(SEEDS[0], keep_story=True)
    run_cluster(silent)
    run_cluster(telling)
    assert telling.world.story
    assert silent.world.trace_hash == telling.world.trace_hash


@pytest.mark.parametrize("seed", [*SEEDS, *WIPED])
def test_checkers_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = SimCluster(seed)
    run_cluster(watched)
    assert seed not in WIPED or watched.world.faults["wipe"]
    monkeypatch.setattr(cluster, "Checkers", Blind)
    monkeypatch.setattr(cluster, "watching_queues", nullcontext)
    monkeypatch.setattr(Restart, "check", Blind._nothing)
    monkeypatch.setattr(Accounts, "check", Blind._nothing)
    monkeypatch.setattr(routes, "check", Blind._nothing)
    monkeypatch.setattr(holders, "check", Blind._nothing)
    monkeypatch.setattr(moved_once, "check", Blind._nothing)
    monkeypatch.setattr(came_once, "check", Blind._nothing)
    unwatched = SimCluster(seed)
    assert run_cluster(unwatched).held
    assert not unwatched.checkers.reference.end, "a checker was at work"
    assert watched.world.trace_hash == unwatched.world.trace_hash
    assert watched.world.events == unwatched.world.events
