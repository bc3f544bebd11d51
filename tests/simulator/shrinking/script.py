"""A scenario as values: everything that makes its run, and what the run must find.

The strikes are those of a nemesis that has been written down; delays, disks and clients draw from the seed's own streams.
"""

from __future__ import annotations

import attrs

from tests.simulator.cluster import SimCluster
from tests.simulator.knobs import Knobs
from tests.simulator.mutations import mutated
from tests.simulator.nemesis import Nemesis, ScriptedNemesis
from tests.simulator.nemesis.strike import Struck
from tests.simulator.seed_run import SeedResult, run_cluster
from understudy.broker.core.queues.moved_bodies import NO_BODIES
from understudy.broker.core.queues.paging import PAGING

_DRAWN = Knobs.draw(0)
PLAIN = attrs.evolve(
    _DRAWN,
    brokers=3,
    min_insync=2,
    tellers=2,
    workloads=frozenset(),
    faults=(),
    later_faults=(),
    gap_ms=0,
    burst=0.0,
    ambush=0.0,
    aftershocks=0.0,
    journal=attrs.evolve(_DRAWN.journal, segment_bytes=128 << 10, salt=0),
    kept_bytes=64 << 10,
    credit_bytes=64 << 20,
    piece_bytes=256 << 10,
    pieces_in_flight=8,
    fsync_us=(100, 1_500),
    bucket_shift=6,
    idle_ms=60,
    backup_timeout_ms=1_000,
    limits=attrs.evolve(
        _DRAWN.limits,
        unstable_bytes_per_connection=4 << 20,
        unstable_bytes=64 << 20,
        outcome_limit=1_000_000,
        moved_bodies=NO_BODIES,
        paging=PAGING,
    ),
)
"""Knobs that are not in the way of anything. A scenario names only those of its own that differ."""


@attrs.frozen
class Finding:
    """A broken promise, and who sees it: equal ones are taken for one failure."""

    promise: str
    found_by: str

    @classmethod
    def of(cls, result: SeedResult) -> Finding | None:
        """None if the run held."""
        return None if result.held else cls(result.promise, result.found_by)

    def __str__(self) -> str:
        return f"{self.promise} by {self.found_by}"


@attrs.frozen(kw_only=True)
class Script:
    """One scenario.

    Attributes:
        knobs: of them the nemesis' own (faults, later_faults, gap_ms, burst, ambush, aftershocks) and the journal's salt do
            not matter.
        strikes: in order of time.
        leave_ms: when the nemesis leaves and clients may go home; None: as in a seed's run.
        heal_ms: how long after that everything is healed, if it is not before.
        mutation: a known bug that is put in; "" for none.
        finds: what the run must find; None: it must hold.
    """

    seed: int
    knobs: Knobs
    strikes: tuple[Struck, ...]
    leave_ms: int | None = None
    heal_ms: int = 0
    mutation: str = ""
    finds: Finding | None = None

    @classmethod
    def of_seed(cls, seed: int, mutation: str = "") -> tuple[Script, SeedResult]:
        """Run ``seed``, and write down what its nemesis did and what was found."""
        with mutated(mutation):
            cluster = SimCluster(seed)
            result = run_cluster(cluster)
        nemesis = cluster.nemesis
        assert isinstance(nemesis, Nemesis)
        script = cls(
            seed=seed,
            knobs=without_chance(cluster.knobs),
            strikes=tuple(sorted(nemesis.struck, key=lambda struck: struck.at_us)),
            heal_ms=nemesis.heal_ms,
            mutation=mutation,
            finds=Finding.of(result),
        )
        return script, result

    def run(self, *, sound: bool = False, keep_story: bool = False) -> Ran:
        """Do it; ``sound``: without the mutation."""
        with mutated("" if sound else self.mutation):
            cluster = self.cluster(keep_story=keep_story)
            return Ran(run_cluster(cluster), cluster)

    def cluster(self, *, keep_story: bool = False) -> SimCluster:
        """The run that it makes, not begun."""
        knobs = attrs.evolve(self.knobs, journal=attrs.evolve(self.knobs.journal, salt=self.seed))
        return SimCluster(
            self.seed,
            knobs=knobs,
            nemesis=lambda cluster: ScriptedNemesis(cluster, self.strikes, self.leave_ms, self.heal_ms),
            keep_story=keep_story,
        )


def without_chance(knobs: Knobs) -> Knobs:
    """Knobs that a script does not name are plain, so that a script and its text are equal."""
    return attrs.evolve(
        knobs,
        faults=PLAIN.faults,
        later_faults=PLAIN.later_faults,
        aftershocks=PLAIN.aftershocks,
        gap_ms=PLAIN.gap_ms,
        burst=PLAIN.burst,
        ambush=PLAIN.ambush,
        journal=attrs.evolve(knobs.journal, salt=PLAIN.journal.salt),
    )


@attrs.frozen
class Ran:
    """A script's run."""

    result: SeedResult
    cluster: SimCluster

    @property
    def finding(self) -> Finding | None:
        return Finding.of(self.result)

    @property
    def ended_us(self) -> int:
        """When it ended or failed, since it began."""
        nemesis = self.cluster.nemesis
        assert nemesis is not None
        return nemesis.havoc.at_us

    @property
    def left(self) -> bool:
        """The nemesis had left by then."""
        nemesis = self.cluster.nemesis
        return nemesis is not None and nemesis.havoc.stopped
