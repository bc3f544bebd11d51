"""Draws of a seed before its run begins: sizes, rates, which faults and which workloads take part.

No run does everything (swarm testing): a fault or a workload that is always there hides what happens without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import attrs

from understudy.broker.core import broker
from understudy.broker.core.life import compaction
from understudy.broker.core.limits import Limits
from understudy.broker.core.moving import purging
from understudy.broker.core.queues import entry_index, paging, put_off, queue
from understudy.broker.core.queues.moved_bodies import NO_BODIES, MovedBodies
from understudy.broker.core.queues.paging import PAGING, PagingLimits
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.log import live_offsets
from understudy.broker.log.journal import JournalOptions
from understudy.replicator.sending import catch_up

FAULTS = {
    "crash-primary": 5,
    "power-primary": 3,
    "crash-backup": 3,
    "power-backup": 2,
    "power-all": 1,
    "crash-all": 1,
    "pause-primary": 4,
    "pause-backup": 2,
    "partition": 3,
    "partition-one-way": 3,
    "swizzle-clog": 2,
    "link-reset": 3,
    "client-reset": 3,
    "slow-client": 2,
    "slow-network": 2,
    "session-loss": 3,
    "store-outage": 1,
    "stale-store": 2,
    "lost-answer": 2,
    "vote-no": 5,
    "clock-jump": 1,
    "fsync-error": 1,
    "disk-full": 1,
    "wipe": 2,
}
"""Kinds of faults, and how often each is chosen."""
LATER_FAULTS = (
    *("unheard-add", "disk-low", "disk-hang", "wipe-primary", "disk-filled", "lost-tail", "operator"),
    *("group-lost", "group-set-back"),
)
"""Likewise; each is drawn, and strikes, by a stream of its own, so that a seed's story without them stays as it was."""
LATER_SHARE = 0.25
"""How often each of them takes part."""
ALL_FAULTS = (*FAULTS, *LATER_FAULTS)
ALWAYS_HIT = frozenset(
    {
        "crash-primary",
        "power-primary",
        "crash-all",
        "power-all",
        "session-loss",
        "store-outage",
        "client-reset",
        "clock-jump",
    }
)
"""Kinds that find something to hit in any group, at almost any time."""

SPILL_BEYOND_BYTES = 60
"""A transaction of two or three messages is a large one."""
WORKLOADS = (
    "stages",
    "fifo",
    "picky",
    "router",
    "fleeting",
    "inquirer",
    "vandal",
    "sleeper",
    "heavy",
    "shy",
    "fan",
    "thinker",
)
"""Workloads beside the bank, which is always there."""
LATER_WORKLOADS = (
    "levels",
    "ring",
    "mixed",
    "replacer",
    "changeling",
    "distributed",
    "mortal",
    "ranked",
    "retried",
    "repeater",
)
"""Likewise; each is drawn from a stream of its own, so that a seed's other draws, and its story without them, stay as they were."""
WORKLOAD_SHARE = 0.4
"""How often a workload takes part."""
CHANGELING_SHARE = 0.15
"""How often that one does: it makes a run a third longer."""
ASKED_WORKLOADS = ("wild",)
"""No seed draws them: they take part where they are asked for."""
ALL_WORKLOADS = (*WORKLOADS, *LATER_WORKLOADS, *ASKED_WORKLOADS)


BANK = "bank"
MOST_BROKERS = 5


MANDATORY_AT_COMMIT_SHARE = 0.3
"""Of the seeds: mandatory messages of transactions come back at the commit."""
SMALL_SEGMENTS_SHARE = 0.1
"""Of the seeds: a journal of many small segments, the oldest of which are dropped all the time."""


COMPACTION_SHARE = 0.25
"""Of the seeds: small segments whose messages are written again for little reason, in small slices."""
PRODUCT_COMPACTION = (
    compaction.DEAD_TO_LIVE,
    compaction.LEAST_SHARE,
    compaction.SLICE_BYTES,
    compaction.MOST_UNSETTLED,
)


PRODUCT_SLICE = put_off.SLICE
NO_COMPACTION = (1 << 40, *PRODUCT_COMPACTION[1:])
COMPACTION_PAUSES_MS = (5, 20, 500)


def _compaction_pause_ms(seed: int) -> int:
    """From a stream of its own, as `LATER_WORKLOADS` are."""
    return Random(f"compaction pauses {seed}").choice(COMPACTION_PAUSES_MS)


def _compaction(seed: int) -> tuple[int, int, int, int]:
    """From a stream of its own, as `LATER_WORKLOADS` are."""
    chance = Random(f"compaction {seed}")
    if chance.random() >= COMPACTION_SHARE:
        return PRODUCT_COMPACTION
    return (
        chance.choice((0, 1, 2)),
        chance.choice((2, 16)),
        chance.choice((100, 1_000, 128 << 10)),
        chance.choice((1, 64)),
    )


def _segment_kib(seed: int, otherwise: int) -> int:
    """From a stream of its own, as `LATER_WORKLOADS` are."""
    if _compaction(seed) != PRODUCT_COMPACTION:
        return Random(f"compacted segments {seed}").choice((4, 8, 16))
    chance = Random(f"small segments {seed}")
    return chance.choice((4, 8, 16)) if chance.random() < SMALL_SEGMENTS_SHARE else otherwise


AFTERSHOCKS_SHARE = 0.3
"""Of the seeds: most promotions are followed by another strike, while the new primary still brings the others along."""
AFTERSHOCKS = 0.7
"""How often, in these."""
SHARED_TURNS_SHARE = 0.2
"""Of the seeds: what comes at nearly the same time to a broker is often done in one turn, as an event loop does it."""
INLINE_SYNCS_SHARE = 0.3
"""Of the seeds: groups of the journal are often synced on the spot, within the turn, as small ones are on a quick disk."""
UNRULY_SHARE = 0.2
"""Of the seeds without an operator: a coordinator reorders, withholds and refuses commits, and raises in its hooks."""
PARTS_SHARE = 0.4
"""Of the seeds: bodies of ordinary messages stand in the log in parts."""
MOVED_BODIES_SHARE = 0.25
"""Of the seeds: a MOVE carries the body, as where an outlet sends what enters every queue."""
ALL_NEEDED_SHARE = 0.12
"""Of the seeds: the group's min_insync is its size, so whoever is away stops it."""


PAGING_SHARE = 0.5
"""Of the seeds: bodies leave the memory though queues hold little, and come back in small windows."""


def _paging(seed: int) -> PagingLimits:
    """From a stream of its own, as `LATER_WORKLOADS` are."""
    chance = Random(f"paging {seed}")
    if chance.random() >= PAGING_SHARE:
        return PAGING
    return PagingLimits(
        watermark_bytes=chance.choice((0, 1_000, 4_000)),
        least_bytes=1,
        head_messages=chance.choice((0, 2)),
        tail_bytes=chance.choice((0, 0, 100)),
        window_messages=chance.choice((1, 3, 500)),
        window_bytes=chance.choice((10, 1 << 20)),
    )


PRODUCT_PAGE_BITS = entry_index.PAGE_BITS


def _page_bits(seed: int) -> int:
    """Pages of few messages, so that whole ones leave the memory and are packed."""
    return Random(f"pages {seed}").choice((PRODUCT_PAGE_BITS, 1, 2, 3))


PRODUCT_SWEEP = paging.SLICE


def _sweep(seed: int) -> int:
    """Sweeps that end in the midst of a queue, and follow turns that have applied little."""
    return Random(f"sweeps {seed}").choice((PRODUCT_SWEEP, 1, 6))


SLICES_SHARE = 0.4
"""Of the seeds: what takes few messages out is done in slices already, of so many."""
SLICES = (1, 2, 3)


def _slice(seed: int) -> int:
    """From a stream of its own, as `LATER_WORKLOADS` are."""
    chance = Random(f"slices {seed}")
    return chance.choice(SLICES) if chance.random() < SLICES_SHARE else PRODUCT_SLICE


def _share(later_workload: str) -> float:
    return CHANGELING_SHARE if later_workload == "changeling" else WORKLOAD_SHARE


def _aftershocks(seed: int) -> float:
    return AFTERSHOCKS if Random(f"aftershocks {seed}").random() < AFTERSHOCKS_SHARE else 0.0


def _shared_turns(seed: int) -> float:
    rng = Random(f"shared turns {seed}")
    return rng.choice((0.25, 0.5)) if rng.random() < SHARED_TURNS_SHARE else 0.0


def _inline_syncs(seed: int) -> float:
    rng = Random(f"inline syncs {seed}")
    return rng.choice((0.5, 1.0)) if rng.random() < INLINE_SYNCS_SHARE else 0.0


def _unruly_commits(seed: int, later_faults: tuple[str, ...]) -> float:
    """None beside an operator: a run of slow commits gives him the time to bar all brokers but a primary that cannot serve."""
    if "operator" in later_faults:
        return 0.0
    rng = Random(f"unruly commits {seed}")
    return rng.choice((0.1, 0.3, 0.7)) if rng.random() < UNRULY_SHARE else 0.0


def _parts(seed: int) -> dict[str, Any]:
    """From which size on a body stands in parts, the size of a part, and of those that are in flight."""
    rng = Random(f"parts {seed}")
    if rng.random() >= PARTS_SHARE:
        return {}
    return {
        "parted_bytes": rng.choice((1, 30, 100)),
        "part_bytes": rng.choice((5, 11, 40)),
        "parts_in_flight_bytes": rng.choice((1, 30, 4 << 10)),
    }


ALL_BODIES: Final = MovedBodies(otherwise=True, max_bytes=1 << 20)
"""As if an outlet had a topic for each queue."""


def _moved_bodies(seed: int) -> MovedBodies:
    return ALL_BODIES if Random(f"moved bodies {seed}").random() < MOVED_BODIES_SHARE else NO_BODIES


def least_in_sync(brokers: int) -> int:
    """The ordinary min_insync of a group of that size."""
    return 2 if brokers >= 3 else 1


def _one_is_enough(seed: int, later_faults: tuple[str, ...]) -> bool:
    """A broker whose disk has lost something can go on alone in half of the groups to which that happens."""
    return "lost-tail" in later_faults and Random(f"one is enough {seed}").random() < 0.5


def _min_insync(seed: int, brokers: int) -> int:
    return brokers if Random(f"all needed {seed}").random() < ALL_NEEDED_SHARE else least_in_sync(brokers)


@attrs.frozen(kw_only=True)
class Fixed:
    """Settings that are not left to the seed.

    Attributes:
        brokers: how many; None: as drawn.
        workloads: those beside the bank; None: as drawn.
    """

    brokers: int | None = None
    workloads: frozenset[str] | None = None

    def options(self) -> str:
        """As the command has them, each with a space before it."""
        brokers = f" --brokers {self.brokers}" if self.brokers is not None else ""
        if self.workloads is None:
            return brokers
        return "".join(f" --workload {name}" for name in (BANK, *sorted(self.workloads))) + brokers


@attrs.frozen(kw_only=True)
class Knobs:
    """One seed's draw.

    Attributes:
        brokers, min_insync: of the group.
        tellers: bank clients.
        faults: kinds in the nemesis' urn, repeated by weight.
        later_faults: those of `LATER_FAULTS` that take part.
        gap_ms: mean time between two strikes.
        burst: how often a strike is followed by another at once.
        ambush: how often a strike waits for a moment of the protocol instead of coming by the clock.
        aftershocks: how often a promotion is followed by a strike soon.
        piece_bytes, pieces_in_flight: of a catch-up.
        fsync_us: range of what an fsync takes.
        bucket_shift: how finely the journal's live offsets are counted.
        idle_ms: an idle moment of a client lasts up to this.
        replicate: the level of queues that do not say one (never drawn: too much would not be replicated).
        inline_syncs: how often a group of the journal is synced within its turn; in most seeds never.
        unruly_commits: how often the coordinator does not order a commit at once; in most seeds it is the ordinary one.
        compaction: `DEAD_TO_LIVE`, `LEAST_SHARE`, `SLICE_BYTES` and `MOST_UNSETTLED` of ``core.life.compaction``.
        compaction_pause_ms: the longest time between two slices of compaction.
        slice: ``put_off.SLICE``.
        page_bits: ``entry_index.PAGE_BITS``.
        applied_at_once: ``broker.APPLIED_AT_ONCE``.
        sweep: ``paging.SLICE``.
        shared_turns: how often a broker's turn takes in what comes next; in most seeds never: each thing has a turn.
    """

    brokers: int
    min_insync: int
    tellers: int
    workloads: frozenset[str]
    faults: tuple[str, ...]
    later_faults: tuple[str, ...]
    gap_ms: int
    burst: float
    ambush: float
    aftershocks: float
    journal: JournalOptions
    kept_bytes: int
    credit_bytes: int
    piece_bytes: int
    pieces_in_flight: int
    fsync_us: tuple[int, int]
    bucket_shift: int
    idle_ms: int
    backup_timeout_ms: int
    limits: Limits
    expected_timeout_ms: int = 10_000
    replicate: ReplicationLevel = ReplicationLevel.ALL
    shared_turns: float = 0.0
    inline_syncs: float = 0.0
    unruly_commits: float = 0.0
    compaction: tuple[int, int, int, int] = PRODUCT_COMPACTION
    compaction_pause_ms: int = 20
    slice: int = PRODUCT_SLICE
    page_bits: int = PRODUCT_PAGE_BITS
    applied_at_once: int = broker.APPLIED_AT_ONCE
    sweep: int = PRODUCT_SWEEP

    @classmethod
    def draw(cls, seed: int) -> Knobs:
        rng = Random(f"knobs {seed}")
        brokers = rng.choice((1, 2, 2, 3, 4, 4, 5, 5)) if rng.random() < 0.25 else 3
        share = rng.choice((0.15, 0.65, 0.65))  # with few kinds more of what each of them leads to is seen
        kinds = [kind for kind in FAULTS if rng.random() < share]
        if not ALWAYS_HIT & {*kinds}:
            kinds.append("client-reset")
        later_faults = tuple(kind for kind in LATER_FAULTS if Random(f"{kind} {seed}").random() < LATER_SHARE)
        quick_disk = rng.random() < 0.7
        return cls(
            brokers=brokers,
            min_insync=1 if _one_is_enough(seed, later_faults) else _min_insync(seed, brokers),
            tellers=rng.choice((2, 3, 4)),
            workloads=frozenset(
                [name for name in WORKLOADS if rng.random() < WORKLOAD_SHARE]
                + [name for name in LATER_WORKLOADS if Random(f"{name} {seed}").random() < _share(name)]
            ),
            faults=tuple(kind for kind in kinds for _ in range(FAULTS[kind])),
            later_faults=later_faults,
            gap_ms=rng.choice((150, 300, 600, 2_000)),
            burst=rng.choice((0.0, 0.2, 0.4)),
            ambush=rng.choice((0.0, 0.3, 0.6)),
            aftershocks=_aftershocks(seed),
            journal=JournalOptions(
                segment_bytes=_segment_kib(seed, rng.choice((32, 64, 128))) << 10,
                alignment_bytes=512,
                reserve_bytes=0,
                salt=seed,
            ),
            kept_bytes=rng.choice((1, 8, 64)) << 10,
            credit_bytes=rng.choice((2 << 10, 64 << 20)),
            piece_bytes=rng.choice((300, 4 << 10, 256 << 10)),
            pieces_in_flight=rng.choice((1, 8)),
            fsync_us=(100, 1_500) if quick_disk else (1_000, 8_000),
            bucket_shift=rng.choice((3, 6)),
            idle_ms=rng.choice((10, 60, 200)),
            backup_timeout_ms=rng.choice((1_000, 3_000)),
            # Else nobody is given up in the time for which a strike keeps a broker away, nor is anything lost with it.
            expected_timeout_ms=2_000 if "lost-tail" in later_faults else 10_000,
            shared_turns=_shared_turns(seed),
            inline_syncs=_inline_syncs(seed),
            unruly_commits=_unruly_commits(seed, later_faults),
            compaction=_compaction(seed),
            compaction_pause_ms=_compaction_pause_ms(seed),
            slice=_slice(seed),
            page_bits=_page_bits(seed),
            applied_at_once=Random(f"applied {seed}").choice((broker.APPLIED_AT_ONCE, 1, 3)),
            sweep=_sweep(seed),
            limits=Limits(
                heartbeat_s=0,
                handshake_timeout_ms=60_000,
                unstable_bytes_per_connection=rng.choice((6 << 10, 4 << 20)),
                unstable_bytes=rng.choice((20 << 10, 64 << 20)),
                tx_idle_timeout_ms=2_000,
                dtx_timeout_ms=2_000,
                tx_memory_bytes=SPILL_BEYOND_BYTES,
                outcome_limit=rng.choice((300, 1_000_000)),
                auto_delete_grace_ms=3_000,
                moved_bodies=_moved_bodies(seed),
                paging=_paging(seed),
                mandatory_at_commit=Random(f"mandatory {seed}").random() < MANDATORY_AT_COMMIT_SHARE,
                **_parts(seed),
            ),
        )

    def fixed(self, fixed: Fixed) -> Knobs:
        """A copy in which these are not as they were drawn."""
        knobs = self
        if fixed.brokers is not None:
            knobs = attrs.evolve(knobs, brokers=fixed.brokers, min_insync=least_in_sync(fixed.brokers))
        if fixed.workloads is not None:
            knobs = attrs.evolve(knobs, workloads=fixed.workloads)
        return knobs

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Sizes that the product keeps as constants are the seed's while this lasts."""
        constants: tuple[tuple[Any, str, int], ...] = (
            (catch_up, "PIECE_BYTES", self.piece_bytes),
            (catch_up, "IN_FLIGHT_BYTES", self.pieces_in_flight * self.piece_bytes),
            (live_offsets, "BUCKET_SHIFT", self.bucket_shift),
            (compaction, "DEAD_TO_LIVE", self.compaction[0]),
            (compaction, "LEAST_SHARE", self.compaction[1]),
            (compaction, "SLICE_BYTES", self.compaction[2]),
            (compaction, "MOST_UNSETTLED", self.compaction[3]),
            (put_off, "SLICE", self.slice),
            (broker, "APPLIED_AT_ONCE", self.applied_at_once),
            (entry_index, "PAGE_BITS", self.page_bits),
            (queue, "PAGE_BITS", self.page_bits),
            (paging, "SLICE", self.sweep),
            (purging, "ENCODED", min(purging.ENCODED, self.slice)),
        )
        before = [getattr(module, name) for module, name, _ in constants]
        for module, name, value in constants:
            setattr(module, name, value)
        try:
            yield
        finally:
            for (module, name, _), value in zip(constants, before, strict=True):
                setattr(module, name, value)
