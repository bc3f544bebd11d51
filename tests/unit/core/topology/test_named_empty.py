"""A transaction that brought nothing into a queue, and has a name, has an outcome under it."""

from __future__ import annotations

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import TX_COMMIT, TX_ROLLBACK, TX_SELECT, encode_method
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.transactions.outcome_query import parse_tx_id
from understudy.broker.transactions.outcomes import Outcome


def test_committed_stays_committed() -> None:
    core = Core()
    client = core.client()
    client.method(TX_SELECT)
    named = encode_properties(headers={"x-understudy-tx": "job"})
    client.send(publish_frames(1, "", "nowhere", named, b"x", FRAME_MAX))
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.commit-ok"]
    outcome = core.node.state.applying.outcomes.named("job")
    assert outcome is not None
    assert outcome.text == "committed"


def test_it_is_pending_until_its_group_is_ordered() -> None:
    """Asked for in the turn of its commit, its name used to be barred: the client was told committed, whoever asked rolled back."""
    core = Core()
    client, asker = core.client(), core.client()
    core.queue(asker, "answers")
    named = encode_properties(headers={"x-understudy-tx": "job"})
    client.send(encode_method(1, TX_SELECT), publish_frames(1, "", "nowhere", named, b"x", FRAME_MAX))
    client.connection.receive(encode_method(1, TX_COMMIT))
    asked = encode_properties(reply_to="answers")
    asker.connection.receive(publish_frames(1, "understudy.tx", "", asked, b"outcome job", FRAME_MAX))
    core.sync()
    core.sync()
    assert client.heard() == ["tx.select-ok", "tx.commit-ok"]
    (entry,) = core.node.state.topology.registry.vhost("/").queues["answers"].entries.values()
    assert entry.message.content() in (b"pending", b"committed")
    outcome = core.node.state.applying.outcomes.named("job")
    assert outcome is not None
    assert outcome.text == "committed"


def test_two_in_one_group_do_not_share_a_name() -> None:
    core = Core()
    clients = [core.client(), core.client()]
    named = encode_properties(headers={"x-understudy-tx": "job"})
    for client in clients:
        client.send(encode_method(1, TX_SELECT), publish_frames(1, "", "nowhere", named, b"x", FRAME_MAX))
        client.heard()
    for client in clients:
        client.connection.receive(encode_method(1, TX_COMMIT))
    core.sync()
    assert [client.heard() for client in clients] == [["tx.commit-ok"], ["channel.close"]]


def test_an_id_that_was_told_has_an_outcome() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "answers")
    client.method(TX_SELECT)
    client.heard()
    asked = encode_properties(reply_to="answers")
    client.send(publish_frames(1, "understudy.tx", "", asked, b"id", FRAME_MAX))
    core.sync()
    (queue,) = core.node.state.queues.values()
    (entry,) = queue.entries.values()
    client.send(publish_frames(1, "", "nowhere", encode_properties(), b"x", FRAME_MAX))
    client.method(TX_COMMIT)
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    tx_id = parse_tx_id(bytes(entry.message.content()).decode())
    assert core.node.state.applying.outcomes.of_id(tx_id, core.broker.transactions.newest_id) is Outcome.COMMITTED


def told_id(core: Core, client: Client) -> int:
    """The id of the channel's transaction, as the channel tells it."""
    asked = encode_properties(reply_to="answers")
    client.send(publish_frames(1, "understudy.tx", "", asked, b"id", FRAME_MAX))
    core.sync()
    *_, entry = core.node.state.topology.registry.vhost("/").queues["answers"].entries.values()
    return parse_tx_id(bytes(entry.message.content()).decode())


def test_a_transaction_without_any_operation_has_the_outcome_that_its_client_was_told() -> None:
    """Two of them, and one that is rolled back: each has an id of its own, once that was told."""
    core = Core()
    client = core.client()
    core.queue(client, "answers")
    client.method(TX_SELECT)
    client.heard()
    found = []
    for verb in (TX_COMMIT, TX_ROLLBACK, TX_COMMIT):
        found.append(told_id(core, client))
        client.method(verb)
        core.sync()
    assert client.heard() == ["tx.commit-ok", "tx.rollback-ok", "tx.commit-ok"]
    outcomes, newest = core.node.state.applying.outcomes, core.broker.transactions.newest_id
    wanted = [Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.COMMITTED]
    assert [outcomes.of_id(tx_id, newest) for tx_id in found] == wanted
    assert len(core.broker.transactions.open_ids) == 1
