"""Strikes at processes, at machines and at their disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from tests.simulator.damage import damage
from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.nemesis.strike import Strike, Times
from tests.simulator.world import MS
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

SOON_MS = 150
"""Less than it takes to miss a broker."""
VOTE_TRIES = 30
VOTE_WAIT_MS = 20


def role(node: SimNode) -> str:
    return "primary" if node.ha.primary is not None else "backup"


# -- at processes -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Crash(Strike):
    """A broker dies (kill -9), and is back after so long. One that is paused is spared: it shall find that others have gone on."""

    verb = "crash"
    hard: ClassVar[bool] = False
    broker: str
    back_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        if not node.up or node.paused:
            return False
        havoc.world.fault(f"{self.verb}-{role(node)}", f"{node.name} {why}".rstrip())
        havoc.kill(node, self.back_ms, hard=self.hard)
        return True


@attrs.frozen(kw_only=True)
class Power(Crash):
    """Its machine loses power: what was not synced is lost, in part, or torn."""

    verb = "power"
    hard = True


@attrs.frozen(kw_only=True)
class CrashAll(Strike):
    """Every broker dies; each is back after its time."""

    verb = "crash-all"
    hard: ClassVar[bool] = False
    back_ms: Times

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        up = [(node, ms) for node, ms in ((havoc.node(name), ms) for name, ms in self.back_ms) if node.up]
        if up:
            havoc.world.fault(self.verb, "every broker")
            for node, ms in up:
                havoc.kill(node, ms, hard=self.hard)
        return bool(up)


@attrs.frozen(kw_only=True)
class PowerAll(CrashAll):
    """Every machine loses power."""

    verb = "power-all"
    hard = True


@attrs.frozen(kw_only=True)
class Pause(Strike):
    """A broker stands still for so long."""

    verb = "pause"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        if not node.up or node.paused:
            return False
        havoc.world.fault(f"pause-{role(node)}", f"{node.name} {why}".rstrip())
        node.pause()
        havoc.world.at(self.for_ms * MS, self._end, node, node.incarnation)
        return True

    @staticmethod
    def _end(node: SimNode, incarnation: int) -> None:
        if (
            node.incarnation == incarnation
        ):  # else it has died, and the next process may stand still for a reason of its own
            node.resume()


@attrs.frozen(kw_only=True)
class ClockJump(Strike):
    """A broker's wall clock jumps."""

    verb = "clock-jump"
    broker: str
    by_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        node.wall_offset_ms += self.by_ms
        havoc.world.fault(self.verb, f"{node.name} to {node.wall_offset_ms} ms")
        return True


@attrs.frozen(kw_only=True)
class VoteNo(Strike):
    """A backup's copy of an open transaction is damaged in memory, as soon as there is one: its digest will differ."""

    verb = "vote-no"
    broker: str

    @staticmethod
    def open_copy(node: SimNode) -> TxBuffer | None:
        """The copy that was used last: it is likely to be committed soon. None if ``node`` has none, or is no linked backup."""
        if not node.up or node.paused or node.ha.primary is not None or not node.extension.replicator.linked:
            return None
        transactions = node.node.state.transactions.values()
        open_ones = [tx for tx in transactions if tx.closing is None and tx.events and not tx.outcome_offset]
        return max(open_ones, key=lambda tx: tx.events[-1][0], default=None)

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        return self._try(havoc, VOTE_TRIES)

    def _try(self, havoc: Havoc, tries: int) -> bool:
        if havoc.stopped or not tries:
            return False
        node = havoc.node(self.broker)
        tx = self.open_copy(node)
        if tx is None:
            havoc.world.at(VOTE_WAIT_MS * MS, self._try, havoc, tries - 1)
            return False
        damage(tx)
        havoc.world.fault(self.verb, f"{node.name} has a damaged copy of transaction {tx_id_text(tx.tx_id)}")
        return True


# -- at disks -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FsyncError(Strike):
    """A broker's next fsync fails: counted when it does."""

    verb = "fsync-error"
    broker: str

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        havoc.node(self.broker).storage.failing_syncs = 1
        return True


@attrs.frozen(kw_only=True)
class DiskFull(Strike):
    """A broker's disk has no room for another file, for so long: counted when the broker fails for it."""

    verb = "disk-full"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        havoc.holds.begin((self.verb, self.broker))
        node.storage.full = True
        havoc.world.at(self.for_ms * MS, self._end, havoc, node)
        return True

    def _end(self, havoc: Havoc, node: SimNode) -> None:
        if not havoc.holds.end((self.verb, self.broker)):
            node.storage.full = False


@attrs.frozen(kw_only=True)
class DiskLow(Strike):
    """A broker's disk is below its reserve, for so long; what is under way still finds room."""

    verb = "disk-low"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        if node.low_disk:
            return False
        havoc.world.fault(self.verb, f"{node.name} {why}".rstrip())
        node.low_disk = "disk space in /data is below the reserve"
        havoc.world.at(self.for_ms * MS, self._enough, node)
        return True

    @staticmethod
    def _enough(node: SimNode) -> None:
        node.low_disk = ""


@attrs.frozen(kw_only=True)
class DiskFilled(Strike):
    """A broker's own journal fills its disk up to the reserve.

    That lasts until the last of these segments is gone. Only where the group cannot do without the broker it is over in ``for_ms``,
    as if an operator had made room.
    """

    verb = "disk-filled"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        if not node.up or node.is_filled:
            return False
        havoc.world.fault(self.verb, f"{node.name} {why}".rstrip())
        node.fill_disk()
        havoc.world.at(self.for_ms * MS, havoc.make_room, node)
        return True


@attrs.frozen(kw_only=True)
class DiskHang(Strike):
    """No fsync of a broker ends, for so long; what was begun already does."""

    verb = "disk-hang"
    broker: str
    for_ms: int

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node = havoc.node(self.broker)
        if not node.up or node.disk_hangs:
            return False
        havoc.world.fault(self.verb, f"{node.name} {why}".rstrip())
        node.disk_hangs = True
        havoc.world.at(self.for_ms * MS, node.disk_goes_on)
        return True


@attrs.frozen(kw_only=True)
class Wipe(Strike):
    """A backup loses its data directory, while somebody else who may be promoted has everything."""

    verb = "wipe"
    leads: ClassVar[bool] = False
    broker: str
    back_ms: int

    @staticmethod
    def spares_a_copy(havoc: Havoc, node: SimNode, group: GroupState) -> bool:
        """True if another member holds everything, and no broker has lost its data yet (one at a time at most)."""
        nodes = havoc.cluster.nodes
        return not any(other.wiped or other.lost_tail for other in nodes.values()) and any(
            name != node.name and nodes[name].up and not Wipe.doubts(nodes[name], group) for name in group.members
        )

    @staticmethod
    def doubts(node: SimNode, group: GroupState) -> bool:
        """True if ``node`` takes its own copy for damaged."""
        return bool(group.damage_of(node.name) or node.ha.backup.doubt)

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node, group = havoc.node(self.broker), havoc.store.group
        if group is None or not node.up or self.leads != (node.ha.primary is not None):
            return False
        if not self.spares_a_copy(havoc, node, group):
            return False
        havoc.world.fault(self.verb, f"{node.name} loses its data")
        node.crash(True)
        node.wipe()
        havoc.world.at(self.back_ms * MS, node.start_if_down)
        return True


@attrs.frozen(kw_only=True)
class LostTail(Strike):
    """A broker's machine loses power, and its disk the end of what it had synced, while another listed broker is whole.

    Nothing that was acknowledged may be lost by it. If the broker cannot know of its loss, it may lead without what others hold if
    those are away for long: so that comes when nothing else is out of order, and nothing is until it is mended.
    """

    verb = "lost-tail"
    broker: str
    octets: int
    back_ms: int
    others_ms: Times = ()
    """These die with it: what they knew beyond their disks they do not know any more. They are back soon if it cannot know."""

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        node, group = havoc.node(self.broker), havoc.store.group
        if group is None or not node.up or node.paused or not Wipe.spares_a_copy(havoc, node, group):
            return False
        quiet, was = havoc.is_quiet, role(node)
        node.crash(True)
        if node.lose_tail(self.octets, lambda knows: not knows and not quiet):
            how = "knows it" if node.knows_loss else "cannot know it"
            havoc.world.fault(self.verb, f"{node.name} loses {self.octets} octets at the end of its journal, and {how}")
            for other, ms in self.others_ms:
                if havoc.node(other).up and not havoc.node(other).paused:
                    havoc.kill(havoc.node(other), ms if node.knows_loss else min(ms, SOON_MS), hard=False)
        else:
            havoc.world.fault(f"{Power.verb}-{was}", f"{node.name}, and its disk loses nothing")
        havoc.world.at((self.back_ms if node.knows_loss or not node.lost_tail else 1) * MS, node.start_if_down)
        return True


@attrs.frozen(kw_only=True)
class WipePrimary(Wipe):
    """A primary does."""

    verb = "wipe-primary"
    leads = True
