"""A primary does not hear that it has added a backup, which may lead next: until it knows it does not do without that backup.

Found by the model (tests/model, mutation "lost-add-is-not-done"; docs/model.md).
"""

from __future__ import annotations

import pytest

from tests.simulator.ledger import Violation
from tests.simulator.mutations import mutated
from tests.simulator.nemesis.at_network import UnheardAdd
from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.scenario import MS, Hand, Order, Program, Scenario, SimClient, SimNode, calls, scenario
from understudy.broker.amqp.properties import encode_properties

CUT_MS = 15_000
SILENCE_MS = 4_000
"""By then the primary has given up waiting for the answer, and for whoever is silent and not listed."""
PERSISTENT = encode_properties(delivery_mode=2)


def publish(client: SimClient) -> Program:
    """A message, and its confirm."""
    yield from calls.confirm_select(client)
    told: list[bool] = []
    client.on_confirm = lambda tag, multiple, good: told.append(good)
    client.publish("", "q", PERSISTENT, b"1")
    while not told:
        yield from client.sleep(5 * MS)


def publish_beside_an_unheard_add(group: Scenario, back_ms: int) -> tuple[Hand, Order, SimNode]:
    """Returns the client, what it waits for ``SILENCE_MS`` after the add, and who was added."""
    hand = group.hand()
    hand(calls.declare, "q")
    joiner = group.backups[1]
    group.away(joiner)
    UnheardAdd(broker=group.primary.name, for_ms=CUT_MS, back_ms=back_ms).hit(Havoc(group.cluster))
    joiner.resume()
    group.until("added", lambda: joiner.name in group.members)
    assert group.world.faults["unheard-add"] == 1
    order = hand.begin(publish)
    group.run_ms(SILENCE_MS)
    return hand, order, joiner


@pytest.mark.parametrize("back_ms", [0, 1_000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_may_have_been_added_is_waited_for(seed: int, back_ms: int) -> None:
    with scenario(seed) as group:
        first = group.primary
        hand, order, joiner = publish_beside_an_unheard_add(group, back_ms)
        assert first.ha.primary is not None
        assert not order.over
        assert first.node.state.log.durable > first.node.state.log.stable
        group.until("the one that was added leads", lambda: joiner.ha.primary is not None)
        group.run_ms(CUT_MS)
        assert group.world.faults["crash-primary"] == bool(back_ms)
        group.ready()
        assert not order.over
        group.everywhere("q")
        hand.go()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_else_a_confirm_is_broken(seed: int) -> None:
    """The primary that takes the add for not done forgets the backup, and confirms what whoever leads next does not have."""
    broken = "G4: b3 may be promoted and lacks chosen records"
    with mutated("lost-add-counts-as-not-done"), pytest.raises(Violation, match=broken), scenario(seed) as group:
        publish_beside_an_unheard_add(group, 0)
