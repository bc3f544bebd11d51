"""A backup refuses what it does not hold whole: that is heard whatever comes in between, and does not outlast its cause."""

from __future__ import annotations

import attrs
import pytest

from tests.simulation.half_sent_kit import BODIES, half_sent
from tests.simulation.steps_kit import TRANSIENT, lose_an_event
from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import (
    NEVER_MS,
    PERSISTENT,
    Closed,
    Program,
    Scenario,
    SimClient,
    SimNode,
    calls,
    named,
    publish_confirmed,
    scenario,
)
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.broker.transactions.xid import Xid
from understudy.ha.status import BrokerStatus
from understudy.replicator import wire

BRANCH = Xid(7, b"global", b"b1")


def prepare(client: SimClient) -> Program:
    yield from calls.dtx_select(client)
    yield from calls.dtx_start(client, BRANCH)
    client.publish("", "q", PERSISTENT, b"of the branch")
    yield from calls.dtx_end(client, BRANCH)
    yield from calls.dtx_prepare(client, BRANCH)


def test_a_base_that_is_put_again_does_not_take_a_refusal_away() -> None:
    """A joiner refuses a branch that a catch-up brings; before that is said the base is put again, with that branch kept."""
    with scenario(kept_bytes=2_000, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        for queue in ("q", "other"):
            setup(calls.declare, queue)
        setup.go()
        hand = group.hand(transactional=True)
        hand.publish("q", *BODIES)
        group.hand()(prepare)  # it is sent last
        joiner = group.backups[0]
        group.away(joiner)
        half_sent(group, joiner)
        replicator = joiner.extension.replicator
        refused: list[int] = []
        votes = list(joiner.node.state.taking.on_prepare)

        def refuse(tx: TxBuffer) -> None:
            refused.append(tx.tx_id)
            joiner.node.state.taking.on_prepare = votes
            replicator.say_no(tx, "refused by the test: a defect of its copy")

        joiner.node.state.taking.on_prepare = [refuse]
        said: list[int] = []
        before = group.cluster.network.on_sent

        def sent(source: SimNode, target: SimNode, message: bytes) -> None:
            assert before is not None
            before(source, target, message)
            if source is joiner and message[0] == wire.NO:
                said.append(wire.decode_no(message)[0])

        group.cluster.network.on_sent = sent
        group.hold_disk(joiner)
        writer = group.hand()
        for number in range(40):
            writer.publish("other", b"%03d" % number + bytes(200))
        group.free_disk(joiner)
        group.until("it refuses", lambda: bool(refused))
        group.until("it is listed", lambda: joiner.name in group.members)
        assert group.cluster.world.happened["base again"]
        assert said == refused, "it was listed with a copy that it had refused, and nobody has heard of that"
        group.hand()(calls.dtx_rollback, BRANCH)
        hand.commit()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_restart_does_not_make_it_overlook_what_it_lacks_of_later_transactions(restarts: bool) -> None:
    """Once a journal had a hole where something transient had stood, transient events could be missing of any transaction."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand.publish("a", b"old", properties=TRANSIENT)
        group.hand()(publish_confirmed, "a", b"durable")
        backup = group.backups[0]
        group.run_ms(200)
        if restarts:
            group.crash(backup, hard=False)
            backup.start()
            group.ready()
            group.run_ms(1_000)
        assert not backup.extension.replicator.fresh
        tx = group.hand(transactional=True)
        tx.publish("a", b"one", properties=named("tx"))
        tx.publish("a", b"two", properties=TRANSIENT)
        group.until("both events are there", lambda: group.events(backup) == 2)
        lose_an_event(group, backup)  # the transient one
        order = tx.commit("tx")
        group.until("answered", lambda: order.over)
        assert isinstance(order.error, Closed)
        assert order.error.code == 406


def test_who_refused_what_the_group_has_committed_can_be_made_the_base() -> None:
    """An operator makes the last copy the base of its group (decision 0009): it goes on from before what it lacks."""
    group = Scenario(1, backup_timeout_ms=5_000)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start_empty()
        hand = group.hand()
        hand(calls.declare, "a")
        primary, joiner = group.primary, group.backups[0]
        group.run_ms(200)
        group.away(joiner)
        hand(publish_confirmed, "a", b"before")
        group.hold_disk(joiner)  # so that it is not guarded: nobody waits for it
        joiner.resume()
        group.until("it has linked", lambda: joiner.ha.replicator.linked)
        tx = group.hand(transactional=True)
        tx.publish("a", b"one", b"two", properties=named("tx"))
        group.until("both events are there", lambda: group.events(joiner) == 2)
        lose_an_event(group, joiner)
        tx.committed("tx")
        group.until("it has COMMIT", lambda: group.has_decision(joiner))
        group.cut_both(primary, joiner)
        group.free_disk(joiner)
        log = joiner.node.state.log
        group.until("all is on its disk", lambda: log.durable == log.end)
        assert joiner.extension.replicator.no_votes
        assert not joiner.extension.replicator.part
        checkers = group.cluster.checkers  # what is confirmed is lost here, and that is what the operator has been told
        checkers.replicas.check = lambda node: None  # type: ignore[method-assign]
        checkers.chosen.check = lambda node: None  # type: ignore[method-assign]
        checkers.replicas.decided = lambda node, tx: None  # type: ignore[method-assign]
        checkers.chosen.stable_at = lambda node, offset: None  # type: ignore[method-assign]
        for node in group.nodes:
            group.crash(node)
        store = group.cluster.store
        held = store.group
        assert held is not None
        store.group = attrs.evolve(
            held,
            epoch=held.epoch + 1000,
            primary=joiner.name,
            members=(joiner.name,),
            version=held.version + 1,
            min_insync=1,
        )
        store._history.append((group.world.now_ms, store.group))
        joiner.start()
        transaction = group.transaction(joiner)
        assert transaction is not None
        assert transaction.commits
        group.until("it serves", lambda: joiner.ha.status is BrokerStatus.ACTIVE)
        group.run_ms(1_000)
        assert not joiner.node.state.transactions
        assert group.bodies(joiner, "a") == [b"before"]
