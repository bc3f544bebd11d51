"""Levels of replication: what is not replicated is on the broker that leads, and nowhere else, and not for longer than it leads.

The reference sees to it that no record puts a message into a queue of level configuration. Here: no message that was meant for one
broker comes to a queue by the log, and who begins to lead has nothing from before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.ledger import Violation

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

LOCAL = "#local:"
"""Stamps of messages that are published to unreplicated queues alone begin with it."""


class Levels:
    """Looks at what is chosen, and at brokers that do not lead."""

    def chosen(self, queue: str, stamp: str) -> None:
        """The log puts the message of that stamp into ``queue``."""
        if stamp.startswith(LOCAL):
            raise Violation("levels", f"{stamp}, which was for one broker alone, comes to {queue} by the log")

    @staticmethod
    def holds_the_log_alone(node: SimNode, when: str) -> None:
        """``node``, which does not lead (yet), holds nothing that is not in the log."""
        for queue in node.node.state.queues.values():
            if not queue.level.declared_in_log:
                raise Violation("levels", f"{node.name} {when} and has {queue.name} of level {queue.level.value}")
            if queue.entries and not queue.level.messages_in_log:
                text = f"{len(queue.entries)} messages in {queue.name} of level {queue.level.value}"
                raise Violation("levels", f"{node.name} {when} and holds {text}")
