"""The modules that decide, and so must be run by the simulation: whole rooms, less what is named here with its reason.

A module that is added to one of these rooms counts at once.
"""

from __future__ import annotations

from pathlib import Path

from tests.simulator.seed_run import ROOT

ROOMS = ("broker/core", "broker/log", "broker/transactions", "observers", "replicator", "ha")
EDGES = {"edge", "direct"}
"""Folders that do I/O and decide nothing."""
EXCEPTIONS = {
    "broker/core/commits/coordinator_swap.py": "asked by the edge, before a core runs",
    "broker/log/storage.py": "the port to the disk, and the jobs that touch it",
    "broker/log/journal_reader.py": "reads a journal's batches back from files; no broker core asks for it",
    "broker/log/spare_segment.py": "makes segments ahead of time beside the turn: a driver's business",
    "replicator/fabric.py": "a port: signatures only",
    "ha/store/group_changes.py": "changes in words, for the stores",
    "ha/store/nodes.py": "what stands in ZooKeeper's nodes; the simulator's store keeps objects",
    "ha/plugin.py": "edge: puts core and drivers together",
    "ha/operators/unclean.py": "what that command does to a journal that no broker is running on",
}
"""Modules of these rooms that decide nothing while a group runs, and why; a name may be a pattern."""


def deciding_modules() -> list[Path]:
    """All of them, as real files (not through the links of understudy/)."""
    found = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [
        path
        for path in found
        if path.name != "__init__.py"
        and not EDGES.intersection(path.relative_to(ROOT).parts)
        and not any(path.relative_to(ROOT).match(name) for name in EXCEPTIONS)
    ]
