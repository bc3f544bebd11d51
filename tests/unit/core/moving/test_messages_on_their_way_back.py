"""Messages whose RETURN is not applied, or that are withheld: what restarts, deletes and others make of them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.unit.core.core_kit import Core, HeldJournal, end_turn
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from tests.unit.core.moving.speaker import Speaker
from tests.unit.core.moving.test_returns import COUNTED, queue_of, taken
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_NACK,
    BASIC_REJECT,
    DTX_END,
    DTX_PREPARE,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DELETE,
)
from understudy.broker.core.life.let_go import let_go_in_slices
from understudy.broker.core.life.node import BrokerNode

DELAY_MS: Final = 1_000


def delayed(kind: str = "all") -> dict[str, Any]:
    return {"x-delayed-retry-type": kind, "x-delayed-retry-min": DELAY_MS, "x-delayed-retry-max": 60 * DELAY_MS}


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(Core())


def reject(speaker: Speaker) -> None:
    speaker.call(BASIC_REJECT, taken(speaker)["tag"], True)


def sync(node: BrokerNode) -> None:
    end_turn(node, flush=True)
    node.durable_to(node.gate.appended)
    end_turn(node, flush=True)


@pytest.mark.parametrize(("kind", "withheld"), [("all", 1), ("failed", 0)])
def test_a_restart_knows_the_newer_due_time_of_a_message_that_came_back_twice(kind: str, withheld: int) -> None:
    """The first RETURN is applied when the broker is promoted, the second one afterwards: the first withholds it until then."""
    core = KeptCore()
    speaker = Speaker(core)
    speaker.declare("q", delayed(kind))
    speaker.publish("q")
    reject(speaker)
    speaker.pass_ms(DELAY_MS + 500)
    if withheld:
        reject(speaker)
    else:
        speaker.call(BASIC_NACK, taken(speaker)["tag"], False, True)
    wall_ms = core.broker.clock.wall_ms
    node = recovered(core.journal.frames)
    assert len(node.state.log.pending) == 1
    node.open(HeldJournal(), 0, wall_ms)
    sync(node)
    (queue,) = node.state.topology.registry.queues()
    assert (queue.withheld, queue.depth) == (withheld, 1 - withheld)
    for passed_ms in range(0, 2 * DELAY_MS + 500, 250):
        node.tick(passed_ms, wall_ms + passed_ms)
        sync(node)
        assert queue.withheld == (withheld if passed_ms < 2 * DELAY_MS else 0), passed_ms
    assert queue.depth == 1


def test_a_queue_is_not_empty_while_a_message_comes_back(speaker: Speaker) -> None:
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    tag = taken(speaker)["tag"]
    deleter = speaker.core.client()
    speaker.client.method(BASIC_REJECT, tag, True)
    deleter.method(QUEUE_DELETE, "q", False, True, False)
    speaker.core.sync()
    assert deleter.heard() == ["channel.close"]
    assert speaker.depth("q") == 1


DELIVERED: Final = [("deliver", 1), ("deliver", 2), ("requeue", 1), ("deliver", 1)]


@pytest.mark.parametrize(
    ("arguments", "exclusive", "expected"),
    [
        (COUNTED, False, DELIVERED),
        (COUNTED, True, [("deliver", 1), ("requeue", 1), ("deliver", 1), ("deliver", 2)]),
        (delayed(), False, DELIVERED),
        (delayed(), True, DELIVERED),
    ],
)
def test_a_requeue_is_told_when_the_message_is_at_its_place(
    speaker: Speaker, arguments: dict[str, Any], exclusive: bool, expected: list[tuple[str, int]]
) -> None:
    """An audit takes a message for overtaken if a later one is delivered between its requeue and its next delivery."""
    told: list[tuple[str, int]] = []
    broker = speaker.core.broker
    broker.hooks.on_delivered.append(lambda queue, entry, again: told.append(("deliver", number_of[entry.id])))
    broker.hooks.on_requeued.append(lambda queue, entry: told.append(("requeue", number_of[entry.id])))
    speaker.declare("q", arguments, exclusive=exclusive)
    for _ in range(2):
        speaker.publish("q")
    number_of = {entry_id: number for number, entry_id in enumerate(queue_of(speaker).entries, 1)}
    other = speaker.client if exclusive else speaker.core.client(channels=2)
    speaker.client.method(BASIC_REJECT, taken(speaker)["tag"], True)
    other.method(BASIC_GET, "q", True, channel=2)
    speaker.pass_ms(2 * DELAY_MS)
    other.method(BASIC_GET, "q", True, channel=2)
    assert told == expected


def test_nothing_is_left_of_withheld_messages_of_a_dropped_core(speaker: Speaker) -> None:
    speaker.declare("q", delayed())
    for _ in range(3):
        speaker.publish("q")
    for tag in [taken(speaker)["tag"] for _ in range(2)]:
        speaker.call(BASIC_REJECT, tag, True)
    queue = queue_of(speaker)
    assert (queue.withheld, queue.depth) == (2, 1)
    for _ in let_go_in_slices(speaker.core.broker.state):
        assert queue.depth >= 0
    assert queue.returns is not None
    assert (queue.withheld, queue.depth, queue.returns.known, queue.returns.first()) == (0, 0, {}, None)
    speaker.client.method(QUEUE_DECLARE, "q", True, True, False, False, False, {})
    assert speaker.client.heard() == ["queue.declare-ok"]


def test_queues_that_are_deleted_with_withheld_messages_leave_nothing_behind(speaker: Speaker) -> None:
    broker = speaker.core.broker
    for _ in range(3):
        speaker.declare("q", delayed())
        speaker.publish("q")
        reject(speaker)
        assert broker.delays.any
        speaker.call(QUEUE_DELETE, "q", False, False, False)
    assert not broker.delays._noted


@pytest.mark.parametrize("prepared", [False, True])
def test_a_rolled_back_branch_is_answered_when_its_messages_are_back(speaker: Speaker, prepared: bool) -> None:
    core = speaker.core
    speaker.declare("q", COUNTED)
    speaker.publish("q")
    name = (1, b"global", b"branch")
    speaker.call(DTX_SELECT)
    speaker.call(DTX_START, *name, False, False)
    speaker.call(BASIC_ACK, taken(speaker)["tag"], False)
    speaker.call(DTX_END, *name, False, False)
    if prepared:
        speaker.call(DTX_PREPARE, *name)
    speaker.client.method(DTX_ROLLBACK, *name)
    for _ in range(3):
        assert "dtx.rollback-ok" not in speaker.client.heard()
        core.node.durable_to(core.node.gate.appended)
        core.turn()
        if queue_of(speaker).depth:
            break
    assert speaker.client.heard() == ["dtx.rollback-ok"]
