"""G9 order: ids ascend as they are applied, on every broker; redelivered=0 is a proof; G3: only decided work is handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.lost_transients import fell_into_a_hole
from tests.simulator.checkers.reference import Reference
from tests.simulator.ledger import Violation, stamp_of
from understudy.broker.amqp.properties import decode_properties
from understudy.broker.core.queues.entry import READY

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue


class Order:
    """Watches what comes to queues and what leaves them for clients."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._newest: dict[tuple[str, int, int, int], int] = {}
        self._delivered_in: dict[tuple[int, int], int] = {}
        self._arrived_us: dict[tuple[str, int, int, int], int] = {}

    def enqueued(self, node: SimNode, queue: Queue, entry_id: int, kept: bool) -> None:
        """A message that was not there is applied.

        Only what a journal keeps: a refill may bring a transient message before older ones have come with the log. A catch-up
        fills gaps, and drops what its base is not to hold, though the log may bring that again: after each the order begins anew.
        """
        if not kept or node.extension.replicator.part:
            return
        key = (node.name, node.incarnation, node.watched.bases, queue.id)
        newest = self._newest.get(key, 0)
        if entry_id > newest:
            self._newest[key] = entry_id
        else:
            raise Violation("G9", f"{node.name} applies id {entry_id} of {queue.name} after {newest}")

    def arrived(self, node: SimNode, queue: Queue, entry_id: int) -> None:
        """A message with a deadline is applied."""
        self._arrived_us[node.name, node.incarnation, queue.id, entry_id] = node.world.now_us

    def _has_expired(self, node: SimNode, queue: Queue, entry: Entry) -> bool:
        """True if nobody may have ``entry`` any more, or only a consumer that waits in the moment in which it is applied."""
        if not 0 < entry.deadline_ms <= node.expiry_clock.advance(node.world.now_ms):
            return False
        return self._arrived_us.get((node.name, node.incarnation, queue.id, entry.id)) != node.world.now_us

    def handed_out(self, node: SimNode, queue: Queue, entry: Entry, redelivered: bool) -> None:
        """A client is given a message, by basic.deliver or basic.get-ok."""
        if not queue.logged:
            return
        name, entry_id, reference = node.name, entry.id, self._reference
        state = node.node.state
        key = (queue.id, entry_id)
        known = reference.queues.get(queue.id)
        there = known is not None and entry_id in known.entries
        left = reference.departed.get(key)
        if not there and (left is None or left.offset <= state.log.applied):
            if fell_into_a_hole(node, reference, stamp_of(entry.message.content())):
                return
            raise Violation("G3", f"{name} hands out id {entry_id} of {queue.name}, which is not there ({left})")
        if self._has_expired(node, queue, entry):
            raise Violation("G3", f"{name} hands out id {entry_id} of {queue.name} after its deadline")
        self._is_the_first(node, queue, entry)
        self._is_within_the_prefetch(node, queue)
        epoch = node.node.broker.role.epoch
        if key in reference.locked and epoch == reference.epoch:
            text = f"{name} hands out id {entry_id} of {queue.name}, which branch of transaction {reference.locked[key]} takes away"
            raise Violation("G3", text)
        if reference.epoch < epoch:
            raise Violation("G8", f"{name} hands out messages before its epoch {epoch} is on every listed broker")
        before = self._delivered_in.get(key)
        if before is not None and before <= epoch and not redelivered:
            text = f"{name} (epoch {epoch}) hands out id {entry_id} of {queue.name} with redelivered=0; epoch {before} did before"
            raise Violation("G9", text)
        if before is None or epoch < before:
            self._delivered_in[key] = epoch

    @staticmethod
    def _is_within_the_prefetch(node: SimNode, queue: Queue) -> None:
        """Whoever was given it, no consumer has more than it asked for (P-49). Messages of basic.get are not counted."""
        for consumer in queue.consumers:
            if 0 < consumer.limit < consumer.unacked:
                text = f"{consumer.unacked} messages of {queue.name}, its prefetch is {consumer.limit}"
                raise Violation("counts", f"consumer {consumer.tag} at {node.name} holds {text}")

    @staticmethod
    def _is_the_first(node: SimNode, queue: Queue, entry: Entry) -> None:
        """Messages before it are held by a client or about to go. So a message that came back is at its old place again.

        This looks at as many messages as are held by clients, not at the whole queue; with priorities at the whole.
        """
        most = queue.arguments.get("x-max-priority")
        if most is not None:
            priority = _priority(entry, most)
            for other in queue.entries.values():
                first = _priority(other, most)
                if other.state == READY and (-first, other.id) < (-priority, entry.id):
                    text = f"id {entry.id} of {queue.name}, priority {priority}, while {other.id} of {first} waits"
                    raise Violation("G9", f"{node.name} hands out {text}")
            return
        for entry_id, other in queue.entries.items():
            if entry_id >= entry.id:
                return
            if other.state == READY:
                raise Violation(
                    "G9", f"{node.name} hands out id {entry.id} of {queue.name} while {entry_id} waits before it"
                )


def _priority(entry: Entry, most: int) -> int:
    """The priority of a message in a queue with that maximum."""
    asked: int = decode_properties(entry.message.properties).get("priority", 0)
    return min(asked, most)
