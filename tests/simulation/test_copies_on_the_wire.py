"""Each message of a transaction goes to each backup once: with its tx-queue, and not again with the queues that it touches.

H-29, H-30.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.scenario import Scenario, SimNode, calls, named, scenario

QUEUES = ("a", "b", "c", "d")
BODIES = [b"body number %d of the transaction" % number for number in range(6)]


class Copies:
    """How often each of the bodies has been sent to each broker, in whatever message."""

    def __init__(self, group: Scenario) -> None:
        self.sent: Counter[tuple[str, bytes]] = Counter()
        network = group.cluster.network
        self._before = network.on_sent
        network.on_sent = self._sent

    def _sent(self, source: SimNode, target: SimNode, message: bytes) -> None:
        assert self._before is not None
        self._before(source, target, message)
        for body in BODIES:
            self.sent[target.name, body] += message.count(body)

    def to(self, node: SimNode) -> list[int]:
        """One number for each body."""
        return [self.sent[node.name, body] for body in BODIES]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_member_is_sent_each_message_once(end: str) -> None:
    """Each message goes out once, come PREPARE, the decision, plain work on the same queues, or a failover."""
    with scenario() as group:
        setup = group.hand()
        for queue in QUEUES:
            setup(calls.declare, queue)
            setup(calls.bind, queue, "amq.fanout", "")
        copies = Copies(group)
        hand = group.hand(transactional=True)
        for body in BODIES:
            hand.publish("", body, exchange="amq.fanout", properties=named("tx"))
        group.until("mirrored", lambda: all(group.events(node) == len(BODIES) for node in group.nodes))
        once = [1] * len(BODIES)
        assert [copies.to(node) for node in group.backups] == [once, once], "before the commit"
        if end == "commit":
            hand.committed("tx")
        else:
            hand(calls.rollback)
        setup.publish("", b"plain", exchange="amq.fanout")
        for queue in QUEUES:
            group.everywhere(queue, *(BODIES if end == "commit" else []), b"plain")
        group.run_ms(2_000)
        assert [copies.to(node) for node in group.backups] == [once, once]
        other = group.backups[1]
        group.replace_primary(group.backups[0])
        group.until("active", lambda: group.cluster.primary() is not None)
        group.hand().publish("", b"after", exchange="amq.fanout")
        assert copies.to(other) == once


@pytest.mark.parametrize("restarts", [False, True])
def test_who_has_them_is_not_sent_them_by_a_catch_up(restarts: bool) -> None:
    """Its ids tell that it holds them, since it was a member of the transaction."""
    with scenario(kept_bytes=1) as group:
        setup = group.hand()
        for queue in QUEUES:
            setup(calls.declare, queue)
            setup(calls.bind, queue, "amq.fanout", "")
        hand = group.hand(transactional=True)
        for body in BODIES:
            hand.publish("", body, exchange="amq.fanout")
        hand.committed()
        for body in (b"1", b"2"):  # each brings word that what stands before it is stable, also to the journal
            setup.publish("", body, exchange="amq.fanout")
            for queue in QUEUES:
                group.everywhere(queue, *BODIES, *([b"1"] if body == b"1" else [b"1", b"2"]))
        joiner = group.backups[0]
        if restarts:
            group.run_ms(500)
            group.crash(joiner, hard=False)
            group.expelled(joiner)
        else:
            group.away(joiner)
        group.move_the_kept_log_on()
        copies = Copies(group)
        before = group.world.happened["catch-up begins"]
        joiner.resume()
        joiner.start_if_down()
        group.ready()
        assert group.world.happened["catch-up begins"] == before + 1
        assert copies.to(joiner) == [0] * len(BODIES)
        for queue in QUEUES:
            group.everywhere(queue, *BODIES, b"1", b"2")
