"""Auto-delete exchanges whose bindings were an earlier primary's alone: of exclusive queues, or of queues of level none."""

from __future__ import annotations

from tests.simulation import calls
from tests.simulation.scenario import Scenario, scenario
from understudy.broker.core.limits import Limits

GRACE_MS = Limits().auto_delete_grace_ms


def there(group: Scenario) -> list[str]:
    exchanges = group.primary.node.state.registry.vhost("/").exchanges
    return sorted(name for name in exchanges if name and not name.startswith("amq."))


def test_they_go_when_nobody_has_bound_them_anew() -> None:
    with scenario() as group:
        client = group.hand()
        for exchange, auto_delete in (("left", True), ("bound", True), ("lasting", False)):
            client(calls.declare_exchange, exchange, "fanout", durable=True, auto_delete=auto_delete)
        client(calls.declare, "mine", durable=False, exclusive=True)
        for exchange in ("left", "bound"):
            client(calls.bind, "mine", exchange, "")
        group.replace_primary(group.backups[0])
        group.heal()
        group.ready()
        assert there(group) == ["bound", "lasting", "left"]
        client = group.hand()
        client(calls.declare, "anew", durable=False, exclusive=True)
        client(calls.bind, "anew", "bound", "")
        group.run_ms(GRACE_MS + 1_000)
        assert there(group) == ["bound", "lasting"]
