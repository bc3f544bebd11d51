"""The chosen log: the longest prefix that any primary has ever taken for stable.

Whatever is in it may have been applied, delivered or confirmed. So every broker that may be promoted must hold it durably from
then on (G4), no two primaries may choose differently at one place (G6), and who holds part of a catch-up may not be
promotable (G7). "Durably" is what its journal has synced, not what its core believes.

That two logs with the same (epoch, offset) hold the same records is what the protocol rests on; it is checked too, batch by
batch, on everything that is written or received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import attrs

from tests.simulator.checkers.reference import Reference
from tests.simulator.ledger import Violation
from understudy.broker.log import frame, record
from understudy.broker.log.log import TRANSIENT_BATCH
from understudy.broker.log.position import EpochHistory

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore


@attrs.frozen
class DurableLog:
    """The log on a broker's disk: epochs with their first offsets, the last offset, and whether only a part is there."""

    starts: list[tuple[int, int]]
    end: int
    part: bool


def durable_end(node: SimNode) -> int:
    """How far the journal has synced the log. What a finished catch-up brought stands before the log, in notes."""
    return max(node.journal.durable_offset, node.extension.replicator.log_start)


class ChosenLog:
    """G4 durable, G6 one primary, G7 ready means promotable; feeds the reference."""

    def __init__(self, store: SimStore, reference: Reference) -> None:
        self.reference = reference
        self.history = EpochHistory()
        self._store = store
        self._left: dict[str, DurableLog] = {}
        self._payloads: dict[tuple[int, int], tuple[int, int]] = {}

    # -- a primary chooses ----------------------------------------------------------------------------------------

    def stable_at(self, node: SimNode, offset: int) -> None:
        """The deciding primary ``node`` takes the log up to ``offset`` for stable."""
        log = node.node.state.log
        end = self.reference.end
        starts = [start for start in log.epochs.starts() if start[1] <= offset]
        if end:
            common = self.history.common_offset(end, starts, offset)
            if common < min(end, offset):
                raise Violation("G6", f"{node.name} chooses another record at {common + 1} than was chosen before")
        if offset > end:
            group = self._store.group
            current = (
                group is None or group.epoch == node.node.broker.role.epoch
            )  # else: acknowledged before it was replaced
            if current and (group is None or len(group.members) < group.min_insync):
                raise Violation("G4", f"{node.name} decides while the in-sync set is below its minimum: {group}")
            for epoch, first in starts:
                if epoch > self.history.newest:
                    self.history.begin(epoch, first)
            self._read(node, end, offset)
            self.check_all()
        transactions = node.node.state.transactions

        def waits(tx_id: int) -> bool:
            tx = transactions.get(tx_id)
            return tx is not None and tx.rolls_back and tx.outcome_offset > 0

        self.reference.advance(offset, waits)

    def _read(self, node: SimNode, after: int, upto: int) -> None:
        """Show the reference the records in (after, upto] as the primary has them."""
        kept = node.node.state.log.kept
        reference = self.reference
        for batch in kept.since(kept.cursor(after)):
            data = bytes(batch.frame)
            offset = batch.first
            at = frame.BATCH_HEADER_BYTES
            while at < len(data) and offset <= upto:
                kind, length = record.HEAD.unpack_from(data, at)
                end = at + 5 + length
                if kind == record.HOLE:
                    first, offset = offset, offset + int.from_bytes(data[at + 5 : at + 9], "big")
                    wanted = min(offset - 1, upto) - max(first - 1, after)
                    if wanted > 0:
                        reference.choose(record.encode_holes(wanted), 0, 9)
                else:
                    if offset > after:
                        reference.choose(data, at, end)
                    offset += 1
                at = end
            if batch.last >= upto:
                break
        if reference.end != upto:
            raise Violation("G4", f"{node.name} takes {upto} for stable, but has the log only up to {reference.end}")

    # -- who holds it ---------------------------------------------------------------------------------------------

    def leaving(self, node: SimNode) -> None:
        """A core ends, or its process dies: what is on the disk stays."""
        self._left[node.name] = self._disk(node)

    @staticmethod
    def _disk(node: SimNode) -> DurableLog:
        log = node.node.state.log
        return DurableLog(log.epochs.starts(), min(durable_end(node), log.end), node.extension.replicator.part)

    def disk_of(self, node: SimNode) -> DurableLog | None:
        """None for a broker that has never run."""
        return self._disk(node) if node.up else self._left.get(node.name)

    def check_all(self) -> None:
        for node in self._store.nodes.values():
            self.check(node)

    def check(self, node: SimNode) -> None:
        """A broker that may be promoted holds every chosen record, durably, and is no unfinished catch-up.

        A broker whose directory was lost while it was listed is excused: that is no fault of the protocol, which must see to
        it that it is not promoted (`in_sync`). So is one whose disk has lost the end of its log, until it holds all again.
        """
        group = self._store.group
        if group is None or node.name not in group.members or node.wiped:
            return
        disk = self.disk_of(node)
        if disk is None:
            return
        if node.lost_tail:  # while it is down, what it left is known, and not what its disk has lost since
            has = disk.starts[-1][0] if disk.starts else 0, disk.end
            node.lost_tail = not node.up or disk.part or has < node.had or self._common(disk) < self.reference.end
            return
        if disk.part:
            raise Violation("G7", f"{node.name} is in the in-sync set and holds part of a catch-up")
        end = self.reference.end
        common = self._common(disk)
        if common < end:
            raise Violation("G4", f"{node.name} may be promoted and lacks chosen records {common + 1} to {end}")

    def _common(self, disk: DurableLog) -> int:
        return self.history.common_offset(self.reference.end, disk.starts, disk.end)

    # -- log matching ---------------------------------------------------------------------------------------------

    def batch(self, node: SimNode, data: bytes) -> None:
        """``node`` has written, or received, this batch."""
        header = frame.header_of_verified(data)
        key = (header.epoch, header.first_offset)
        payload = data[frame.BATCH_HEADER_BYTES :]
        crc = crc32(payload)
        known = self._payloads.get(key)
        if known is None:
            journaled = crc32(record.without_transients(payload)) if header.flags & TRANSIENT_BATCH else crc
            self._payloads[key] = (crc, journaled)
        elif crc not in known:
            text = f"the batch of epoch {header.epoch} at {header.first_offset} than was written under it"
            raise Violation("G6", f"{node.name} has another content of {text}")
