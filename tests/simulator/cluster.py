"""One simulated cluster with its clients, nemesis and checkers: a seed is one run of it.

    SimCluster(seed).run()

A run: the brokers start and found their group; clients work while the nemesis strikes, until there is enough of both; then
everything heals, the clients finish and resolve what they do not know, the cluster settles, and the final check is made:
every broker the same, the clients' books in order, everything recoverable from the disks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import attrs

from tests.simulator.checkers import Checkers, came_once, holders, moved_once, routes
from tests.simulator.checkers.accounts import Accounts
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.checkers.replicas import doubts_of, outcomes_of
from tests.simulator.checkers.restart import Restart
from tests.simulator.checkers.returns import nothing_is_late
from tests.simulator.crash_points import points_of_death, points_of_step_down
from tests.simulator.knobs import Knobs
from tests.simulator.ledger import Ledger, Told, Violation
from tests.simulator.nemesis import Nemesis, ScriptedNemesis
from tests.simulator.sim_client import SimClient
from tests.simulator.sim_network import Network
from tests.simulator.sim_node import SimNode
from tests.simulator.sim_store import SimStore
from tests.simulator.workloads import Run, kept_queues, mortal, ranked, repeater, retried, workers
from tests.simulator.workloads.setting_up import declare_all
from tests.simulator.world import MS, START_US, World
from understudy.broker.core.branches.dtx_manager import BranchState, BranchWork
from understudy.broker.core.broker import Broker
from understudy.broker.core.queues.digest import queue_digests
from understudy.broker.core.queues.entry import DEQUEUING, PURGED, RETURNING
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.ha.settings import HaSettings
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState
from understudy.replicator import wire

TRANSACTIONS = 100
"""A seed decides at least so many."""
FAULTS = 5
"""A seed is hit by at least so many."""
TROUBLE_LIMIT_MS = 180_000
"""The nemesis leaves after so long even if there is not enough yet: the seed then proves too little (`minima`)."""
HEAL_LIMIT_MS = 60_000
"""From when the nemesis leaves until all is settled. What it has begun it still ends by itself, within `nemesis.LONGEST_MS`."""
START_LIMIT_MS = 30_000
TRY_RESTART_MS = (4_000, 20_000)
"""So long after one copy of a disk was recovered another is, whatever is under way."""


def _is_over(work: BranchWork, broker: Broker) -> bool:
    """True if the next look or two should have ended the branch, or forgotten it."""
    may_end = work.tx is None or work.state is BranchState.ACTIVE
    return may_end and not work.workers and work.deadline_ms + 1_000 < broker.clock.running_ms


def _waits(queue: Queue) -> bool:
    """True if a consumer waits that a message of ``queue`` could be given to."""
    if queue.arguments.get("x-single-active-consumer"):
        return bool(queue.consumers) and all(each.can_take() and not each.unacked for each in queue.consumers)
    return any(each.can_take() for each in queue.consumers)


def all_finished(clients: Iterable[SimClient]) -> Callable[[], bool]:
    """Tells whether all have. Asked after every event, so it looks at one that has not: none begins anew."""
    left = list(clients)

    def finished() -> bool:
        while left and left[-1].finished:
            left.pop()
        return not left

    return finished


@attrs.frozen(kw_only=True)
class Report:
    """The record of one seed's run.

    Attributes:
        workloads: those beside the bank.
        happened: what is worth counting and is no fault, what came of the workloads (`Run.did`) too.
        healed_ms: from when the nemesis left until every broker was ready and everything applied everywhere; 0 if it never was.
    """

    seed: int
    workloads: frozenset[str]
    transactions: int
    committed: int
    rolled_back: int
    resolved_by_asking: int
    answers: int
    faults: dict[str, int]
    happened: dict[str, int]
    failovers: int
    healed_ms: int
    simulated_ms: int
    events: int
    trace_hash: str


class SimCluster:
    """A run: as many brokers, clients and faults as the seed's knobs say."""

    def __init__(
        self,
        seed: int,
        *,
        knobs: Knobs | None = None,
        nemesis: Callable[[SimCluster], Nemesis | ScriptedNemesis] | None = Nemesis,
        keep_story: bool = False,
    ) -> None:
        """``knobs``: instead of those that the seed draws. ``nemesis``: makes it; None for a run without faults."""
        self.knobs = knobs if knobs is not None else Knobs.draw(seed)
        self.world = World(seed, keep_story)
        self.store = SimStore(self.world)
        self.network = Network(self.world)
        self.ledger = Ledger()
        self.checkers = Checkers(self.store, self.ledger)
        self.accounts = Accounts(self.checkers.reference, self.ledger)
        self.restart = Restart(self.checkers.chosen, self.checkers.reference)
        self.nodes = {name: self._node(name) for name in (f"b{i + 1}" for i in range(self.knobs.brokers))}
        self.nemesis = nemesis(self) if nemesis is not None else None
        if self.nemesis is not None:
            self.checkers.hand_overs.is_quiet = self.nemesis.havoc.is_calm
        self.run_state = Run(
            self.world, self.knobs, self.ledger, TRANSACTIONS, self._enough, self.checkers.answers.forgotten
        )
        self.clients: list[SimClient] = []
        self.healed_ms = 0
        self.store.on_change = self._store_changed
        self.network.on_sent = self._sent
        self.world.after_event = self._after_event
        self._chance = self.world.stream("restarts that are tried")
        self._try_restart_us = self._chance.randrange(*TRY_RESTART_MS) * MS

    def _node(self, name: str) -> SimNode:
        config = HaSettings(
            broker=name,
            group="g",
            founds=name == "b1",
            min_insync=self.knobs.min_insync,
            backup_timeout_ms=self.knobs.backup_timeout_ms,
            expected_timeout_ms=self.knobs.expected_timeout_ms,
            link_unacknowledged_bytes=self.knobs.credit_bytes,
            replicate=self.knobs.replicate,
        )
        node = SimNode(self.world, name, self.store, self.network, config, self.knobs, self.checkers)
        node.on_death = self._dies
        node.on_step_down = lambda node: self.world.happened.update(points_of_step_down(node))
        return node

    def _after_event(self) -> None:
        if self.checkers.touched_nodes:
            self.checkers.after_event()
        if self.world.now_us >= self._try_restart_us:
            self._try_restart_us = self.world.now_us + self._chance.randrange(*TRY_RESTART_MS) * MS
            self._try_restart()

    def _try_restart(self) -> None:
        """In the midst of whatever is under way: what would a listed broker find on its disk, and be promoted with?"""
        group = self.store.group
        members = [node for node in self.nodes.values() if group is not None and node.name in group.members]
        node = self._chance.choice(members) if members else None
        if node is not None and not node.wiped and not node.lost_tail:
            self.restart.check(node, self._chance, hard=self._chance.random() < 0.5)

    def _dies(self, node: SimNode) -> None:
        others = [other for other in self.nodes.values() if other is not node and other.up]
        self.world.happened.update(points_of_death(node, others))

    def _sent(self, source: SimNode, target: SimNode, message: bytes) -> None:
        self.checkers.sent(source, target, message)
        kind = message[0]
        if kind == wire.RESUME or (kind == wire.BASE and wire.base_form(message) == wire.BASE_NEW):
            # A primary goes on with it on a new link, which it does with nobody whose place in the set is being settled.
            self._begins_anew(target)
        elif kind == wire.BASE and wire.base_form(message) == wire.BASE_AGAIN:
            self.world.happened["base again"] += 1

    def _store_changed(self, before: GroupState | None, after: GroupState) -> None:
        self.checkers.store_changed(before, after)
        for node in self.nodes.values():
            self._begins_anew(node)
        if self.nemesis is not None:
            self.nemesis.store_changed(before, after)

    def _begins_anew(self, node: SimNode) -> None:
        """Whoever lost its data and is not listed any more comes back as new: no copy is missed."""
        group = self.store.group
        if group is not None and node.name not in group.members:
            node.wiped = node.lost_tail = False

    # -- the run ----------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Raises :class:`Violation` if a promise is broken or the cluster does not heal."""
        with watching_queues(), self.knobs.in_force():
            self._set_up()
            workers_, watchers = workers(self.run_state, self.client)
            nemesis, world = self.nemesis, self.world
            limit_us = world.now_us + TROUBLE_LIMIT_MS * MS
            if nemesis is not None:
                nemesis.start()
                limit_us = limit_us if nemesis.leave_ms is None else START_US + nemesis.leave_ms * MS
            world.run(limit_us, all_finished(workers_))
            if nemesis is not None:
                nemesis.leave()
            healing_us = world.now_us
            limit_us = healing_us + HEAL_LIMIT_MS * MS
            self._until("finished their work", limit_us, workers_)
            self.run_state.over = True
            self._until("stopped", limit_us, watchers)
            if not world.run(limit_us, self.settled):
                raise Violation("liveness", f"the cluster did not heal: {self.describe()}")
            self.healed_ms = (world.now_us - healing_us) // MS
            self.final_check()
        return self.report()

    def _set_up(self) -> None:
        world = self.world
        for node in self.nodes.values():
            world.at(world.rng.randrange(5 * MS), node.start)
        setup = self.client("setup")
        setup.run(declare_all(setup, self.knobs))
        if not world.run(world.now_us + START_LIMIT_MS * MS, lambda: setup.finished):
            raise Violation("liveness", f"the cluster did not start: {self.describe()}")

    def _until(self, what: str, limit_us: int, clients: list[SimClient]) -> None:
        if not self.world.run(limit_us, all_finished(clients)):
            stuck = [client.name for client in clients if not client.finished]
            raise Violation("liveness", f"{stuck} have not {what} {HEAL_LIMIT_MS} ms after healing: {self.describe()}")

    def client(self, name: str) -> SimClient:
        client = SimClient(self.world, name, list(self.nodes.values()), self.checkers)
        self.clients.append(client)
        return client

    def _enough(self) -> bool:
        """Enough work, and enough trouble while it was done; or the time that a script gives is over."""
        nemesis = self.nemesis
        if nemesis is not None and nemesis.leave_ms is not None:
            return nemesis.havoc.stopped
        if self.ledger.decided < TRANSACTIONS:
            return False
        return nemesis is None or nemesis.havoc.stopped or nemesis.spent or self.world.faults.total() >= FAULTS

    # -- the end ----------------------------------------------------------------------------------------------------------

    def primary(self) -> SimNode | None:
        """The broker that is active under the stored epoch."""
        for node in self.nodes.values():
            if node.up and node.ha.status is BrokerStatus.ACTIVE and node.ha.group == self.store.group:
                return node
        return None

    def settled(self) -> bool:
        """Every broker ready or active, every transaction over, everything applied everywhere, nothing put off."""
        primary = self.primary()
        if primary is None:
            return False
        if self.store.group is None or self.store.group.damaged:
            return False
        log = primary.node.state.log
        if log.applied != log.end or log.pending or primary.node.broker.dtx.undecided:
            return False
        for node in self.nodes.values():
            if not node.up or node.paused:
                return False
            state = node.node.state
            if state.transactions or state.log.applied != log.end or state.put_off.waiting:
                return False
            refilled = not node.extension.replicator.fresh and not node.extension.replicator.part
            if node is not primary and not (node.ha.status is BrokerStatus.READY and refilled):
                return False
        return True

    def describe(self) -> str:
        """Where every broker stands."""
        rows = []
        for node in self.nodes.values():
            if not (node.up and node._open):
                rows.append(f"{node.name} {'is about to recover' if node.up else 'down'} {node.fatal}")
                continue
            log = node.node.state.log
            rows.append(
                f"{node.name} {node.ha.status.value} epoch {log.epoch} end {log.end} durable {log.durable} stable "
                f"{log.stable} applied {log.applied} tx {list(node.node.state.transactions)[:3]} {node.ha.blockers()}"
            )
        return f"store {self.store.group}; " + "; ".join(rows)

    def final_check(self) -> None:
        """Of a settled cluster."""
        primary = self.primary()
        assert primary is not None
        wanted = queue_digests(primary.node.state)
        topology = self._topology(primary)
        for node in self.nodes.values():
            state = node.node.state
            differing = {d.name for d in {*queue_digests(state)} ^ {*wanted}}
            if differing:
                raise Violation("G2", f"{node.name} and {primary.name} differ in {sorted(differing)}")
            came_once.remember_alike(node, primary)
            if node is not primary:
                self.checkers.levels.holds_the_log_alone(node, "is a backup")
            if self._topology(node) != topology:
                raise Violation("G2", f"{node.name} and {primary.name} differ in what is declared and bound")
            routes.check(node, self.checkers.reference.declared)
            if doubts_of(state) != doubts_of(primary.node.state):
                raise Violation(
                    "G5", f"{node.name} and {primary.name} differ in what is in doubt, or was completed by an operator"
                )
            if outcomes_of(state) != outcomes_of(primary.node.state):
                raise Violation(
                    "G8", f"{node.name} and {primary.name} differ in what they know of transactions that are over"
                )
            if any(count < 0 for count in state.live.buckets.values()):
                raise Violation("counts", f"{node.name} counts live offsets below zero: {state.live.buckets}")
            embargoed = {queue.name: queue.uncommitted for queue in state.queues.values() if queue.uncommitted}
            if embargoed:
                raise Violation(
                    "counts", f"{node.name} counts messages as uncommitted and has no transaction: {embargoed}"
                )
            left = self._left_over(node)
            if left:
                raise Violation("counts", f"{node.name} keeps what it should have forgotten: {left}")
            if node is primary:
                holders.check(node)
                nothing_is_late(node)
            self.restart.check(node, self.world.stream(f"restart {node.name}"), hard=self.world.seed % 2 == 0)
        self.accounts.check(kept_queues(self.knobs))
        moving = {"mortal": mortal.QUEUES, "ranked": ranked.QUEUES, "retried": retried.QUEUES}
        for name, queues in moving.items():
            publishers = [client.name for client in self.clients if client.name.startswith(name)]
            moved_once.check(self.checkers.reference, self.ledger, publishers, queues)
        came_once.check(self.checkers.reference, self.ledger, repeater.PUBLISHERS, repeater.QUEUES)

    @staticmethod
    def _left_over(node: SimNode) -> dict[str, object]:
        """Things, by name, that an idle broker that has decided everything must not hold any more."""
        state, broker = node.node.state, node.node.broker
        replicator = node.extension.replicator
        held: dict[str, object] = {
            "records to apply": len(state.log.pending),
            "answers that wait": len(broker.completions.waiting),
            "queues to serve": [queue.name for queue in state.scheduled],
            "messages that come back": sum(map(len, broker.returning.gathered.values())),
            "messages to move": sum(map(len, broker.moving.waiting.values())),
            "bytes that wait to become stable": broker.unstable.held,
            "connections whose turn has not ended": len(broker.batch.publishers),
            "names that are barred and not known": [
                name for name in broker.name_bars.offsets if state.applying.outcomes.named(name) is None
            ],
            "no_votes": list(replicator.no_votes),
            "owed commits": list(state.applying.owed),
            "branches that an operator has completed": list(state.applying.completions),
            "branches whose time is over": [
                str(work) for work in broker.dtx._branches.values() if _is_over(work, broker)
            ],
            # Every 250 ms the surplus is trimmed, and a tenth of what there may be with it.
            "outcomes": max(0, len(state.applying.outcomes) - broker.limits.outcome_limit * 11 // 10),
            "connections that have ended": len(
                broker.reception.connections - {session.connection for session in node.clients}
            ),
        }
        spilled = {
            entry.message.body
            for queue in state.queues.values()
            # What was removed unseen, after a promotion, is passed over when its turn to be handed out comes.
            for entry in (*queue.entries.values(), *queue.shown(), *(entry for _, entry in queue.returned))
            if not isinstance(entry.message.body, bytes | bytearray | memoryview | PagedBodies)
        }
        if node.spill.live != len(spilled):
            gc.collect()  # what a step-down cut off in its midst, as a catch-up, may be a cycle: a broker collects it too
        if node.spill.live != len(spilled):
            held["spilled bodies"] = f"{node.spill.live}, of which queues hold {len(spilled)}"
        primary = node.ha.primary
        if primary is not None:
            queues = list(state.queues.values())
            held["dequeues that are not applied"] = [
                queue.name
                for queue in queues
                if any(entry.state in (DEQUEUING, PURGED, RETURNING) for entry in queue.entries.values())
            ]
            held["messages that a consumer waits for"] = [
                queue.name for queue in queues if queue.depth and _waits(queue)
            ]
            channels = [channel for session in node.clients for channel in session.connection.channels.values()]
            open_ones = sum(channel.transacting.active for channel in channels)
            held["open transaction ids"] = abs(len(broker.transactions.open_ids) - open_ones)
            for name, backup in primary.backups.items():
                held[f"catch-up of {name}"] = "" if backup.caught_up else "unfinished"
                held[f"trackers of {name}"] = len(backup.trackers.blockers())
        return {what: found for what, found in held.items() if found}

    @staticmethod
    def _topology(node: SimNode) -> list[bytes]:
        return sorted(node.node.state.topology.image.records())

    def report(self) -> Report:
        epoch = self.store.group.epoch if self.store.group is not None else 0
        counts = self.ledger.counts
        return Report(
            seed=self.world.seed,
            workloads=self.knobs.workloads,
            transactions=self.ledger.decided,
            committed=counts[Told.COMMITTED.value],
            rolled_back=counts[Told.ROLLED_BACK.value],
            resolved_by_asking=counts["resolved by asking"],
            answers=self.checkers.answers.given,
            faults=dict(self.world.faults),
            happened=dict(self.world.happened),
            failovers=epoch - 1,
            healed_ms=self.healed_ms,
            simulated_ms=(self.world.now_us - START_US) // MS,
            events=self.world.events,
            trace_hash=self.world.trace_hash,
        )
