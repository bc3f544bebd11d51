"""Seeds that once broke a promise, kept as tests: faults of every kind, all checkers on, compared at the end.

A seed draws its faults by what happens, so a change of the product can make it another story. What matters of each has a test of
its own beside it, where that could be written.
"""

from __future__ import annotations

import attrs
import pytest

from tests.simulation.cluster import SimCluster
from tests.simulation.knobs import Knobs, least_in_sync

SEEDS = {
    113: "a log without transient records brought up a backup that had not restarted (test_transient_holes)",
    716: "a message handed out in the last millisecond of its life (the checker took it for expired)",
    836: "the same, by get",
    221: "an outcome was forgotten when the clock jumped (decision 0004)",
    2081: "a stopped primary confirmed a transient message that its successor, restarted, had not kept (as it may)",
    2507: "the same, and delivered it",
    853: "the same, asked for by name",
    338: "a broker that had lost its data was refilled before its log had declared the queues, and lacked transient messages",
}
"""Found before there were `knobs.LATER_FAULTS`, with which they would be other stories."""
LATER_SEEDS = {
    3189: "a primary that had restarted dropped transient messages by a catch-up; its EPOCH was cut away (test_transient_holes)",
    3773: "the same, at a broker that had lost its data",
    4803: "a refill brought a transaction whose ROLLBACK the backup held: let go of twice, its queue counted -1 uncommitted",
    9654: "the same with an EPOCH, which had been taken before: nothing ended the transaction on that backup any more",
    9467: "a catch-up dropped what the log brought again, and the checker took that for a wrong order",
    10033: "the same, of one id",
    4994: "a broker that had not restarted was refilled, and the checker did not know that a refill may come before the log",
}


NEWEST_SEEDS = {
    2111: "a joiner refused a closed transaction whose transient events its primary had lost, for ever",
    201: "as 9467, while a journal was recovered",
    1505: "a primary that had been stopped showed what it had, and the workload took that for lost",
}
"""Found with the workloads ring and mixed, and with small segments."""
LATEST_SEEDS = {
    344: "a joiner did not say that its disk had room again, and was never listed",
    454: "the same said to a primary that waited for its own disk: it refused new work from then on",
    396: "a message to a queue that was deleted before PREPARE came to its place in a recovery, under an id that nobody had given",
}
"""Found with aftershocks, groups that need all their brokers, the workload replacer, and low disks."""
AS_DRAWN = {
    2772: "a binding that waited in the log of a backup, which forgot its queue for a refill, was in force without it for ever",
    3287: "the same with the exchange",
    4845: "the same with a binding that came after its queue was forgotten, and before a refill that never came",
}
"""Found since, with all of it."""
CHANGELING_SEEDS = {
    951: "a refill's bindings to a durable exchange were there at once, and went with the older exchange of that name",
    3150: "who led before it had come to where its refill stands brought another one up without its bindings",
}
"""Found with the workload changeling."""


def as_then(seed: int, monkeypatch: pytest.MonkeyPatch) -> Knobs:
    """The knobs of the seed as it was found."""
    if seed in SEEDS or seed in LATER_SEEDS:
        monkeypatch.setattr("tests.simulation.knobs.SMALL_SEGMENTS_SHARE", 0.0)
    knobs = Knobs.draw(seed)
    if seed in CHANGELING_SEEDS:
        return attrs.evolve(knobs, workloads=knobs.workloads | {"changeling"})
    knobs = attrs.evolve(knobs, workloads=knobs.workloads - {"changeling"})
    if seed in AS_DRAWN:
        return knobs
    if seed in LATEST_SEEDS:
        return attrs.evolve(knobs, later_faults=_of(knobs, "unheard-add", "disk-low"))
    later = {"replacer"} if seed in NEWEST_SEEDS else {"replacer", "ring", "mixed"}
    return attrs.evolve(
        knobs,
        min_insync=least_in_sync(knobs.brokers),
        aftershocks=0.0,
        workloads=knobs.workloads - later,
        later_faults=() if seed in SEEDS else _of(knobs, "unheard-add"),
    )


def _of(knobs: Knobs, *known: str) -> tuple[str, ...]:
    return tuple(kind for kind in knobs.later_faults if kind in known)


@pytest.mark.parametrize("seed", [*SEEDS, *LATER_SEEDS, *NEWEST_SEEDS, *LATEST_SEEDS, *AS_DRAWN, *CHANGELING_SEEDS])
def test_every_promise_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimCluster(seed, knobs=as_then(seed, monkeypatch)).run()
    assert report.transactions >= 100
    assert sum(report.faults.values()) >= 5
