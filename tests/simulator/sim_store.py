"""A simulated coordination store: requests are linearizable, answers may be lost, what is watched may be late.

A broker's *view* (what watches bring) may lag behind, as that of a client of a ZooKeeper follower does; within one process
it never goes back. Requests, `read` among them, always meet the store as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from tests.simulator.world import MS, World
from understudy.ha.store.coordination import Answer, BrokerInfo, GroupState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

SESSION_MS = 3_000


class SimStore:
    """The store itself, and every broker's session with it.

    Attributes:
        cut_off: brokers that do not reach it.
        group: what was written last.
        lost: the store does not show that, but what `lose_group` has put in its place.
        lost_promotion: what is to happen as soon as the next promotion has been written; it is told who led before.
        highest_recorded: the highest epoch that the history of the store knows.
        restoring: how many writes are on their way that make a lost group anew.
        lag_ms: broker to how far its view may be behind; requests are slow too then.
        lose_answers: brokers whose next answer to a change is lost.
        unheard_adds: brokers whose next add to the set is not answered, and what happens then; it is told who was added.
        on_change: told of every change (before, after).
        on_lost_answer: told of a broker whose answer was lost.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.stream("store")
        self.group: GroupState | None = None
        self.infos: dict[str, BrokerInfo] = {}
        self.deadline_ms: dict[str, int] = {}
        self.cut_off: set[str] = set()
        self.lag_ms: dict[str, int] = {}
        self.lose_answers: set[str] = set()
        self.unheard_adds: dict[str, Callable[[str], None]] = {}
        self.nodes: dict[str, SimNode] = {}
        self.on_change: Callable[[GroupState | None, GroupState], None] | None = None
        self.on_lost_answer: Callable[[SimNode], None] | None = None
        self.lost_promotion: Callable[[str], None] | None = None
        self.highest_recorded = self.restoring = 0
        self.lost = False
        self._instead: GroupState | None = None
        self._history: list[tuple[int, GroupState | None]] = []
        self._seen: dict[tuple[str, int], int] = {}

    def brokers(self) -> dict[str, BrokerInfo]:
        now = self.world.now_ms
        return {b: attrs.evolve(i, alive=self.deadline_ms.get(b, 0) > now) for b, i in self.infos.items()}

    def renew(self, broker: str) -> None:
        """The session of ``broker`` lives on, if it reaches the store."""
        if broker not in self.cut_off:
            self.deadline_ms[broker] = self.world.now_ms + SESSION_MS

    def change(self, group: GroupState) -> None:
        """Write; everybody's watches fire, some time later."""
        before, self.group = self.group, group
        self.lost, self._instead = False, None
        self.highest_recorded = max(self.highest_recorded, group.epoch)
        self._history.append((self.world.now_ms, group))
        self.world.note("store", describe_group(group))
        if self.on_change is not None:
            self.on_change(before, group)
        if before is not None and group.epoch > before.epoch and self.lost_promotion is not None:
            lose, self.lost_promotion = self.lost_promotion, None
            lose(before.primary)
        self.fire_watches()

    def answer_is_lost(self, broker: str, before: GroupState | None) -> bool:
        """True if ``broker`` does not hear that its change of ``before`` was made; the planned consequences happen here."""
        added = self._added_since(before)
        if broker in self.lose_answers:
            self.lose_answers.discard(broker)
            self.world.fault("lost-answer", f"{broker} does not hear that the store was changed")
        elif added and broker in self.unheard_adds:
            self.unheard_adds.pop(broker)(added)
        else:
            return False
        return True

    def _added_since(self, before: GroupState | None) -> str:
        """The broker added to the set by a change of nothing but the set; "" if there is none."""
        if before is None or self.group is None or self.group.epoch != before.epoch:
            return ""
        return min({*self.group.members} - {*before.members}, default="")

    @property
    def held(self) -> GroupState | None:
        """The group as the store shows it: `group`, unless it has lost that."""
        return self._instead if self.lost else self.group

    def lose_group(self, instead: GroupState | None, *, with_history: bool) -> None:
        """Show ``instead`` from now on, None for no group; ``with_history``: and remember no higher epoch."""
        self.lost, self._instead = True, instead
        if with_history:
            self.highest_recorded = 0
        self._show(instead)

    def find_group(self) -> None:
        """An operator puts back what was lost, unless it has been written anew."""
        if self.lost:
            self.lost, self._instead = False, None
            self.highest_recorded = max(self.highest_recorded, self.group.epoch if self.group is not None else 0)
            self._show(self.group)

    def state_of_an_older_epoch(self) -> GroupState | None:
        """The group at the end of the epoch before this one, None if there was none."""
        epoch = self.group.epoch if self.group is not None else 0
        older = [group for _, group in self._history if group is not None and group.epoch < epoch]
        return max(older, key=lambda group: (group.epoch, group.version), default=None)

    def _show(self, group: GroupState | None) -> None:
        self._history.append((self.world.now_ms, group))
        self.world.note("store", describe_group(group) if group is not None else "no group")
        self.fire_watches()

    def fire_watches(self) -> None:
        for node in self.nodes.values():
            self.watch(node)

    def watch(self, node: SimNode) -> None:
        """Show the node its view of the store, some time later."""
        self.world.at(self.rng.randrange(1 * MS, 30 * MS), self._fire, node, node.incarnation)

    def _fire(self, node: SimNode, incarnation: int) -> None:
        if node.incarnation == incarnation and node.name not in self.cut_off:
            view, brokers = self._view(node), self.brokers()
            node.event(lambda ha: ha.group_changed(view, brokers))

    def _view(self, node: SimNode) -> GroupState | None:
        lag_ms = self.lag_ms.get(node.name, 0)
        key = (node.name, node.incarnation)
        if not lag_ms:
            self._seen[key] = len(self._history)
            return self.held
        newest = self._seen.get(key, 0)
        until = self.world.now_ms - lag_ms
        while newest < len(self._history) and self._history[newest][0] <= until:
            newest += 1
        self._seen[key] = newest
        return self._history[newest - 1][1] if newest else None


def describe_group(group: GroupState) -> str:
    members = ", ".join(group.members)
    return f"epoch {group.epoch}, primary {group.primary}, in-sync set {{{members}}}, version {group.version}"


def place_of(group: GroupState) -> tuple[int, int, int]:
    """The numbers that a change of the store compares."""
    return group.founding, group.epoch, group.version


class SimCoordination:
    """The port as one process of a broker has it."""

    def __init__(self, store: SimStore, node: SimNode) -> None:
        self._store = store
        self._node = node

    def _ask(self, request: int, action: Callable[[], Answer], *, restores: bool = False) -> None:
        store, node = self._store, self._node
        world, rng = store.world, store.rng
        incarnation = node.incarnation
        slow_us = store.lag_ms.get(node.name, 0) * MS // 4

        def arrive() -> None:
            store.restoring -= restores
            if node.name in store.cut_off:
                world.at(2_000 * MS, reply, Answer.LOST, None)
                return
            before = store.group
            answer = action()
            group = store.held
            if store.group is not before and store.answer_is_lost(node.name, before):
                if store.on_lost_answer is not None:
                    store.on_lost_answer(node)
                world.at(1_500 * MS, reply, Answer.LOST, None)
            else:
                world.at(rng.randrange(MS // 2, 5 * MS) + slow_us, reply, answer, group)

        def reply(answer: Answer, group: GroupState | None) -> None:
            if node.incarnation == incarnation:
                world.note(node.name, f"is answered by the store: {answer.value}")
                node.event(lambda ha: ha.answered(request, answer, group))

        world.at(rng.randrange(MS // 2, 5 * MS) + slow_us, arrive)

    def found(self, request: int, group: GroupState) -> None:
        def action() -> Answer:
            if self._store.held is not None or any(info.claim for info in self._store.infos.values()):
                return Answer.CONFLICT
            self._store.change(group)
            return Answer.DONE

        self._ask(request, action)

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        def action() -> Answer:
            held = self._store.held
            if held is None or place_of(held) != place_of(expected):
                return Answer.CONFLICT
            self._store.change(wanted)
            return Answer.DONE

        self._ask(request, action)

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None:
        def action() -> Answer:
            if self._store.held != shown or self._store.highest_recorded > wanted.epoch:
                return Answer.CONFLICT
            self._store.change(wanted)
            return Answer.DONE

        self._store.restoring += 1
        self._ask(request, action, restores=True)

    def read(self, request: int) -> None:
        self._ask(request, lambda: Answer.DONE)

    def publish(self, info: BrokerInfo) -> None:
        before = self._store.infos.get(info.broker)
        if info.claim is None and before is not None:
            info = attrs.evolve(info, claim=before.claim)
        self._store.infos[info.broker] = info
        if before is None or before.status != info.status:
            self._store.fire_watches()
