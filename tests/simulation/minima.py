"""What a sweep must have seen to prove anything: a sweep that never hit a kind of fault says nothing of it.

Every seed must decide so many transactions and be hit by so many faults. A sweep of twenty seeds or more must also have seen
every kind of fault, failovers, and what faults are there to bring about: primaries that had to step down, catch-ups, refusals.
Its figures are stated a seed, so that they grow with the sweep. They are about a third of what is measured over many seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.cluster import FAULTS, TRANSACTIONS, Report
from tests.simulation.knobs import ALL_FAULTS

SWEEP_SEEDS = 20
"""A smaller sweep is held only to what every seed must reach."""
FAILOVERS = 0.7
"""A seed of a sweep, on average."""
FAULTS_OF_KIND = {
    "crash-primary": 0.25,
    "power-primary": 0.15,
    "crash-backup": 0.19,
    "power-backup": 0.12,
    "power-all": 0.07,
    "crash-all": 0.06,
    "pause-primary": 0.19,
    "pause-backup": 0.13,
    "partition": 0.15,
    "partition-one-way": 0.06,
    "swizzle-clog": 0.05,
    "link-reset": 0.15,
    "client-reset": 0.35,
    "slow-client": 0.13,
    "slow-network": 0.04,
    "session-loss": 0.17,
    "store-outage": 0.07,
    "stale-store": 0.12,
    "lost-answer": 0.04,
    "unheard-add": 0.06,
    "disk-low": 0.1,
    "disk-hang": 0.1,
    "wipe-primary": 0.03,
    "vote-no": 0.1,
    "clock-jump": 0.1,
    "fsync-error": 0.05,
    "disk-full": 0.03,
    "wipe": 0.09,
}
"""A seed of a sweep, on average."""
CRASH_POINTS = {
    "CP-31": 0.25,
    "CP-32": 0.04,
    "CP-33": 0.06,
    "CP-34": 0.05,
    "CP-35": 0.01,
    "CP-36": 0.1,
    "CP-37": 0.08,
    "CP-38": 0.002,
    "CP-39": 0.2,
    "CP-40": 0.12,
    "CP-20": 0.07,
    "CP-32 branch": 0.008,
    "CP-33 branch": 0.15,
}
"""How often faults fall on each of them (`crash_points`), a seed of a sweep, on average."""
HAPPENINGS = {
    "step-down": 0.1,
    "catch-up": 0.4,
    "base again": 0.004,
    "resume": 1.0,
    "no": 0.04,
    "checkpoint": 5.0,
    "dropped segment": 1.0,
    "unreplicated queue gone": 0.15,
}
"""What must have happened, a seed of a sweep, on average: turns of the protocol that faults are there to bring about. What is rare
is asked for only where one at least is expected, as of the crash points."""


def seed_shortfall(report: Report, factor: float = 1.0) -> str:
    """What one seed that held lacks, "" if nothing."""
    faults = sum(report.faults.values())
    if report.transactions < TRANSACTIONS * factor:
        return f"{report.transactions} decided transactions, {TRANSACTIONS} are needed"
    if faults < FAULTS * factor:
        return f"{faults} faults that hit, {FAULTS} are needed"
    return ""


def sweep_shortfalls(reports: Iterable[Report], factor: float = 1.0) -> list[str]:
    """What a sweep lacks, a sentence each. ``factor`` scales every minimum."""
    reports = list(reports)
    seeds = len(reports)
    if seeds < SWEEP_SEEDS:
        return []
    assert FAULTS_OF_KIND.keys() == {*ALL_FAULTS}, "a kind of fault has no minimum"
    faults: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        happened.update(report.happened)
    wanted = [
        ("failovers", sum(report.failovers for report in reports), FAILOVERS),
        *((f"faults {kind}", faults[kind], least) for kind, least in FAULTS_OF_KIND.items()),
        *(
            (f"times {what}", happened[what], least)
            for what, least in (HAPPENINGS | CRASH_POINTS).items()
            if least * seeds >= 1
        ),
    ]
    return [
        f"{found} {what} in {seeds} seeds, at least {_least(each, seeds, factor)} are needed"
        for what, found, each in wanted
        if found < _least(each, seeds, factor)
    ]


def _least(each: float, seeds: int, factor: float) -> int:
    return max(1, int(each * seeds * factor)) if factor else 0
