"""The nemesis: faults at random moments, often several at once, some in ambush; and healing at the end.

A strike comes by the clock, or lies in ambush for a moment of the protocol (a catch-up's base arrives, a no is sent, the
set was changed, ...) and hits one of those concerned. What is to be hit must be there: a fault counts when it hits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.world import MS, World
from understudy.broker.log import frame, record
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.ha.coordination import GroupState
from understudy.replicator import wire

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster
    from tests.simulation.sim_node import SimNode

MOMENTS = {
    "SYNC": wire.SYNC,
    "RESUME": wire.RESUME,
    "CATCH_UP": wire.CATCH_UP,
    "IDS": wire.IDS,
    "BASE": wire.BASE,
    "TRANSACTION": wire.TRANSACTION,
    "QUEUE": wire.QUEUE,
    "CAUGHT_UP": wire.CAUGHT_UP,
    "PIECE_ACK": wire.PIECE_ACK,
    "NO": wire.NO,
}
HAPPENINGS = {wire.CATCH_UP: "catch-up", wire.RESUME: "resume", wire.NO: "no"}
"""Messages that are counted: each is a turn of the protocol that a sweep must have seen."""
RECORDS = {"PREPARE": record.PREPARE, "COMMIT": record.COMMIT, "ROLLBACK": record.ROLLBACK, "EPOCH": record.EPOCH}
STORE = ("the set grew", "the set shrank", "a promotion", "an answer was lost")
AMBUSHES = (*MOMENTS, *RECORDS, *STORE)
AMBUSH_KINDS = ("crash", "crash", "power", "pause", "link-reset", "cut")
AMBUSH_PATIENCE_MS = 3_000
LONGEST_MS = 12_000
"""Every strike is over after so long."""
MOST_RESTRAINT = 4.0
"""Where nothing gets done, strikes become rarer, up to so much: there is little left to break."""
VOTE_TRIES = 30


class Ambush:
    """A strike that waits for the ``countdown``-th ``moment``."""

    def __init__(self, moment: str, kind: str, countdown: int) -> None:
        self.moment = moment
        self.kind = kind
        self.countdown = countdown


class Nemesis:
    """Strikes every so often until told to stop, then heals everything."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.knobs = cluster.knobs
        self.rng = cluster.world.stream("nemesis")
        self.stopped = False
        self._ambush: Ambush | None = None
        self._decided = 0
        self._restraint = 1.0

    def start(self) -> None:
        cluster = self.cluster
        cluster.network.on_arrived = self._message_arrived
        cluster.store.on_lost_answer = lambda node: self._moment("an answer was lost", [node, *self._up()])
        self._schedule()

    def _schedule(self) -> None:
        gap_ms = int(self.rng.expovariate(1 / self.knobs.gap_ms))
        if self.rng.random() < self.knobs.burst:
            gap_ms //= 10
        decided, self._decided = self._decided, self.cluster.ledger.decided
        self._restraint = min(self._restraint * 1.4, MOST_RESTRAINT) if decided == self._decided else 1.0
        gap_ms = int(gap_ms * self._restraint)
        self.world.at((5 + gap_ms) * MS, self._strike)

    def _strike(self) -> None:
        if self.stopped:
            return
        if self.rng.random() < self.knobs.ambush:
            self._lie_in_ambush()
        else:
            kind = self.rng.choice(self.knobs.faults)
            strike: Callable[[str], None] = getattr(self, "_" + kind.replace("-", "_"))
            strike(kind)
        self._schedule()

    def leave(self) -> None:
        """No more faults. What is down, paused or cut comes back in its time, or all of it at once.

        In its time: so that who was away for long meets those who went on without it, a primary above all.
        """
        self.stopped = True
        self._ambush = None
        wait_ms = self.rng.choice((0, LONGEST_MS, LONGEST_MS))
        self.world.note("NEMESIS", f"leaves; everything has healed in {wait_ms} ms at the latest")
        for node in self.cluster.nodes.values():
            node.storage.failing_syncs = 0
        self.cluster.store.lose_answers.clear()
        if wait_ms:
            self.world.at(wait_ms * MS, self._heal)
        else:
            self._heal()

    def _heal(self) -> None:
        self.world.note("NEMESIS", "everything heals")
        cluster = self.cluster
        cluster.network.heal()
        cluster.store.cut_off.clear()
        cluster.store.lag_ms.clear()
        for node in cluster.nodes.values():
            node.storage.full = False
            node.resume()
            node.start_if_down()
            node.event(lambda ha: ha.coordination_regained())
            for session in list(node.clients):
                session.congest(False)

    # -- whom to hit ----------------------------------------------------------------------------------------------------

    def _up(self) -> list[SimNode]:
        return [node for node in self.cluster.nodes.values() if node.up]

    def _primary(self) -> SimNode | None:
        leading = [(node.ha.primary.epoch, node.name, node) for node in self._up() if node.ha.primary is not None]
        return max(leading)[2] if leading else None

    def _backup(self) -> SimNode | None:
        backups = [node for node in self._up() if node.ha.primary is None]
        return self.rng.choice(backups) if backups else None

    def _anybody(self) -> SimNode | None:
        up = self._up()
        return self.rng.choice(up) if up else None

    def _two(self) -> tuple[str, str] | None:
        names = list(self.cluster.nodes)
        if len(names) < 2:
            return None
        a, b = self.rng.sample(names, 2)
        return a, b

    # -- ambushes -------------------------------------------------------------------------------------------------------

    def _lie_in_ambush(self) -> None:
        if self._ambush is None:
            self._ambush = ambush = Ambush(
                self.rng.choice(AMBUSHES), self.rng.choice(AMBUSH_KINDS), self.rng.choice((0, 0, 1, 3))
            )
            self.world.at(AMBUSH_PATIENCE_MS * MS, self._give_up, ambush)

    def _give_up(self, ambush: Ambush) -> None:
        if self._ambush is ambush:
            self._ambush = None

    def _message_arrived(self, source: SimNode, target: SimNode, message: bytes) -> None:
        happening = HAPPENINGS.get(message[0])
        if happening is not None:
            self.world.happened[happening] += 1
        ambush = self._ambush
        if ambush is None:
            return
        wanted = MOMENTS.get(ambush.moment)
        if wanted is not None:
            if message[0] == wanted:
                self._moment(ambush.moment, [source, target])
        elif message[0] == wire.BATCH and ambush.moment in RECORDS and _holds(message[9:], RECORDS[ambush.moment]):
            self._moment(ambush.moment, [source, target])

    def store_changed(self, before: GroupState | None, after: GroupState) -> None:
        if self._ambush is None or before is None:
            return
        if after.epoch > before.epoch:
            moment = "a promotion"
        else:
            moment = "the set grew" if len(after.members) > len(before.members) else "the set shrank"
        concerned = {*before.members} ^ {*after.members} | {after.primary}
        self._moment(moment, [self.cluster.nodes[name] for name in sorted(concerned)])

    def _moment(self, moment: str, concerned: list[SimNode]) -> None:
        ambush = self._ambush
        if self.stopped or ambush is None or ambush.moment != moment:
            return
        if ambush.countdown:
            ambush.countdown -= 1
            return
        self._ambush = None
        node = self.rng.choice(concerned)
        # Not in the middle of somebody's turn, but before anything else happens.
        self.world.at(self.rng.choice((0, 0, 300, 2_000)), self._spring, ambush, node)

    def _spring(self, ambush: Ambush, node: SimNode) -> None:
        if self.stopped or not node.up:
            return
        kind = f"{ambush.kind} at {ambush.moment}"
        role = "primary" if node.ha.primary is not None else "backup"
        if ambush.kind in ("crash", "power"):
            self._kill(f"{ambush.kind}-{role}", node, ambush.kind == "power", kind)
        elif ambush.kind == "pause":
            self._pause(f"pause-{role}", node, kind)
        else:
            pairs = [pair for pair in self.cluster.network.pairs if node in (pair.ends[0].owner, pair.ends[1].owner)]
            if not pairs:
                return
            pair = self.rng.choice(pairs)
            a, b = pair.ends[0].owner.name, pair.ends[1].owner.name
            if ambush.kind == "cut":
                self._cut("partition", {(a, b), (b, a)}, "")
            else:
                self.world.fault("link-reset", f"{a}-{b}, {kind}")
                pair.reset("reset by the network")

    # -- strikes at processes -------------------------------------------------------------------------------------------

    def _restart_later(self, node: SimNode) -> None:
        delay_ms = self.rng.choice((20, 200, 1_000, 4_000, 9_000))
        self.world.at(self.rng.randrange(1, delay_ms + 1) * MS, node.start_if_down)

    def _kill(self, kind: str, node: SimNode | None, hard: bool, why: str = "") -> None:
        """One that is paused is spared: it shall come back and find that others have gone on."""
        if node is not None and not node.paused:
            self.world.fault(kind, f"{node.name} {why}".rstrip())
            node.crash(hard)
            self._restart_later(node)

    def _crash_primary(self, kind: str) -> None:
        self._kill(kind, self._primary(), False)

    def _power_primary(self, kind: str) -> None:
        self._kill(kind, self._primary(), True)

    def _crash_backup(self, kind: str) -> None:
        self._kill(kind, self._backup(), False)

    def _power_backup(self, kind: str) -> None:
        self._kill(kind, self._backup(), True)

    def _all(self, kind: str, hard: bool) -> None:
        up = self._up()
        if up:
            self.world.fault(kind, "every broker")
            for node in up:
                node.crash(hard)
                self._restart_later(node)

    def _power_all(self, kind: str) -> None:
        self._all(kind, True)

    def _crash_all(self, kind: str) -> None:
        self._all(kind, False)

    def _pause(self, kind: str, node: SimNode | None, why: str = "") -> None:
        if node is not None and not node.paused:
            self.world.fault(kind, f"{node.name} {why}".rstrip())
            node.pause()
            self.world.at(self.rng.choice((300, 3_000, 9_000, LONGEST_MS)) * MS, node.resume)

    def _pause_primary(self, kind: str) -> None:
        self._pause(kind, self._primary())

    def _pause_backup(self, kind: str) -> None:
        self._pause(kind, self._backup())

    def _clock_jump(self, kind: str) -> None:
        node = self._anybody()
        if node is not None:
            node.wall_offset_ms += self.rng.choice((-7_200_000, 7_200_000, 60_000))
            self.world.fault(kind, f"{node.name} to {node.wall_offset_ms} ms")

    def _vote_no(self, kind: str) -> None:
        """A backup's copy of an open transaction is damaged in memory, as soon as there is one: its digest will differ."""
        self._damage_copy(kind, VOTE_TRIES)

    def _damage_copy(self, kind: str, tries: int) -> None:
        backup = self._backup()
        if self.stopped or not tries:
            return
        if backup is not None and not backup.paused and backup.extension.replicator.linked:
            transactions = backup.node.state.transactions.values()
            open_ones = [tx for tx in transactions if tx.prepare is None and tx.events and not tx.outcome_offset]
            if open_ones:  # the one that was used last: it is likely to be committed soon
                tx = max(open_ones, key=lambda tx: tx.events[-1][0])
                tx.digest ^= 1
                tx.durable_digest ^= 1
                self.world.fault(kind, f"{backup.name} has a damaged copy of transaction {tx_id_text(tx.tx_id)}")
                return
        self.world.at(self.rng.randrange(1, 40) * MS, self._damage_copy, kind, tries - 1)

    # -- strikes at disks -----------------------------------------------------------------------------------------------

    def _fsync_error(self, kind: str) -> None:
        node = self._anybody()
        if node is not None:
            node.storage.failing_syncs = 1  # counted when it hits

    def _disk_full(self, kind: str) -> None:
        """No room for another file: counted when the broker fails for it."""
        node = self._anybody()
        if node is not None:
            node.storage.full = True
            self.world.at(self.rng.choice((500, 3_000)) * MS, self._room_again, node)

    @staticmethod
    def _room_again(node: SimNode) -> None:
        node.storage.full = False

    def _wipe(self, kind: str) -> None:
        """A broker loses its data directory, while somebody else who may be promoted has everything."""
        group = self.cluster.store.group
        node = self._backup()
        if group is None or node is None or any(other.wiped for other in self.cluster.nodes.values()):
            return
        if len(set(group.members) - {node.name}) >= 1 and self._others_are_sound(node, group):
            self.world.fault(kind, f"{node.name} loses its data")
            node.crash(True)
            node.wipe()
            self._restart_later(node)

    def _others_are_sound(self, node: SimNode, group: GroupState) -> bool:
        return any(name != node.name and self.cluster.nodes[name].up for name in group.members)

    # -- strikes at the network -----------------------------------------------------------------------------------------

    def _partition(self, kind: str) -> None:
        names = list(self.cluster.nodes)
        primary = self._primary()
        alone = primary.name if primary is not None and self.rng.random() < 0.4 else self.rng.choice(names)
        others = [name for name in names if name != alone]
        pairs = {(alone, other) for other in others} | {(other, alone) for other in others}
        self._cut(kind, pairs, alone if self.rng.random() < 0.6 else "")

    def _partition_one_way(self, kind: str) -> None:
        two = self._two()
        if two is not None:
            self._cut(kind, {two}, "")

    def _swizzle_clog(self, kind: str) -> None:
        """Some brokers are cut off one by one, and come back one by one in another order.

        The swizzle of FoundationDB's simulation, which says that it finds deeper bugs than most (W. Wilson, "Testing Distributed
        Systems w/ Deterministic Simulation", Strange Loop 2014).
        """
        names = list(self.cluster.nodes)
        clogged = self.rng.sample(names, self.rng.randint(1, len(names)))
        if not self._crossing(self._links_of(clogged[0])):
            return
        self.world.fault(kind, ", ".join(clogged))
        longest_ms = self.rng.choice((50, 500, 3_000))
        at_ms = 0
        for name in clogged:
            self.world.at(at_ms * MS, self._clog, name)
            at_ms += self.rng.randrange(1, longest_ms)
        for name in self.rng.sample(clogged, len(clogged)):
            self.world.at(at_ms * MS, self._mend, self._links_of(name), "")
            at_ms += self.rng.randrange(1, longest_ms)

    def _clog(self, name: str) -> None:
        if not self.stopped:
            self.cluster.network.cuts |= self._links_of(name)

    def _links_of(self, name: str) -> set[tuple[str, str]]:
        others = [other for other in self.cluster.nodes if other != name]
        return {(name, other) for other in others} | {(other, name) for other in others}

    def _crossing(self, pairs: set[tuple[str, str]]) -> bool:
        """Whether a link passes there."""
        links = [(pair.ends[0].owner.name, pair.ends[1].owner.name) for pair in self.cluster.network.pairs]
        return any((a, b) in pairs or (b, a) in pairs for a, b in links)

    def _cut(self, kind: str, pairs: set[tuple[str, str]], from_store: str) -> None:
        network = self.cluster.network
        if not self._crossing(pairs):
            return
        self.world.fault(kind, f"{sorted(pairs)}{' and the store from ' + from_store if from_store else ''}")
        network.cuts |= pairs
        if from_store:
            self._lose_store(from_store)
        self.world.at(self.rng.choice((200, 3_000, 8_000, LONGEST_MS)) * MS, self._mend, pairs, from_store)

    def _mend(self, pairs: set[tuple[str, str]], from_store: str) -> None:
        self.cluster.network.cuts -= pairs
        self.cluster.network.pump()
        if from_store:
            self._regain_store(from_store)

    def _link_reset(self, kind: str) -> None:
        pairs = self.cluster.network.pairs
        if pairs:
            pair = self.rng.choice(pairs)
            self.world.fault(kind, f"{pair.ends[0].owner.name}-{pair.ends[1].owner.name}")
            pair.reset("reset by the network")

    def _slow_network(self, kind: str) -> None:
        two = self._two()
        if two is not None:
            network = self.cluster.network
            if self._crossing({two}):
                self.world.fault(kind, f"{two[0]} to {two[1]}")
            network.slow[two] = self.rng.choice((5, 50, 400)) * MS
            self.world.at(self.rng.randrange(500, 4_000) * MS, network.slow.pop, two, None)

    def _client_reset(self, kind: str) -> None:
        sessions = [session for node in self._up() for session in node.clients]
        if sessions:
            session = self.rng.choice(sessions)
            self.world.fault(kind, f"{session.client.name} at {session.node.name}")
            session.reset("reset by the network")

    def _slow_client(self, kind: str) -> None:
        """A client takes its bytes slowly: the broker must deliver nothing more to it for a while."""
        sessions = [session for node in self._up() for session in node.clients]
        if sessions:
            session = self.rng.choice(sessions)
            self.world.fault(kind, f"{session.client.name} at {session.node.name}")
            session.congest(True)
            self.world.at(self.rng.randrange(50, 1_000) * MS, session.congest, False)

    # -- strikes at the store -------------------------------------------------------------------------------------------

    def _lose_store(self, name: str) -> None:
        self.cluster.store.cut_off.add(name)
        self.world.at(1_000 * MS, self._feel_loss, name)

    def _feel_loss(self, name: str) -> None:
        if name in self.cluster.store.cut_off:
            self.cluster.nodes[name].event(lambda ha: ha.coordination_lost())

    def _regain_store(self, name: str) -> None:
        store = self.cluster.store
        store.cut_off.discard(name)
        node = self.cluster.nodes[name]
        node.event(lambda ha: ha.coordination_regained())
        store.watch(node)

    def _session_loss(self, kind: str) -> None:
        node = self._anybody()
        if node is not None and node.name not in self.cluster.store.cut_off:
            self.world.fault(kind, f"{node.name} is cut off from the store")
            self._lose_store(node.name)
            self.world.at(self.rng.choice((500, 4_000, 9_000)) * MS, self._regain_store, node.name)

    def _store_outage(self, kind: str) -> None:
        self.world.fault(kind, "nobody reaches the store")
        back_us = self.rng.choice((500, 4_000)) * MS
        for name in self.cluster.nodes:
            self._lose_store(name)
            self.world.at(back_us, self._regain_store, name)

    def _stale_store(self, kind: str) -> None:
        """A broker's view of the store lags behind, across its restarts, and its requests are slow."""
        node = self._anybody()
        if node is not None:
            lag_ms = self.rng.choice((300, 2_000, 8_000))
            self.world.fault(kind, f"{node.name} sees the store {lag_ms} ms late")
            self.cluster.store.lag_ms[node.name] = lag_ms
            self.world.at(self.rng.choice((2_000, 9_000)) * MS, self.cluster.store.lag_ms.pop, node.name, None)

    def _lost_answer(self, kind: str) -> None:
        primary = self._primary()
        if primary is not None:
            self.cluster.store.lose_answers.add(primary.name)  # counted when an answer is lost


def _holds(batch: bytes, wanted: int) -> bool:
    """Whether a batch holds a record of a kind."""
    at = frame.BATCH_HEADER_BYTES
    while at < len(batch):
        kind, length = record.HEAD.unpack_from(batch, at)
        if kind & 0x7F == wanted:
            return True
        at += 5 + length
    return False
