"""Minima that a sweep must reach to prove anything: a sweep that never hit a kind of fault says nothing of it.

Every seed must decide so many transactions and be hit by so many faults. Of a sweep, so many seeds must have been hit by each kind
of fault, at each crash point, must have had failovers, and what faults are there to bring about; and of those that have a workload,
so many must have got something out of it: one that stands still proves nothing, and complains of nothing.

What is stated is a share of the seeds, about two thirds of what was measured over 600. Asked for is what a sweep of so many seeds
has as good as always, if each seed has it with that chance: of a small sweep what is frequent, of 1,500 seeds everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, lgamma, log

from tests.simulator.cluster import FAULTS, TRANSACTIONS, Report
from tests.simulator.knobs import ALL_FAULTS, ALL_WORKLOADS, BANK

BAD_LUCK = 1e-6
"""How often a sweep may miss one of these minima by chance; in truth less, since the shares are what they are."""
FAILOVERS = 0.5
FAULTS_OF_KIND = {
    "crash-primary": 0.3,
    "power-primary": 0.18,
    "crash-backup": 0.23,
    "power-backup": 0.17,
    "power-all": 0.08,
    "crash-all": 0.08,
    "pause-primary": 0.24,
    "pause-backup": 0.19,
    "partition": 0.18,
    "partition-one-way": 0.09,
    "swizzle-clog": 0.08,
    "link-reset": 0.18,
    "client-reset": 0.25,
    "slow-client": 0.15,
    "slow-network": 0.07,
    "session-loss": 0.16,
    "store-outage": 0.09,
    "stale-store": 0.15,
    "lost-answer": 0.08,
    "unheard-add": 0.08,
    "disk-low": 0.16,
    "disk-filled": 0.16,
    "disk-hang": 0.16,
    "wipe-primary": 0.15,
    "lost-tail": 0.12,
    "operator": 0.15,  # 14 of the seeds 0..59 have it: 0.23
    "group-lost": 0.15,
    "group-set-back": 0.03,
    "vote-no": 0.11,
    "clock-jump": 0.1,
    "fsync-error": 0.09,
    "disk-full": 0.02,
    "wipe": 0.12,
}
CRASH_POINTS = {
    "CP-31": 0.33,
    "CP-32": 0.09,
    "CP-33": 0.15,
    "CP-34": 0.19,
    "CP-35": 0.03,
    "CP-36": 0.2,
    "CP-37": 0.11,
    "CP-38": 0.014,
    "CP-39": 0.27,
    "CP-40": 0.09,
}
"""Faults fell on each of them (`crash_points`)."""
HAPPENINGS = {
    "step-down": 0.12,
    "memory after hand-over": 0.03,
    "catch-up": 0.4,
    "base again": 0.01,
    "resume": 0.6,
    "no": 0.06,
    "checkpoint": 0.6,
    "dropped segment": 0.24,
    "bodies read back": 0.65,
}
"""Turns of the protocol that faults are there to bring about."""
DEEDS = {
    BANK: {"Bank transactions": 0.65},
    "stages": {"stages passed": 0.65},
    "fifo": {"fifo messages": 0.65},
    "picky": {"picked messages": 0.65},
    "router": {"routed messages": 0.65, "messages through two exchanges": 0.5},
    "fleeting": {
        "fleeting messages got": 0.5,
        "fleeting: expiring_messages": 0.23,
        "fleeting: auto_delete": 0.3,
        "fleeting: expiring_queue": 0.27,
        "fleeting: purged": 0.33,
        "fleeting: redeclared": 0.33,
        "fleeting: exclusive": 0.33,
        "fleeting: deleted_under_a_consumer": 0.3,
    },
    "inquirer": {"inquiries answered": 0.65},
    "vandal": {"breaches closed": 0.65},
    "sleeper": {"sleepers ended": 0.4},
    "heavy": {"heavy messages": 0.6},
    "shy": {"Shy transactions": 0.65, "shy messages got": 0.6},
    "fan": {"Fan transactions": 0.6, "fan messages got": 0.6},
    "thinker": {"Thinker transactions": 0.6},
    "levels": {"levels confirms": 0.6, "levels transactions": 0.6, "unreplicated queue gone": 0.3},
    "ring": {"ring hops": 0.65},
    "mixed": {"mixed messages": 0.65, "mixed: of the plain producer": 0.65},
    "replacer": {"Replacer transactions": 0.6, "replacer messages got": 0.6, "replacements": 0.6},
    "changeling": {"changes seen": 0.65},
    "distributed": {
        "branches committed": 0.65,
        "branches committed in one phase": 0.5,
        "prepared branches rolled back": 0.55,
        "branches completed by hand": 0.16,
        "CP-20": 0.16,
        "CP-32 branch": 0.027,
        "CP-33 branch": 0.3,
    },
    "ranked": {"ranked messages": 0.6, "ranked-alone messages": 0.6, "consumers timed out": 0.2},
    "mortal": {"mortal messages rejected": 0.6, "mortal messages buried": 0.6},
    "retried": {"retried messages": 0.6, "retried messages buried": 0.3, "late messages": 0.6},
    "repeater": {"messages that came once": 0.6, "repeated messages": 0.4},
    "wild": {"wild transactions": 0.6, "wild messages got": 0.6},
}
"""Of each workload (`Run.did`), and the crash points that only it brings about; shares of the seeds that have it."""


def seed_shortfall(report: Report, factor: float = 1.0) -> str:
    """The minimum that a seed that held has not reached, "" if none."""
    faults = sum(report.faults.values())
    if report.transactions < TRANSACTIONS * factor:
        return f"{report.transactions} decided transactions, {TRANSACTIONS} are needed"
    if faults < FAULTS * factor:
        return f"{faults} faults that hit, {FAULTS} are needed"
    return ""


def sweep_shortfalls(reports: Iterable[Report], factor: float = 1.0) -> list[str]:
    """The minima that a sweep has not reached, a sentence each. ``factor`` scales every share."""
    assert FAULTS_OF_KIND.keys() == {*ALL_FAULTS}, "a kind of fault has no minimum"
    assert DEEDS.keys() == {BANK, *ALL_WORKLOADS}, "a workload has no minimum"
    reports = list(reports)
    missed: list[str] = []

    def ask(what: str, share: float, counts: list[int], of: str = "seeds") -> None:
        found, needed = sum(count > 0 for count in counts), least(share * factor, len(counts))
        if found < needed:
            missed.append(f"{what} in {found} of {len(counts)} {of}, at least {needed} are needed")

    ask("failovers", FAILOVERS, [report.failovers for report in reports])
    for kind, share in FAULTS_OF_KIND.items():
        ask(f"faults {kind}", share, [report.faults.get(kind, 0) for report in reports])
    for what, share in (HAPPENINGS | CRASH_POINTS).items():
        ask(what, share, [report.happened.get(what, 0) for report in reports])
    for workload, deeds in DEEDS.items():
        having = [report for report in reports if workload in (BANK, *report.workloads)]
        for deed, share in deeds.items():
            ask(deed, share, [report.happened.get(deed, 0) for report in having], f"seeds with {workload}")
    return missed


def unseen(reports: Iterable[Report]) -> list[str]:
    """Kinds of faults and crash points that no seed had. Of a small sweep that says nothing; but its figures are not of these."""
    reports = list(reports)
    kinds = [kind for kind in FAULTS_OF_KIND if not any(report.faults.get(kind) for report in reports)]
    return kinds + [point for point in CRASH_POINTS if not any(report.happened.get(point) for report in reports)]


def least(share: float, seeds: int) -> int:
    """So many of ``seeds``, each of which has it with the chance ``share``, have it but for :data:`BAD_LUCK`."""
    share = min(share, 0.999)
    if share <= 0.0:
        return 0
    count, fewer = 0, 0.0
    while count <= seeds:
        ways = lgamma(seeds + 1) - lgamma(count + 1) - lgamma(seeds - count + 1)
        fewer += exp(ways + count * log(share) + (seeds - count) * log(1 - share))
        if fewer > BAD_LUCK:
            break
        count += 1
    return count
