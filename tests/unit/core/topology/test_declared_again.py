"""An exchange that was not durable is declared anew, durable; in a log without what is transient a hole hides its deletion."""

from __future__ import annotations

from tests.unit.core.life.recovery_kit import KeptCore, recovered
from understudy.broker.amqp.methods import EXCHANGE_DECLARE, EXCHANGE_DELETE, QUEUE_BIND
from understudy.broker.core.life.node import BrokerNode


def declare(core: KeptCore, *, durable: bool) -> None:
    core.client().method(EXCHANGE_DECLARE, "news", "direct", False, durable, False, False, False, {})
    core.sync()


def assert_durable(node: BrokerNode) -> None:
    node.state.log.apply_up_to(node.state.log.end)
    exchange = node.state.topology.registry.vhost("/").exchanges["news"]
    assert exchange.durable
    assert [binding.routing_key for binding in exchange.bindings.values()] == ["durable"]
    assert list(node.state.topology.image.exchanges) == [("/", "news")]
    assert [key[3] for key in node.state.topology.image.bindings] == ["durable"]


def test_a_restart_that_begins_with_a_checkpoint_keeps_the_durable_one() -> None:
    core = KeptCore()
    client = core.client()
    core.queue(client, "q")
    declare(core, durable=False)
    client.method(QUEUE_BIND, "q", "news", "transient", False, {})
    core.sync()
    checkpoint = core.node.checkpoint()
    begun = len(core.journal.frames)
    client.method(EXCHANGE_DELETE, "news", False, False)
    core.sync()
    declare(core, durable=True)
    client.method(QUEUE_BIND, "q", "news", "durable", False, {})
    core.sync()
    assert_durable(core.node)
    assert_durable(recovered([checkpoint, *core.journal.frames[begun:]]))
