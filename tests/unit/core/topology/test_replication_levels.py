"""The argument x-ha-replicate on one broker: what is refused, and what it means where nothing is replicated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.methods import CHANNEL_CLOSE, QUEUE_DECLARE, TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.replication_level import REPLICATE, ReplicationLevel, level_asked_for, level_of
from understudy.broker.errors import PreconditionFailedError

ALL, CONFIGURATION, NONE = ReplicationLevel


def declare(client: Client, name: str, said: Any, *, durable: bool = False, exclusive: bool = False) -> list[str]:
    client.method(QUEUE_DECLARE, name, False, durable, exclusive, False, False, {REPLICATE: said})
    client.core.sync()
    return client.heard()


def depth(core: Core, name: str) -> int:
    return core.node.state.topology.registry.vhost("/").queues[name].depth


@pytest.mark.parametrize("default", ReplicationLevel)
@pytest.mark.parametrize("durable", [False, True])
def test_who_says_a_level_has_it(default: ReplicationLevel, durable: bool) -> None:
    for said in ReplicationLevel:
        if not (durable and said is NONE):
            asked = level_asked_for("q", "/", {REPLICATE: said.value}, durable=durable, exclusive=False)
            assert asked is said
            assert level_of(asked, default, durable=durable, exclusive=False) is said
            assert level_of(asked, None, durable=durable, exclusive=False) is ALL
    assert level_asked_for("q", "/", {}, durable=durable, exclusive=False) is None
    assert level_of(None, default, durable=durable, exclusive=False) is (ALL if durable else default)
    assert level_of(None, default, durable=durable, exclusive=True) is NONE


@pytest.mark.parametrize("said", ["some", "ALL", "", 1, True, None, [], {"all": 1}])
def test_an_unknown_level_is_refused(said: Any) -> None:
    with pytest.raises(PreconditionFailedError) as caught:
        level_asked_for("q", "/v", {REPLICATE: said}, durable=False, exclusive=False)
    assert str(caught.value) == (
        f"PRECONDITION_FAILED - invalid arg 'x-ha-replicate' for queue 'q' in vhost '/v': {said!r} is none of 'all', "
        "'configuration', 'none'"
    )


def test_alone_a_broker_refuses_the_same_and_keeps_everything() -> None:
    """A message published to a durable queue of level configuration is in the journal, and comes back."""
    core = Core()
    client = core.client()
    assert declare(client, "q", "none", durable=True) == ["channel.close"]
    client = core.client()
    assert declare(client, "q", "configuration", durable=True) == ["queue.declare-ok"]
    queue = core.node.state.topology.registry.vhost("/").queues["q"]
    assert queue.level is ALL
    assert queue.statistics().replicate == "all"
    end = core.broker.log.end
    client.publish("q", b"x")
    core.sync()
    assert core.broker.log.end == end + 1
    assert depth(core, "q") == 1


def test_what_a_transaction_holds_for_them_is_bounded_too() -> None:
    """tx.max_bytes: messages that no record carries take as much memory."""
    core = Core(Limits(tx_bytes=10_000))
    client = core.client()
    assert declare(client, "mine", "none", exclusive=True) == ["queue.declare-ok"]
    core.queue(client, "logged")
    client.send(encode_method(1, TX_SELECT))
    assert client.heard() == ["tx.select-ok"]
    client.send(*[publish("mine", bytes(4_000)) for _ in range(2)], publish("logged", bytes(100)))
    client.send(encode_method(1, TX_COMMIT))
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    assert depth(core, "mine") == 2
    client.send(*[publish("mine", bytes(4_000)) for _ in range(4)])
    [event] = client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 506)
    assert "bytes, the limit is 10000" in event[2][1]
    assert depth(core, "mine") == 2
