"""Unreplicated things are falsified: they are on brokers that do not lead, or in the log."""

from __future__ import annotations

from functools import partial

from tests.simulator.levels_kit import CONFIGURATION, NONE, declare
from tests.simulator.scenario import Scenario
from tests.simulator.tampering.tampering import tampering
from understudy.broker.message import Message

complaint = partial(tampering, "checkers/levels")


@complaint("levels", "which was for one broker alone, comes to")
def a_message_for_one_broker_is_in_the_log(group: Scenario) -> None:
    hand = group.hand()
    declare(hand, "q")
    hand.publish("q", b"#local:1")
    group.everywhere("q", b"#local:1")


@complaint("levels", "and has {} of level")
def a_backup_has_a_queue_of_its_primary_alone_and_is_promoted(group: Scenario) -> None:
    hand = group.hand()
    declare(hand, "q", NONE)
    (queue,) = [queue for queue in group.primary.node.state.queues.values() if queue.name == "q"]
    group.backups[0].node.state.queues[queue.id] = queue
    group.replace_primary(group.backups[0])


@complaint("levels", "messages in {} of level")
def a_backup_holds_messages_of_its_primary_alone_and_is_promoted(group: Scenario) -> None:
    hand = group.hand()
    declare(hand, "q", CONFIGURATION)
    group.until("settled", group.cluster.settled)
    (queue,) = [queue for queue in group.backups[0].node.state.queues.values() if queue.name == "q"]
    queue.enqueue(1, Message("", "q", b"", b"1", False), 0)
    group.replace_primary(group.backups[0])
