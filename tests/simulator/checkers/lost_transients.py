"""Answers that a primary may still give about a transient message that its successor's log does not know.

A transient message is stable when every listed broker has acknowledged it, from memory. If one of them restarts, is promoted,
and the old primary, stopped meanwhile, goes on with that old acknowledgement before it learns of the new epoch, it confirms and
delivers the message: as it would have a moment earlier, before the restart. In the chosen log its place is a hole. A
persistent message has no such place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.reference import Reference
from understudy.broker.log import frame, record

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode


def fell_into_a_hole(node: SimNode, reference: Reference, stamp: str) -> bool:
    """True if ``stamp`` came to ``node`` by a transient record that it took for stable, and that a later epoch did not keep."""
    log = node.node.state.log
    if not stamp or reference.epoch <= node.node.broker.role.epoch:
        return False
    for batch in log.kept.since(log.kept.cursor(0)):
        data, offset, at = bytes(batch.frame), batch.first, frame.BATCH_HEADER_BYTES
        while at < len(data) and offset <= log.stable:
            kind, length = record.HEAD.unpack_from(data, at)
            end = at + record.HEAD.size + length
            if kind == record.HOLE:
                offset += int.from_bytes(data[at + 5 : at + 9], "big")
            else:
                if kind & record.TRANSIENT and offset in reference.holes and stamp.encode() in data[at:end]:
                    return True
                offset += 1
            at = end
    return False
