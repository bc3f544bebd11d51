"""Havoc: what is out of order in a cluster because of the nemesis, and how it is put in order again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

from tests.simulator.nemesis.store_orders import write_in_store
from tests.simulator.operator import command
from tests.simulator.world import MS, START_US, World
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster
    from tests.simulator.sim_node import SimNode

LIFT_EVERY_MS = 200
RESTART_EVERY_MS = 500
Path = tuple[str, str]
"""From one broker to another."""


class Holds:
    """Effects that strikes hold at once, each for its time: of one thing the strongest counts that has not ended."""

    def __init__(self) -> None:
        self._held: dict[Hashable, list[int]] = {}

    def begin(self, what: Hashable, strength: int = 1) -> int:
        """Returns what counts from now on."""
        held = self._held.setdefault(what, [])
        held.append(strength)
        return max(held)

    def end(self, what: Hashable, strength: int = 1) -> int:
        """Returns what counts from now on, 0 if nothing does; as well if everything had healed before."""
        held = self._held.get(what, [])
        if strength in held:
            held.remove(strength)
        if not held:
            self._held.pop(what, None)
        return max(held, default=0)

    @property
    def any(self) -> bool:
        return bool(self._held)

    def clear(self) -> None:
        self._held.clear()


class Havoc:
    """Cuts, losses of the store, restarts to come.

    Attributes:
        stopped: the nemesis has left: nothing new begins, what is under way ends in its time.
        left_us: when it did, since the run began; 0 before.
        has_operator: somebody gives commands, and puts in order at the end what they were.
        clogged: brokers to which and from which nothing goes, as often as that is so; the store is out of their reach, too.
        holds: what is slow, late, full or not read, and how much so.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.network = cluster.network
        self.store = cluster.store
        self.stopped = False
        self.left_us = 0
        self.has_operator = self._supervised = False
        self.clogged: list[str] = []
        self.holds = Holds()
        self._store_lost: Counter[str] = Counter()

    @property
    def at_us(self) -> int:
        """The time as stories and scripts have it: since the run began."""
        return self.world.now_us - START_US

    def node(self, broker: str) -> SimNode:
        return self.cluster.nodes[broker]

    def up(self) -> list[SimNode]:
        return [node for node in self.cluster.nodes.values() if node.up]

    @property
    def is_quiet(self) -> bool:
        """Nothing is out of order: every broker runs, and reaches the others, its disk and the store."""
        nodes = self.cluster.nodes.values()
        ill = [
            node
            for node in nodes
            if not node.up or node.paused or node.disk_hangs or node.low_disk or node.is_filled or node.storage.full
        ]
        syncs_fail = any(node.storage.failing_syncs for node in nodes)
        cut = self.network.cuts or self.clogged or self.store.cut_off or self.store.lag_ms or self.store.lost
        return not (
            ill or syncs_fail or cut or self.store.lose_answers or self.store.unheard_adds or self.store.lost_promotion
        )

    def is_calm(self) -> bool:
        """Nothing is out of order, and nothing is slow."""
        return self.is_quiet and not self.holds.any

    @property
    def has_truce(self) -> bool:
        """A disk has lost what its broker cannot know of: see :class:`LostTail`."""
        return any(node.lost_tail and not node.knows_loss for node in self.cluster.nodes.values())

    # -- processes ------------------------------------------------------------------------------------------------

    def kill(self, node: SimNode, back_ms: int, *, hard: bool) -> None:
        """The process dies, or with ``hard`` the machine loses power; it is started again after so long."""
        node.crash(hard)
        self.world.at(back_ms * MS, node.start_if_down)

    # -- the network ----------------------------------------------------------------------------------------------

    def paths_of(self, broker: str) -> set[Path]:
        """Both ways between it and everybody."""
        others = [other for other in self.cluster.nodes if other != broker]
        return {(broker, other) for other in others} | {(other, broker) for other in others}

    def crossing(self, paths: set[Path]) -> bool:
        """True if a link passes there."""
        links = [(pair.ends[0].owner.name, pair.ends[1].owner.name) for pair in self.network.pairs]
        return any((a, b) in paths or (b, a) in paths for a, b in links)

    def clog(self, broker: str) -> None:
        if not self.stopped:
            self.clogged.append(broker)
            self.network.cut(self.paths_of(broker))
            self.lose_store(broker)

    def unclog(self, broker: str) -> None:
        """The broker hears again from those that are not clogged themselves."""
        if broker in self.clogged:  # else the nemesis had left before it was
            self.clogged.remove(broker)
            self.mend(self.paths_of(broker), broker)

    def mend(self, paths: set[Path], from_store: str = "") -> None:
        """Mend the paths: messages that waited go on, unless held otherwise. ``from_store``: this broker reaches the store, too."""
        self.network.mend(paths)
        if from_store:
            self.regain_store(from_store)

    # -- the store ------------------------------------------------------------------------------------------------

    def lose_store(self, broker: str) -> None:
        self._store_lost[broker] += 1
        self.store.cut_off.add(broker)
        self.world.at(1_000 * MS, self._feel_loss, broker)

    def _feel_loss(self, broker: str) -> None:
        if broker in self.store.cut_off:
            self.node(broker).event(lambda ha: ha.coordination_lost())

    def regain_store(self, broker: str) -> None:
        """One reason why it does not reach the store is over."""
        self._store_lost[broker] -= 1
        if self._store_lost[broker] > 0:
            return
        del self._store_lost[broker]
        self.store.cut_off.discard(broker)
        node = self.node(broker)
        node.event(lambda ha: ha.coordination_regained())
        self.store.watch(node)

    def lose_group(self, instead: GroupState | None, *, with_history: bool, for_ms: int) -> None:
        """The store holds ``instead`` of the group, for so long at most; the end of an earlier loss ends it, too.

        Nothing happens while a write that makes the group anew is on its way: absence is all that it compares (decision 0050).
        """
        if self.store.restoring:
            return
        self.store.lose_group(instead, with_history=with_history)
        self.world.at(for_ms * MS, self.store.find_group)
        if not self._supervised:
            self._supervised = True
            self.world.at(RESTART_EVERY_MS * MS, self._restart_refusers)

    def _restart_refusers(self) -> None:
        """The supervisor starts brokers again that have refused to run with such a store, as one may that sees it late."""
        for node in self.cluster.nodes.values():
            if node.fatal and node.up and not node.paused and not self.store.lost:
                node.fatal = ""
                node.crash(False)
                node.start()
        self.world.at(RESTART_EVERY_MS * MS, self._restart_refusers)

    # -- the end --------------------------------------------------------------------------------------------------

    def leave(self, heal_ms: int) -> None:
        """No more faults. What is down, paused or cut comes back in its time; whatever is left of it after ``heal_ms`` ms, then.

        In its time: so that who was away for long meets those who went on without it, a primary above all.
        """
        self.stopped = True
        self.left_us = self.at_us
        self.world.note("NEMESIS", f"leaves; everything has healed in {heal_ms} ms at the latest")
        for node in self.cluster.nodes.values():
            node.storage.failing_syncs = 0
        self.store.lose_answers.clear()
        self.store.unheard_adds.clear()
        self.store.lost_promotion = None
        self._lift_bars()
        if heal_ms:
            self.world.at(heal_ms * MS, self._heal)
        else:
            self._heal()

    def _lift_bars(self) -> None:
        """The operator admits who was expelled, as soon as a primary can be told; the last command may be under way.

        A primary that cannot serve without that broker is stopped for it: the command then writes the store itself.
        """
        group = self.store.group
        if not self.has_operator or group is None:
            return
        node = self.node(group.primary)
        if group.barred and node.up and not node.paused and node.node.broker.role.answering:
            command(node, "admit", broker=group.barred[0].broker)
        elif group.barred and len(group.members) < group.min_insync and not node.paused:
            if node.up:
                node.crash(hard=False)
            elif write_in_store(self, "operator", "admit", group.barred[0].broker):
                node.start()
        self.world.at(LIFT_EVERY_MS * MS, self._lift_bars)

    def make_room(self, node: SimNode) -> None:
        """On the disk of a listed broker; another one has to make room itself."""
        group = self.store.group
        if group is None or node.name in group.members:
            node.filled_by = frozenset()

    def _heal(self) -> None:
        self.world.note("NEMESIS", "everything heals")
        self.network.heal()
        self.clogged.clear()
        self.holds.clear()
        self._store_lost.clear()
        self.store.cut_off.clear()
        self.store.lag_ms.clear()
        self.store.find_group()
        for node in self.cluster.nodes.values():
            node.storage.full = False
            node.low_disk = ""
            self.make_room(node)
            node.disk_goes_on()
            node.resume()
            node.start_if_down()
            node.event(lambda ha: ha.coordination_regained())
            for session in list(node.clients):
                session.congest(False)
