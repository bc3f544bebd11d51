"""Policies set what queues and exchanges do, by RabbitMQ's rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Core, HeldJournal, end_turn
from tests.unit.core.moving.speaker import Speaker
from tests.unit.core.topology.test_alternate_exchanges import bind, depths, exchange, publish
from understudy.broker.amqp.methods import BASIC_REJECT, EXCHANGE_DECLARE, QUEUE_DECLARE, TX_COMMIT, TX_SELECT
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.queue_arguments import CHECKS
from understudy.broker.core.topology.policies import KEYS, Policies, Policy, lower_limit
from understudy.broker.log import record
from understudy.broker.log.kept_log import Batch


def policy(name: str = "p", pattern: str = "", *, definition: dict[str, Any] | None = None, **more: Any) -> Policy:
    return Policy(name=name, pattern=pattern, definition=definition or {"max-length": 5}, **more)


def speaker(*policies: Policy) -> Speaker:
    return Speaker(Core(policies=Policies(policies)))


def queue_of(speaker: Speaker, name: str) -> Queue:
    return speaker.core.node.state.topology.registry.vhost("/").queues[name]


@pytest.mark.parametrize(
    ("policies", "applies"),
    [
        ([policy("a"), policy("b", priority=1)], "b"),
        ([policy("a", priority=-1), policy("b")], "b"),
        ([policy("a"), policy("b")], "a"),
        ([policy("a", "^or"), policy("b", "^ord$", priority=9)], "a"),
        ([policy("a", "der")], "a"),
        ([policy("a", "^der")], None),
        ([policy("a", apply_to="queues")], "a"),
        ([policy("a", apply_to="exchanges")], None),
        ([policy("a", vhost="/")], "a"),
        ([policy("a", vhost="other", priority=9), policy("b")], "b"),
        ([], None),
    ],
    ids=repr,
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_one_policy_applies_to_a_queue(policies: list[Policy], applies: str | None, exclusive: bool) -> None:
    one = speaker(*policies)
    one.declare("orders", exclusive=exclusive)
    queue = queue_of(one, "orders")
    assert queue.policy == queue.statistics().policy == applies
    assert (queue.limits is not None) is (applies is not None)


DEAD = {"x-dead-letter-exchange": "argument"}


@pytest.mark.parametrize(
    ("definition", "arguments", "in_force"),
    [
        ({"message-ttl": 5}, {}, ("ttl_ms", 5)),
        ({"message-ttl": 5}, {"x-message-ttl": 3}, ("ttl_ms", 3)),
        ({"message-ttl": 5}, {"x-message-ttl": 7}, ("ttl_ms", 5)),
        ({"message-ttl": 0}, {"x-message-ttl": 7}, ("ttl_ms", 0)),
        ({"expires": 5}, {"x-expires": 7}, ("expires_ms", 5)),
        ({"expires": 9}, {"x-expires": 7}, ("expires_ms", 7)),
        ({"max-length": 5}, {"x-max-length": 7}, ("limits", "5 messages are the most")),
        ({"max-length": 9}, {"x-max-length": 7}, ("limits", "7 messages are the most")),
        ({"max-length-bytes": 9}, {"x-max-length": 7}, ("limits", "7 messages are the most, 9 bytes are the most")),
        ({"max-length-bytes": 9}, {"x-max-length-bytes": 10}, ("limits", "9 bytes are the most")),
        ({"max-length": 5, "overflow": "reject-publish"}, {}, ("refuses", True)),
        ({"overflow": "reject-publish"}, {"x-max-length": 5}, ("refuses", True)),
        ({"max-length": 5, "overflow": "reject-publish"}, {"x-overflow": "drop-head"}, ("refuses", False)),
        ({"overflow": "reject-publish"}, {}, ("refuses", False)),
        ({"dead-letter-exchange": "policy"}, {}, ("exchange", "policy")),
        ({"dead-letter-exchange": "policy"}, DEAD, ("exchange", "argument")),
        ({"dead-letter-routing-key": "k"}, DEAD, ("routing_key", "k")),
        ({"dead-letter-routing-key": "k"}, {**DEAD, "x-dead-letter-routing-key": "a"}, ("routing_key", "a")),
        ({"dead-letter-routing-key": "k"}, {}, ("dead_letters", None)),
        ({"dead-letter-strategy": "at-least-once"}, {}, ("dead_letters", None)),
    ],
    ids=repr,
)
def test_what_holds_beside_an_argument(
    definition: dict[str, Any], arguments: dict[str, Any], in_force: tuple[str, Any]
) -> None:
    one = speaker(policy(definition=definition))
    one.call(EXCHANGE_DECLARE, "argument", "fanout", False, True, False, False, False, {})
    one.declare("q", arguments)
    queue = queue_of(one, "q")
    what, value = in_force
    found = getattr(queue.dead_letters if what in ("exchange", "routing_key") else queue, what)
    assert (str(found) if what == "limits" else found) == value
    assert queue.arguments == arguments


def test_digests_stand_in_the_order_in_which_policies_apply() -> None:
    one, other = policy("one"), policy("other")
    assert list(Policies([one, other, policy("high", priority=1)]).digests()) == ["high", "one", "other"]
    assert list(Policies([other, one]).digests()) == ["other", "one"]


def test_every_key_is_checked_as_its_argument_is() -> None:
    """Keys of arguments that queues may not have are no keys."""
    assert {key for key, setting in KEYS.items() if setting.of == "exchanges"} == {"alternate-exchange"}
    for key, setting in KEYS.items():
        assert setting.argument in (f"x-{key}", key)
        assert setting.of == "exchanges" or setting.check is CHECKS[setting.argument]
        assert setting.check(object())


@pytest.mark.parametrize(
    ("mine", "arguments", "limit"),
    [(5, 3, 3), (3, 5, 3), (-1, 3, 3), (3, -1, 3), (-1, -1, -1), (0, 3, 0)],
)
def test_a_negative_number_of_deliveries_is_no_limit(mine: int, arguments: int, limit: int) -> None:
    assert lower_limit(mine, arguments) == limit


def test_a_limit_of_a_policy_is_kept_and_dead_letters_go() -> None:
    definition = {"max-length": 2, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    one = speaker(policy(pattern="^q$", definition=definition))
    one.declare("q")
    one.declare("dead")
    for number in range(5):
        one.publish("q", b"%d" % number)
    one.core.sync()
    assert (one.depth("q"), one.depth("dead")) == (2, 3)


def test_an_alternate_exchange_of_a_policy() -> None:
    core = Core(
        policies=Policies([policy(pattern="^(front|amq\\.direct)$", definition={"alternate-exchange": "spill"})])
    )
    client = core.client()
    for queue in ("taken", "spilt"):
        core.queue(client, queue)
    exchange(client, "spill", "fanout")
    exchange(client, "other", "fanout")
    exchange(client, "front")
    exchange(client, "front")  # declared again: arguments are compared without the policy
    bind(client, "spilt", "spill")
    assert publish(client, "front", "x") == []
    assert publish(client, "amq.direct", "x") == []
    assert depths(core) == {"taken": 0, "spilt": 2}
    assert publish(client, "amq.topic", "x") == ["basic.return"]
    client.method(
        EXCHANGE_DECLARE, "front", "direct", False, True, False, False, False, {"alternate-exchange": "spill"}
    )
    core.sync()
    assert client.heard() == ["channel.close"]


def test_an_argument_of_an_exchange_holds() -> None:
    core = Core(policies=Policies([policy(definition={"alternate-exchange": "spill"})]))
    exchange(core.client(), "front", alternate_exchange="other")
    assert core.node.state.topology.registry.vhost("/").exchanges["front"].alternate == "other"
    assert core.node.state.topology.registry.vhost("/").exchanges[""].alternate is None


def test_a_second_declaration_is_compared_with_the_arguments_alone() -> None:
    one = speaker(policy(definition={"message-ttl": 5}))
    one.declare("q", {"x-message-ttl": 7})
    assert one.call(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-message-ttl": 7}) == ["queue.declare-ok"]
    assert one.call(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-message-ttl": 5}) == ["channel.close"]


def test_policies_that_differ_change_no_record() -> None:
    """The same publishes with and without policies: what a backup takes from the primary's log is all that it holds."""
    one = speaker(policy(pattern="q", definition={"max-length": 2, "message-ttl": 9}))
    one.declare("q")
    for number in range(5):
        one.publish("q", b"%d" % number)
    one.core.sync()
    log = one.core.node.state.log
    other = BrokerNode("b2", Limits(), bytes, policies=Policies([policy(definition={"max-length": 1})])).state
    plain = BrokerNode("b3", Limits(), bytes).state
    for state in (other, plain):
        for batch in batches(one.core):
            state.taking.receive_batch(batch.frame)
        state.log.apply_up_to(log.applied)
    held = [(entry.id, entry.deadline_ms) for entry in queue_of(one, "q").entries.values()]
    assert len(held) == 2
    assert all(deadline for _, deadline in held)
    for state in (other, plain):
        queue = state.topology.registry.vhost("/").queues["q"]
        assert [(entry.id, entry.deadline_ms) for entry in queue.entries.values()] == held


def batches(core: Core) -> list[Batch]:
    log = core.node.state.log
    return list(log.kept.since(log.kept.cursor(0)))


def test_a_new_file_holds_for_queues_that_are_there() -> None:
    """A broker restarts with another policy: what is too much leaves when it leads."""
    one = speaker()
    one.declare("q")
    for number in range(5):
        one.publish("q", b"%d" % number)
    again = BrokerNode("b1", Limits(), bytes, policies=Policies([policy(definition={"max-length": 2})]))
    for batch in batches(one.core):
        again.state.taking.receive_batch(batch.frame)
    again.state.log.apply_up_to(again.state.log.end)
    queue = again.state.topology.registry.vhost("/").queues["q"]
    assert (len(queue.entries), queue.policy) == (5, "p")
    again.open(HeldJournal(), 0, 1_700_000_000_000)
    for _ in range(3):
        end_turn(again, flush=True)
        again.durable_to(again.gate.appended)
    assert [bytes(entry.message.content()) for entry in queue.entries.values()] == [b"3", b"4"]


def test_a_policy_waits_for_brokers_that_cannot_read_what_it_moves() -> None:
    one = speaker(policy(pattern="^q$", definition={"max-length": 2}))
    one.declare("q")
    log = one.core.node.state.log
    log.confine(4)
    for number in range(5):
        one.publish("q", b"%d" % number)
    assert one.depth("q") == 5
    assert one.core.node.state.overfull == [queue_of(one, "q")]
    assert one.core.node.state.record_format < record.MOVES_VERSION
    log.confine(5)
    one.core.sync()
    assert one.depth("q") == 2


def test_a_dead_letter_of_a_transaction_takes_the_format_of_a_move() -> None:
    """No queue was declared with dead letters: only the message says that an older program cannot read all that is held."""
    one = speaker(policy(pattern="^q$", definition={"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}))
    for name in ("q", "dead"):
        one.declare(name)
    one.publish("q")
    one.call(TX_SELECT)
    taken = one.get("q", no_ack=False)
    assert taken is not None
    one.call(BASIC_REJECT, taken["tag"], False)
    assert one.call(TX_COMMIT) == ["tx.commit-ok"]
    assert (one.depth("q"), one.depth("dead")) == (0, 1)
    primary = one.core.node.state
    backup = BrokerNode("b2", Limits(), bytes).state
    for batch in batches(one.core):
        backup.taking.receive_batch(batch.frame)
    backup.log.apply_up_to(primary.log.applied)
    successor = BrokerNode("b1", Limits(), bytes)
    successor.continue_from(one.core.node)
    assert {state.record_format for state in (primary, backup, successor.state)} == {record.MOVES_VERSION}
