"""Runs seeds without checkers and prints each one's trace hash: for a compiled core.

Checkers watch by overriding methods of the core, which a compiled core does not allow. So both builds run without; if their
hashes agree, what the checkers find in the sources holds for both. (The hash of a run with checkers is another one for some seeds:
faults are chosen with a look at ``SimNode.wiped``, which checkers reset.)

    PYTHONPATH=<site-packages of .venv-compiled>:. .venv-compiled/bin/python -P -m tests.simulation.unwatched 1 4 14
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from unittest import mock

from tests.simulation import cluster, sim_node
from tests.simulation.checkers import Checkers
from tests.simulation.seed_run import run_cluster
from understudy.broker.core import state
from understudy.broker.log.live_offsets import LiveOffsets

TOLD = ("after_event", "leaving", "opened", "said", "sent", "shown", "store_changed", "touched")
"""What the simulator tells the checkers."""


def _live(_node: object) -> LiveOffsets:
    return LiveOffsets()


def main(seeds: list[int]) -> None:
    print(state.__file__)
    with ExitStack() as stack:
        for name in TOLD:
            stack.enter_context(mock.patch.object(Checkers, name))
        stack.enter_context(mock.patch.object(cluster.SimCluster, "final_check"))
        stack.enter_context(mock.patch.object(cluster, "watching_queues", nullcontext))
        stack.enter_context(mock.patch.object(sim_node, "WatchedLive", _live))
        for seed in seeds:
            result = run_cluster(cluster.SimCluster(seed))
            print(seed, result.report.trace_hash, result.end.value, result.traceback or result.text)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])
