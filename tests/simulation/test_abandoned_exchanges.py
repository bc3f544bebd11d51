"""Auto-delete exchanges whose bindings were an earlier primary's alone: of exclusive queues, or of queues of level none."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import Hand, Scenario, calls, scenario
from understudy.broker.core.limits import Limits
from understudy.broker.core.state.raw_records import EMPTY_TABLE
from understudy.broker.log import record

GRACE_MS = Limits().auto_delete_grace_ms


def there(group: Scenario) -> list[str]:
    exchanges = group.primary.node.state.topology.registry.vhost("/").exchanges
    return sorted(name for name in exchanges if name and not name.startswith("amq."))


def used(client: Hand, exchange: str) -> None:
    """Declare it, and bind an exclusive queue, which goes with its primary."""
    client(calls.declare_exchange, exchange, "fanout", durable=True, auto_delete=True)
    client(calls.declare, f"for {exchange}", durable=False, exclusive=True)
    client(calls.bind, f"for {exchange}", exchange, "")


def test_they_go_when_nobody_has_bound_them_anew() -> None:
    with scenario() as group:
        client = group.hand()
        client(calls.declare_exchange, "lasting", "fanout", durable=True)
        used(client, "left")
        used(client, "bound")
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        assert there(group) == ["bound", "lasting", "left"]
        client = group.hand()
        client(calls.declare, "anew", durable=False, exclusive=True)
        client(calls.bind, "anew", "bound", "")
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == ["bound", "lasting"]


def test_one_that_a_client_declares_anew_is_its_own() -> None:
    """The exchange was deleted under a client that had been told declare-ok and was about to bind to it."""
    with scenario() as group:
        client = group.hand()
        used(client, "left")
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        group.run_ms(GRACE_MS - 2_000)
        client = group.hand()
        client(calls.declare_exchange, "left", "fanout", durable=True, auto_delete=True)
        group.run_ms(4_000)
        client(calls.declare, "mine", durable=False, exclusive=True)
        client(calls.bind, "mine", "left", "")
        assert there(group) == ["left"]


def test_the_grace_begins_when_clients_can_come() -> None:
    """While the new primary cannot serve (its last listed member is away) nobody can come back to what is his."""
    with scenario(brokers=3, min_insync=2, backup_timeout_ms=1_000) as group:
        client = group.hand()
        used(client, "left")
        client(calls.declare, "queue", durable=True, auto_delete=True)
        client(calls.consume, "queue", "goes with the primary")
        group.run_ms(200)
        primary, (one, other) = group.primary, group.backups
        group.crash(other)
        group.expelled(other)
        group.crash(primary)
        group.until("it leads", lambda: one.ha.primary is not None)
        group.run_ms(GRACE_MS + 5_000)
        assert group.cluster.primary() is None, "nobody serves: two are asked for"
        primary.start()
        group.until("it serves", lambda: group.cluster.primary() is not None)
        group.run_ms(5_000)
        assert there(group) == ["left"]
        assert group.queue(group.primary, "queue") is not None


def test_a_chain_goes_from_its_end_and_one_that_is_bound_to_another_stays() -> None:
    """A client that binds an exchange to another one uses both."""
    with scenario() as group:
        client = group.hand()
        for name in ("first", "second", "kept"):
            used(client, name)
        client(calls.bind_exchange, "second", "first", "")
        client(calls.declare_exchange, "lasting", "fanout", durable=True)
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        assert there(group) == ["first", "kept", "lasting", "second"]
        group.hand()(calls.bind_exchange, "kept", "lasting", "")
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == ["kept", "lasting"]


@pytest.mark.parametrize("durable", [False, True])
def test_one_that_never_had_a_binding_stays(durable: bool) -> None:
    """AMQP 0-9-1: it is not deleted then. It was, a minute after each failover, with messages going through it to its alternate."""
    with scenario(brokers=3) as group:
        client = group.hand()
        client(calls.declare, "q")
        client(calls.bind, "q", "amq.fanout", "")
        client(calls.declare_exchange, "plain", "direct", durable=durable, auto_delete=True)
        client(calls.declare_exchange, "front", "topic", durable=durable, auto_delete=True, alternate="amq.fanout")
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == ["front", "plain"]
        client = group.hand()
        client.publish("x", b"kept", exchange="front")
        group.run_ms(1_000)
        assert group.bodies(group.primary, "q") == [b"kept"]


def test_one_with_an_alternate_goes_if_it_had_a_binding() -> None:
    with scenario(brokers=3) as group:
        client = group.hand()
        client(calls.declare_exchange, "front", "topic", durable=True, auto_delete=True, alternate="amq.fanout")
        client(calls.declare, "mine", durable=False, exclusive=True)
        client(calls.bind, "mine", "front", "k")
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        assert there(group) == ["front"]
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == []


def test_what_is_declared_before_it_serves_is_not_adopted() -> None:
    """Seed 356: a client was let in while the new primary waited for its last member, and asked for an exchange meanwhile."""
    with scenario(brokers=3, min_insync=2, backup_timeout_ms=60_000) as group:
        primary, (one, other) = group.primary, group.backups
        group.crash(other)
        group.crash(primary)
        group.until("it leads", lambda: one.ha.primary is not None)
        core = one.node.broker
        assert not core.role.answering
        for flags in (record.AUTO_DELETE, record.AUTO_DELETE | record.USED):
            core.batch.append_record(record.encode_exchange_declare("/", "new", "fanout", flags, EMPTY_TABLE))
        primary.start()
        other.start()
        group.until("it serves", lambda: group.cluster.primary() is one)
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == ["new"]
