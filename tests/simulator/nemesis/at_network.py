"""Strikes at what lies between: links, clients' connections, the coordination store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from tests.simulator.nemesis.at_brokers import Crash
from tests.simulator.nemesis.havoc import Havoc, Path
from tests.simulator.nemesis.strike import Strike, Times
from tests.simulator.world import MS

if TYPE_CHECKING:
    from tests.simulator.sim_client import Session


# -- at the network -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Partition(Strike):
    """Nothing passes on these paths for so long; the broker named as ``store`` does not reach the store either."""

    verb = "partition"
    cut: tuple[Path, ...]
    for_ms: int
    store: str = ""

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        paths = set(self.cut)
        if not havoc.crossing(paths):
            return False
        havoc.world.fault(self.verb, f"{sorted(paths)}{' and the store from ' + self.store if self.store else ''}")
        havoc.network.cut(paths)
        if self.store:
            havoc.lose_store(self.store)
        havoc.world.at(self.for_ms * MS, havoc.mend, paths, self.store)
        return True


@attrs.frozen(kw_only=True)
class PartitionOneWay(Partition):
    """The same, where the way back stays open."""

    verb = "partition-one-way"


@attrs.frozen(kw_only=True)
class SwizzleClog(Strike):
    """Some brokers are cut off one by one, from all others and from the store, and come back one by one in another order.

    The swizzle of FoundationDB's simulation, which says that it finds deeper bugs than most (W. Wilson, "Testing Distributed
    Systems w/ Deterministic Simulation", Strange Loop 2014).
    """

    verb = "swizzle-clog"
    clog_ms: Times
    mend_ms: Times

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        if not self.clog_ms or not havoc.crossing(havoc.paths_of(self.clog_ms[0][0])):
            return False
        havoc.world.fault(self.verb, ", ".join(name for name, _ in self.clog_ms))
        for name, ms in self.clog_ms:
            havoc.world.at(ms * MS, havoc.clog, name)
        for name, ms in self.mend_ms:
            havoc.world.at(ms * MS, havoc.unclog, name)
        return True


@attrs.frozen(kw_only=True)
class LinkReset(Strike):
    """The link between two brokers is reset; the oldest, should there be more."""

    verb = "link-reset"
    link: tuple[Path, ...]

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        for pair in havoc.network.pairs:
            if (pair.ends[0].owner.name, pair.ends[1].owner.name) in self.link:
                [(a, b)] = self.link
                havoc.world.fault(self.verb, f"{a}-{b}, {why}" if why else f"{a}-{b}")
                pair.reset("reset by the network")
                return True
        return False


@attrs.frozen(kw_only=True)
class SlowNetwork(Strike):
    """Messages on a path come later by so much, for so long."""

    verb = "slow-network"
    path: tuple[Path, ...]
    add_ms: int
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        [two] = self.path
        network = havoc.network
        if havoc.crossing({two}):
            havoc.world.fault(self.verb, f"{two[0]} to {two[1]}")
        network.slow[two] = havoc.holds.begin((self.verb, two), self.add_ms * MS)
        havoc.world.at(self.for_ms * MS, self._end, havoc, two)
        return True

    def _end(self, havoc: Havoc, two: Path) -> None:
        left_us = havoc.holds.end((self.verb, two), self.add_ms * MS)
        if left_us:
            havoc.network.slow[two] = left_us
        else:
            havoc.network.slow.pop(two, None)


def session_of(havoc: Havoc, client: str, broker: str) -> Session | None:
    """The oldest session of that client there."""
    node = havoc.node(broker)
    return next((session for session in node.clients if session.client.name == client), None) if node.up else None


@attrs.frozen(kw_only=True)
class ClientReset(Strike):
    """A client's connection is reset."""

    verb = "client-reset"
    client: str
    broker: str

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        session = session_of(havoc, self.client, self.broker)
        if session is None:
            return False
        havoc.world.fault(self.verb, f"{self.client} at {self.broker}")
        session.reset("reset by the network")
        return True


@attrs.frozen(kw_only=True)
class SlowClient(Strike):
    """A client takes its bytes slowly: the broker must deliver nothing more to it for a while."""

    verb = "slow-client"
    client: str
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        session = session_of(havoc, self.client, self.broker)
        if session is None:
            return False
        havoc.world.fault(self.verb, f"{self.client} at {self.broker}")
        havoc.holds.begin(session)
        session.congest(True)
        havoc.world.at(self.for_ms * MS, self._end, havoc, session)
        return True

    @staticmethod
    def _end(havoc: Havoc, session: Session) -> None:
        if not havoc.holds.end(session):
            session.congest(False)


# -- at the store -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionLoss(Strike):
    """A broker does not reach the store for so long."""

    verb = "session-loss"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        if self.broker in havoc.store.cut_off:
            return False
        havoc.world.fault(self.verb, f"{self.broker} is cut off from the store")
        havoc.lose_store(self.broker)
        havoc.world.at(self.for_ms * MS, havoc.regain_store, self.broker)
        return True


@attrs.frozen(kw_only=True)
class StoreOutage(Strike):
    """The store is out of every broker's reach for so long."""

    verb = "store-outage"
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        havoc.world.fault(self.verb, "nobody reaches the store")
        for name in havoc.cluster.nodes:
            havoc.lose_store(name)
            havoc.world.at(self.for_ms * MS, havoc.regain_store, name)
        return True


@attrs.frozen(kw_only=True)
class GroupLost(Strike):
    """The store answers, and does not hold the group: its node was deleted, ``wholly``: and its history with it.

    After so long an operator puts it back, if no broker has written it anew. With ``at_promotion`` that happens to the next
    promotion, before the primary that it replaces has seen it; which goes on in that moment, and reaches the store. Counted then.
    """

    verb = "group-lost"
    for_ms: int
    wholly: bool
    at_promotion: bool = False

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        if havoc.store.lost or havoc.store.group is None:
            return False
        if self.at_promotion:
            havoc.store.lost_promotion = partial(havoc.world.ahead, 0, self._lose_promotion, havoc)
            return True
        return self._lose(havoc)

    def _lose_promotion(self, havoc: Havoc, replaced: str) -> None:
        node = havoc.node(replaced)
        if self._lose(havoc) and node.up:
            if replaced in havoc.store.cut_off:
                havoc.regain_store(replaced)
            node.resume()

    def _lose(self, havoc: Havoc) -> bool:
        if havoc.stopped or havoc.store.lost:
            return False
        havoc.world.fault(self.verb, "the store has lost the group" + (", history and all" if self.wholly else ""))
        havoc.lose_group(None, with_history=self.wholly, for_ms=self.for_ms)
        return True


@attrs.frozen(kw_only=True)
class GroupSetBack(Strike):
    """The store holds a state of an older epoch again, and remembers no newer one.

    Hit only where no broker could lead by that older state: each member of it is a member today, and has seen today's epoch,
    since its primary serves. A broker refuses to start with a store that knows less than its journal.
    """

    verb = "group-set-back"
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        store = havoc.store
        older = store.state_of_an_older_epoch()
        if store.lost or store.group is None or older is None:
            return False
        if havoc.cluster.primary() is not havoc.node(store.group.primary) or not set(older.members) <= set(
            store.group.members
        ):
            return False
        havoc.world.fault(self.verb, f"the store is set back to epoch {older.epoch}")
        havoc.lose_group(older, with_history=True, for_ms=self.for_ms)
        return True


@attrs.frozen(kw_only=True)
class StaleStore(Strike):
    """A broker's view of the store lags behind, across its restarts, and its requests are slow."""

    verb = "stale-store"
    broker: str
    lag_ms: int
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        havoc.world.fault(self.verb, f"{self.broker} sees the store {self.lag_ms} ms late")
        havoc.store.lag_ms[self.broker] = havoc.holds.begin((self.verb, self.broker), self.lag_ms)
        havoc.world.at(self.for_ms * MS, self._end, havoc)
        return True

    def _end(self, havoc: Havoc) -> None:
        left_ms = havoc.holds.end((self.verb, self.broker), self.lag_ms)
        if left_ms:
            havoc.store.lag_ms[self.broker] = left_ms
        else:
            havoc.store.lag_ms.pop(self.broker, None)


@attrs.frozen(kw_only=True)
class LostAnswer(Strike):
    """A broker does not hear that its next change of the store was made: counted when that happens."""

    verb = "lost-answer"
    broker: str

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        havoc.store.lose_answers.add(self.broker)
        return True


@attrs.frozen(kw_only=True)
class UnheardAdd(Strike):
    """A broker does not hear that it has added another to the set; from then on it reaches neither that one nor the store.

    So who may lead next is one that it does not hear from, and must not do without. With ``back_ms`` it dies in the end, before it
    has learnt of it, and is back after so long. Counted when the add is made.
    """

    verb = "unheard-add"
    broker: str
    for_ms: int
    back_ms: int = 0

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        if self.broker in havoc.store.unheard_adds:
            return False
        havoc.store.unheard_adds[self.broker] = partial(self._added, havoc)
        return True

    def _added(self, havoc: Havoc, joiner: str) -> None:
        paths = {(self.broker, joiner), (joiner, self.broker)}
        havoc.world.fault(
            self.verb, f"{self.broker} does not hear that it has added {joiner}, and reaches neither it nor the store"
        )
        havoc.network.cut(paths)
        havoc.lose_store(self.broker)
        havoc.world.at(self.for_ms * MS, self._end, havoc, paths)

    def _end(self, havoc: Havoc, paths: set[Path]) -> None:
        if self.back_ms and not havoc.stopped:
            Crash(broker=self.broker, back_ms=self.back_ms).hit(havoc, self.verb)
        havoc.mend(paths, self.broker)
