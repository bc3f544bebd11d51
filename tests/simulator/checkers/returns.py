"""Returns: what is handed out has the counts that the log says, which never go back; it is due; and what is due is handed out.

That a message fails no more often than its limit, and is due after its delay, the reference sees in the records themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.reference import Reference
from tests.simulator.ledger import Ledger, Violation, stamp_of
from understudy.broker.core.queues.entry import WITHHELD
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.log.return_record import NEVER, Returned

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue

LATE_MS = 1_000
"""Ten ticks."""


class Returns:
    """Watches the counts of what is handed out, whoever does it."""

    def __init__(self, reference: Reference, ledger: Ledger) -> None:
        self._reference = reference
        self._ledger = ledger
        self._told: dict[tuple[int, int], Returned] = {}
        self._handed: dict[tuple[int, int], tuple[str, int, int]] = {}

    def handed_out(self, node: SimNode, queue: Queue, entry: Entry) -> None:
        """A client is given a message, with these counts."""
        if not queue.logged:
            return
        returned = queue.returns.of(entry.id) if queue.returns is not None else NEVER
        what = f"{node.name} hands out id {entry.id} of {queue.name}, of which it knows {returned}"
        if returned.due_ms > node.fair_time.ms:
            raise Violation("due", f"{what}; it is {node.fair_time.ms} there at the latest")
        if node.node.broker.role.epoch < self._reference.epoch:
            return
        key = (queue.id, entry.id)
        told = self._told.get(key, NEVER)
        if returned.failures < told.failures or returned.hand_outs < told.hand_outs:
            raise Violation("returns", f"{what}; a client was told {told} before")
        if not returned.hand_outs and entry.id >> ID_EPOCH_SHIFT == node.node.broker.role.epoch:
            self._was_away(node, what, entry)
        if returned.hand_outs == told.hand_outs + 1:
            self._took_its_time(node, queue, entry, told, returned)
        self._told[key] = returned
        self._handed[key] = (node.name, node.incarnation, node.world.now_ms)
        known = self._reference.queues.get(queue.id)
        held = known.entries.get(entry.id) if known is not None else None
        if held is not None and held.returned != returned:
            raise Violation("returns", f"{what}; the log says {held.returned}")

    def _was_away(self, node: SimNode, what: str, entry: Entry) -> None:
        """Check that this very process has kept a delayed message for half its delay: see :meth:`_took_its_time`."""
        published_ms, delay_ms = self._ledger.delayed.get(stamp_of(entry.message.content()), (0, 0))
        if 2 * (node.world.now_ms - published_ms + 1) < delay_ms:
            raise Violation(
                "due", f"{what}; it was published at {published_ms}, {delay_ms} ms late, and it is {node.world.now_ms}"
            )

    def _took_its_time(self, node: SimNode, queue: Queue, entry: Entry, told: Returned, returned: Returned) -> None:
        """Check that a message that came back was away for half its delay: no clock of a process runs more than twice too fast."""
        name, incarnation, handed_ms = self._handed.get((queue.id, entry.id), ("", 0, 0))
        arguments = queue.arguments
        kind, failed = arguments.get("x-delayed-retry-type", "disabled"), returned.failures > told.failures
        if (name, incarnation) != (node.name, node.incarnation) or kind not in (
            "all",
            "failed" if failed else "returned",
        ):
            return
        least_ms = arguments["x-delayed-retry-min"]
        delay_ms = min(least_ms * max(1, returned.failures), arguments.get("x-delayed-retry-max", least_ms))
        away_ms = node.world.now_ms - handed_ms
        if 2 * (away_ms + 1) < delay_ms * (1 - arguments.get("x-delayed-retry-jitter", 0)):
            raise Violation(
                "due",
                f"{name} hands out id {entry.id} of {queue.name} again after {away_ms} ms; its delay is {delay_ms} ms",
            )


def nothing_is_late(node: SimNode) -> None:
    """Raise a violation if the primary withholds a message that is long due."""
    now_ms = node.node.broker.clock.expiry_ms
    for queue in node.node.state.queues.values():
        if queue.returns is None or not queue.active:
            continue
        for entry_id, returned in queue.returns.known.items():
            entry = queue.entries.get(entry_id)
            if entry is not None and entry.state == WITHHELD and returned.due_ms + LATE_MS < now_ms:
                raise Violation(
                    "due", f"{node.name} withholds id {entry_id} of {queue.name}, due at {returned.due_ms}, at {now_ms}"
                )
