"""Messages whose RETURN is not applied, or that are withheld: what restarts, deletes and others make of them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.unit.core.core_kit import Core, HeldJournal, end_turn
from tests.unit.core.test_dead_letters import Speaker
from tests.unit.core.test_recovery import KeptCore, recovered
from tests.unit.core.test_returns import taken
from understudy.broker.amqp.methods import BASIC_NACK, BASIC_REJECT
from understudy.broker.core.node import BrokerNode

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
    wall_ms = core.broker.wall_ms
    node = recovered(core.journal.frames)
    assert len(node.state.log.pending) == 1
    node.open(HeldJournal(), 0, wall_ms)
    sync(node)
    (queue,) = node.state.registry.queues()
    assert (queue.withheld, queue.depth) == (withheld, 1 - withheld)
    for passed_ms in range(0, 2 * DELAY_MS + 500, 250):
        node.tick(passed_ms, wall_ms + passed_ms)
        sync(node)
        assert queue.withheld == (withheld if passed_ms < 2 * DELAY_MS else 0), passed_ms
    assert queue.depth == 1
