"""The nemesis of a seed: draws its strikes, and keeps a record of those that hit.

A strike comes by the clock, or lies in ambush for a moment of the protocol (a catch-up's base arrives, a no is sent, the
set was changed, ...) and hits one of those concerned. What is to be hit must be there: a fault counts when it hits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import attrs

from tests.simulator.nemesis.ambushes import MOMENTS, OF_BRANCHES, Ambushes
from tests.simulator.nemesis.at_brokers import (
    SOON_MS,
    VOTE_TRIES,
    ClockJump,
    Crash,
    CrashAll,
    DiskFilled,
    DiskFull,
    DiskHang,
    DiskLow,
    FsyncError,
    LostTail,
    Pause,
    Power,
    PowerAll,
    VoteNo,
    Wipe,
    WipePrimary,
)
from tests.simulator.nemesis.at_network import (
    ClientReset,
    GroupLost,
    GroupSetBack,
    LinkReset,
    LostAnswer,
    Partition,
    PartitionOneWay,
    SessionLoss,
    SlowClient,
    SlowNetwork,
    StaleStore,
    StoreOutage,
    SwizzleClog,
    UnheardAdd,
)
from tests.simulator.nemesis.at_operators import Order
from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.nemesis.strike import Lurking, Strike, Struck
from tests.simulator.world import MS
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster
    from tests.simulator.sim_client import Session
    from tests.simulator.sim_node import SimNode

AMBUSH_KINDS = (
    *("crash", "crash", "crash", "power", "power", "pause"),
    *("link-reset", "cut", "fsync-error", "disk-full", "disk-hang"),
)
CANDIDATES = 0.3
"""Of the lost answers so many are anybody's."""
LONGEST_MS = 12_000
"""Every strike is over after so long."""
LATER_GAP_MS = 4_000
"""Between two strikes of one of `knobs.LATER_FAULTS`, at most."""
ALL_DIE = 0.5
"""How often all others die with a broker whose disk loses its end."""
LIFTED = 0.4
"""Of an operator's commands so many admit a broker, if one is barred."""
STEPS_DOWN = 0.7
"""Up to here they are step-downs; the rest expel a broker."""
AFTERSHOCK_MS = 150
"""An aftershock comes at most so long after the promotion; most come much sooner."""
MOST_RESTRAINT = 4.0
"""Where nothing gets done, strikes become rarer, up to so much: there is little left to break."""


@attrs.frozen
class _Ambush:
    """As it was drawn; what it does to whom is drawn when it springs."""

    at_us: int
    moment: str
    kind: str
    countdown: int


class Nemesis:
    """Strikes every so often until told to leave.

    Attributes:
        struck: what hit.
        leave_ms: None: it leaves when clients have done what a seed's have to.
        heal_ms: how long after it left everything had healed; 0 before it left.
        spent: no fault is to come any more: not so of one that draws.
    """

    leave_ms: int | None = None
    spent = False

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.knobs = cluster.knobs
        self.rng = cluster.world.stream("nemesis")
        self.havoc = Havoc(cluster)
        self.ambushes = Ambushes(cluster)
        self.struck: list[Struck] = []
        self.heal_ms = 0
        branches = "distributed" in cluster.knobs.workloads
        self._moments = MOMENTS if branches else tuple(moment for moment in MOMENTS if moment not in OF_BRANCHES)
        self._aftershocks = cluster.world.stream("nemesis aftershocks")
        self._decided = 0
        self._restraint = 1.0

    def start(self) -> None:
        self.ambushes.watch()
        self._schedule()
        for kind in self.knobs.later_faults:
            self._schedule_later(kind, self.world.stream(f"nemesis {kind}"))

    def store_changed(self, before: GroupState | None, after: GroupState) -> None:
        self.ambushes.store_changed(before, after)
        chance = self._aftershocks
        if before is not None and after.epoch > before.epoch and chance.random() < self.knobs.aftershocks:
            self.world.ahead(int(MS * AFTERSHOCK_MS ** chance.random()), self._aftershock, chance)

    def leave(self) -> None:
        """No more faults. What is down, paused or cut comes back in its time, or all of it at once."""
        self.ambushes.clear()
        self.heal_ms = self.rng.choice((0, LONGEST_MS, LONGEST_MS))
        self.havoc.leave(self.heal_ms)

    def _schedule(self) -> None:
        gap_ms = int(self.rng.expovariate(1 / self.knobs.gap_ms))
        if self.rng.random() < self.knobs.burst:
            gap_ms //= 10
        decided, self._decided = self._decided, self.cluster.ledger.decided
        self._restraint = min(self._restraint * 1.4, MOST_RESTRAINT) if decided == self._decided else 1.0
        gap_ms = int(gap_ms * self._restraint)
        self.world.ahead((5 + gap_ms) * MS, self._strike)

    def _strike(self) -> None:
        if self.havoc.stopped:
            return
        if self.rng.random() < self.knobs.ambush:
            self._lie_in_ambush()
        else:
            kind = self.rng.choice(self.knobs.faults)
            draw: Callable[[], Strike | None] = getattr(self, "_" + kind.replace("-", "_"))
            strike = draw()
            if strike is not None:
                self._hit(Struck(at_us=self.havoc.at_us, strike=strike))
        self._schedule()

    def _schedule_later(self, kind: str, rng: Random) -> None:
        self.world.ahead(rng.randrange(1, LATER_GAP_MS) * MS, self._strike_later, kind, rng)

    def _strike_later(self, kind: str, rng: Random) -> None:
        if self.havoc.stopped:
            return
        draw: Callable[[Random], Strike | None] = getattr(self, "_" + kind.replace("-", "_"))
        strike = draw(rng)
        if strike is not None:
            self._hit(Struck(at_us=self.havoc.at_us, strike=strike))
        self._schedule_later(kind, rng)

    def _hit(self, struck: Struck) -> None:
        if self.havoc.has_truce:
            return
        self.struck.append(struck)  # before it hits: a checker may cry out in the midst of it
        if not struck.strike.hit(self.havoc, struck.why):
            self.struck.pop()

    # -- whom to hit ----------------------------------------------------------------------------------------------------

    def _primary(self) -> SimNode | None:
        up = self.havoc.up()
        leading = [(node.ha.primary.epoch, node.name, node) for node in up if node.ha.primary is not None]
        return max(leading)[2] if leading else None

    def _backup(self) -> SimNode | None:
        backups = [node for node in self.havoc.up() if node.ha.primary is None]
        return self.rng.choice(backups) if backups else None

    def _anybody(self) -> SimNode | None:
        up = self.havoc.up()
        return self.rng.choice(up) if up else None

    def _two(self) -> tuple[str, str] | None:
        names = list(self.cluster.nodes)
        if len(names) < 2:
            return None
        a, b = self.rng.sample(names, 2)
        return a, b

    def _session(self) -> Session | None:
        sessions = [session for node in self.havoc.up() for session in node.clients]
        return self.rng.choice(sessions) if sessions else None

    # -- ambushes -------------------------------------------------------------------------------------------------------

    def _lie_in_ambush(self) -> None:
        if not self.ambushes.any:
            moment, kind = self.rng.choice(self._moments), self.rng.choice(AMBUSH_KINDS)
            ambush = _Ambush(self.havoc.at_us, moment, kind, self.rng.choice((0, 0, 1, 3)))
            self.ambushes.lay(moment, ambush.countdown, lambda concerned: self._moment(ambush, concerned))

    def _moment(self, ambush: _Ambush, concerned: list[SimNode]) -> None:
        node = self.rng.choice(concerned)
        # Not in the middle of somebody's turn, but before anything else happens.
        after_us = self.rng.choice((0, 0, 300, 2_000))
        self.world.ahead(after_us, self._spring, ambush, node, after_us)

    def _spring(self, ambush: _Ambush, node: SimNode, after_us: int) -> None:
        if self.havoc.stopped or not node.up:
            return
        strike = self._strike_of(ambush.kind, node)
        if strike is not None:
            lurking = Lurking(moment=ambush.moment, skip=ambush.countdown, after_us=after_us)
            self._hit(Struck(at_us=ambush.at_us, strike=strike, lurking=lurking))

    def _strike_of(self, kind: str, node: SimNode) -> Strike | None:
        if kind in ("crash", "power"):
            return self._kill(node, kind == "power")
        if kind == "pause":
            return self._pause(node)
        if kind == "fsync-error":
            return FsyncError(broker=node.name)
        if kind == "disk-full":
            return self._full(node)
        if kind == "disk-hang":
            return self._hang(node.name, self.rng)
        pairs = [pair for pair in self.cluster.network.pairs if node in (pair.ends[0].owner, pair.ends[1].owner)]
        if not pairs:
            return None
        pair = self.rng.choice(pairs)
        a, b = pair.ends[0].owner.name, pair.ends[1].owner.name
        if kind == "cut":
            return Partition(cut=((a, b), (b, a)), for_ms=self._cut_ms())
        return LinkReset(link=((a, b),))

    def _aftershock(self, chance: Random) -> None:
        """A strike soon after a promotion: what a new primary has begun then is half done."""
        primary = self._primary()
        if self.havoc.stopped or primary is None:
            return
        node = primary if chance.random() < 0.6 else chance.choice(self.havoc.up())
        strike = self._strike_of(chance.choice(AMBUSH_KINDS), node)
        if strike is not None:
            self._hit(Struck(at_us=self.havoc.at_us, strike=strike))

    # -- strikes at processes -------------------------------------------------------------------------------------------

    def _back_ms(self) -> int:
        return self.rng.randrange(1, self.rng.choice((20, 200, 1_000, 4_000, 9_000)) + 1)

    def _kill(self, node: SimNode | None, hard: bool) -> Strike | None:
        if node is None or node.paused:
            return None
        return (Power if hard else Crash)(broker=node.name, back_ms=self._back_ms())

    def _crash_primary(self) -> Strike | None:
        return self._kill(self._primary(), False)

    def _power_primary(self) -> Strike | None:
        return self._kill(self._primary(), True)

    def _crash_backup(self) -> Strike | None:
        return self._kill(self._backup(), False)

    def _power_backup(self) -> Strike | None:
        return self._kill(self._backup(), True)

    def _power_all(self) -> Strike:
        return PowerAll(back_ms=tuple((node.name, self._back_ms()) for node in self.havoc.up()))

    def _crash_all(self) -> Strike:
        return CrashAll(back_ms=tuple((node.name, self._back_ms()) for node in self.havoc.up()))

    def _pause(self, node: SimNode | None) -> Strike | None:
        if node is None or node.paused:
            return None
        return Pause(broker=node.name, for_ms=self.rng.choice((300, 3_000, 9_000, LONGEST_MS)))

    def _pause_primary(self) -> Strike | None:
        return self._pause(self._primary())

    def _pause_backup(self) -> Strike | None:
        return self._pause(self._backup())

    def _clock_jump(self) -> Strike | None:
        node = self._anybody()
        if node is None:
            return None
        return ClockJump(broker=node.name, by_ms=self.rng.choice((-7_200_000, 7_200_000, 60_000)))

    def _vote_no(self) -> None:
        """As soon as some backup has a copy of an open transaction."""
        self._look_for_a_copy(VOTE_TRIES)

    def _look_for_a_copy(self, tries: int) -> None:
        backup = self._backup()
        if self.havoc.stopped or not tries:
            return
        if backup is not None and VoteNo.open_copy(backup) is not None:
            self._hit(Struck(at_us=self.havoc.at_us, strike=VoteNo(broker=backup.name)))
        else:
            self.world.ahead(self.rng.randrange(1, 40) * MS, self._look_for_a_copy, tries - 1)

    # -- strikes at disks -----------------------------------------------------------------------------------------------

    def _fsync_error(self) -> Strike | None:
        node = self._anybody()
        return FsyncError(broker=node.name) if node is not None else None

    def _disk_full(self) -> Strike | None:
        node = self._anybody()
        return self._full(node) if node is not None else None

    def _full(self, node: SimNode) -> Strike:
        return DiskFull(broker=node.name, for_ms=self.rng.choice((500, 3_000)))

    def _wipe(self) -> Strike | None:
        group = self.cluster.store.group
        node = self._backup()
        if group is None or node is None or not Wipe.spares_a_copy(self.havoc, node, group):
            return None
        return Wipe(broker=node.name, back_ms=self._back_ms())

    # -- strikes at the network -----------------------------------------------------------------------------------------

    def _cut_ms(self) -> int:
        return self.rng.choice((200, 3_000, 8_000, LONGEST_MS))

    def _partition(self) -> Strike | None:
        names = list(self.cluster.nodes)
        primary = self._primary()
        alone = primary.name if primary is not None and self.rng.random() < 0.4 else self.rng.choice(names)
        store = alone if self.rng.random() < 0.6 else ""
        paths = self.havoc.paths_of(alone)
        if not self.havoc.crossing(paths):
            return None
        return Partition(cut=tuple(sorted(paths)), store=store, for_ms=self._cut_ms())

    def _partition_one_way(self) -> Strike | None:
        two = self._two()
        if two is None or not self.havoc.crossing({two}):
            return None
        return PartitionOneWay(cut=(two,), for_ms=self._cut_ms())

    def _swizzle_clog(self) -> Strike | None:
        names = list(self.cluster.nodes)
        clogged = self.rng.sample(names, self.rng.randint(1, len(names)))
        if not self.havoc.crossing(self.havoc.paths_of(clogged[0])):
            return None
        longest_ms = self.rng.choice((50, 500, 3_000))
        at_ms = 0
        times: list[tuple[str, int]] = []
        for broker in clogged:
            times.append((broker, at_ms))
            at_ms += self.rng.randrange(1, longest_ms)
        for broker in self.rng.sample(clogged, len(clogged)):
            times.append((broker, at_ms))
            at_ms += self.rng.randrange(1, longest_ms)
        return SwizzleClog(clog_ms=tuple(times[: len(clogged)]), mend_ms=tuple(times[len(clogged) :]))

    def _link_reset(self) -> Strike | None:
        pairs = self.cluster.network.pairs
        if not pairs:
            return None
        pair = self.rng.choice(pairs)
        return LinkReset(link=((pair.ends[0].owner.name, pair.ends[1].owner.name),))

    def _slow_network(self) -> Strike | None:
        two = self._two()
        if two is None:
            return None
        return SlowNetwork(path=(two,), add_ms=self.rng.choice((5, 50, 400)), for_ms=self.rng.randrange(500, 4_000))

    def _client_reset(self) -> Strike | None:
        session = self._session()
        return ClientReset(client=session.client.name, broker=session.node.name) if session is not None else None

    def _slow_client(self) -> Strike | None:
        session = self._session()
        if session is None:
            return None
        for_ms = self.rng.randrange(50, 1_000)
        return SlowClient(client=session.client.name, broker=session.node.name, for_ms=for_ms)

    # -- strikes at the store -------------------------------------------------------------------------------------------

    def _session_loss(self) -> Strike | None:
        node = self._anybody()
        if node is None or node.name in self.cluster.store.cut_off:
            return None
        return SessionLoss(broker=node.name, for_ms=self.rng.choice((500, 4_000, 9_000)))

    def _store_outage(self) -> Strike:
        return StoreOutage(for_ms=self.rng.choice((500, 4_000)))

    def _stale_store(self) -> Strike | None:
        node = self._anybody()
        if node is None:
            return None
        lag_ms = self.rng.choice((300, 2_000, 8_000))
        return StaleStore(broker=node.name, lag_ms=lag_ms, for_ms=self.rng.choice((2_000, 9_000)))

    def _lost_answer(self) -> Strike | None:
        """Of the primary's next change of the set, or of somebody's next campaign."""
        if self.rng.random() < CANDIDATES:
            return LostAnswer(broker=self.rng.choice(list(self.cluster.nodes)))
        primary = self._primary()
        return LostAnswer(broker=primary.name) if primary is not None else None

    def _disk_low(self, rng: Random) -> Strike:
        return DiskLow(broker=rng.choice(list(self.cluster.nodes)), for_ms=rng.choice((300, 2_000, 9_000)))

    def _disk_filled(self, rng: Random) -> Strike:
        return DiskFilled(broker=rng.choice(list(self.cluster.nodes)), for_ms=rng.choice((2_000, 9_000)))

    def _disk_hang(self, rng: Random) -> Strike:
        return self._hang(rng.choice(list(self.cluster.nodes)), rng)

    @staticmethod
    def _hang(broker: str, rng: Random) -> Strike:
        return DiskHang(broker=broker, for_ms=rng.choice((100, 1_500, 6_000)))

    def _wipe_primary(self, rng: Random) -> Strike | None:
        group, primary = self.cluster.store.group, self._primary()
        if group is None or primary is None or not Wipe.spares_a_copy(self.havoc, primary, group):
            return None
        return WipePrimary(broker=primary.name, back_ms=rng.choice((1, 200, 4_000)))

    def _lost_tail(self, rng: Random) -> Strike | None:
        up = self.havoc.up()
        if not up:
            return None
        broker = rng.choice(up).name
        octets = rng.choice((1, 600, 600, 2_000, 10_000, 1 << 30))
        back_ms = rng.choice((1, 200, 4_000, 9_000))
        others = [other for other in self.cluster.nodes if other != broker] if rng.random() < ALL_DIE else []
        longest_ms = rng.choice((SOON_MS, LONGEST_MS))  # longer than it takes to give them up
        times = tuple((other, rng.randrange(longest_ms - SOON_MS + 1, longest_ms)) for other in others)
        if others and longest_ms > SOON_MS:
            back_ms = 1  # it has time to go on without them
        return LostTail(broker=broker, octets=octets, back_ms=back_ms, others_ms=times)

    def _unheard_add(self, rng: Random) -> Strike | None:
        primary = self._primary()
        if primary is None:
            return None
        back_ms = rng.choice((0, 0, 20, 1_000, 9_000))
        return UnheardAdd(broker=primary.name, for_ms=rng.choice((1_500, 4_000, 8_000, LONGEST_MS)), back_ms=back_ms)

    def _group_lost(self, rng: Random) -> Strike:
        for_ms, wholly, at_promotion = rng.choice((300, 3_000, 9_000)), rng.random() < 0.5, rng.random() < 0.5
        return GroupLost(for_ms=for_ms, wholly=wholly, at_promotion=at_promotion)

    def _group_set_back(self, rng: Random) -> Strike:
        return GroupSetBack(for_ms=rng.choice((300, 3_000, 9_000)))

    # -- an operator's strikes ------------------------------------------------------------------------------------------

    def _operator(self, rng: Random) -> Strike | None:
        group, primary = self.cluster.store.group, self._primary()
        if group is None:
            return None
        others = [name for name in self.cluster.nodes if name != group.primary]
        barred = [bar.broker for bar in group.barred]
        which, about = rng.random(), rng.choice(others) if others else ""
        at = primary.name if primary is not None else ""
        if barred and which < LIFTED:
            return Order(command="admit", broker=at, about=rng.choice(barred))
        if which < STEPS_DOWN:
            return Order(command="step-down", broker=at, about=rng.choice(("", about))) if at else None
        return Order(command="expel", broker=at, about=about) if about else None
