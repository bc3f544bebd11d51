"""A journal gives back nothing for a message that lies in a queue, or another body."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.scenario import Scenario
from tests.simulator.sim_node import SimNode
from tests.simulator.tampering.tampering import tampering
from understudy.broker.message import Message

complaint = partial(tampering, "checkers/kept_bodies", "G1")


def held(group: Scenario) -> tuple[SimNode, Message]:
    """A backup, and its copy of the one message of queue q."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    group.until("bodies are read back", lambda: bool(group.world.happened["bodies read back"]))
    queue = group.queue(group.backups[0], "q")
    assert queue is not None
    (entry,) = queue.entries.values()
    return group.backups[0], entry.message


@complaint("does not find a body")
def a_journal_begins_behind_a_message(group: Scenario) -> None:
    backup, message = held(group)
    backup.journal._segments[0].first_offset = message.offset + 1
    group.run_ms(5_000)


@complaint("cannot read a body")
def a_message_is_longer_than_in_the_journal(group: Scenario) -> None:
    _, message = held(group)
    message.body = b"#12"
    group.run_ms(5_000)


@complaint("reads another body at offset")
def a_message_is_another_one_than_in_the_journal(group: Scenario) -> None:
    _, message = held(group)
    message.body = b"#2"
    group.run_ms(5_000)
