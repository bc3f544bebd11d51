"""Everything that may happen between two bases of a catch-up, at once; then the joiner's disk has to tell it again."""

from __future__ import annotations

import pytest

from tests.simulation.half_sent_kit import BODIES, catch_up_of, half_sent
from tests.simulator.scenario import Hand, Scenario, SimNode, calls, scenario
from understudy.broker.amqp.properties import encode_properties

TRANSIENT = encode_properties(delivery_mode=1)


def fill(group: Scenario, count: int = 40) -> None:
    writer = group.hand()
    for number in range(count):
        writer.publish("other", b"%03d" % number + bytes(200))
    writer.go()


def after_it(group: Scenario, joiner: SimNode, after: str) -> None:
    """The group goes on in the way ``after``; the joiner has to have on its disk, too, what it was sent."""
    if after == "joiner restarts":
        group.crash(joiner, hard=False)
    elif after == "joiner loses power":
        group.crash(joiner)
    elif after == "all restart":
        for node in group.nodes:
            group.crash(node)
    elif after == "joiner leads":
        group.replace_primary(joiner)
    group.heal()
    group.ready()


def none_uncommitted(group: Scenario) -> bool:
    queues = [queue for node in group.nodes for queue in node.node.state.queues.values()]
    return not any(queue.uncommitted for queue in queues if queue.logged)


def written_before(group: Scenario, setup: Hand, hand: Hand) -> None:
    for queue in ("q", "gone", "again", "purged", "taken", "other"):
        setup(calls.declare, queue)
    setup(calls.declare, "fleeting", durable=False)
    setup(calls.declare, "local", durable=False, arguments={"x-ha-replicate": "none"})
    setup.publish("taken", *BODIES[:6])
    setup.publish("purged", *BODIES[:6])
    setup.publish("again", *BODIES[:3])
    hand.publish("local", b"here alone")
    hand.take("taken", 2)
    hand.publish("q", *BODIES[:15])
    hand.publish("again", b"lost with its queue")
    hand.publish("gone", b"lost with its queue")
    hand.publish("q", b"transient", properties=TRANSIENT)
    hand.publish("fleeting", b"fleeting 1", properties=TRANSIENT)
    hand.publish("q", *BODIES[15:])


def written_between(group: Scenario, setup: Hand, hand: Hand) -> None:
    hand.take("taken", 1)
    hand.publish("local", b"here alone")
    hand.publish("q", b"more", b"and more")
    hand.publish("fleeting", b"fleeting 2", properties=TRANSIENT)
    setup(calls.delete, "gone")
    setup(calls.delete, "again")
    setup(calls.declare, "again")
    hand.publish("again", b"to the new one")
    setup(calls.purge, "purged")
    setup(calls.declare, "new")
    setup.publish("new", b"new")
    hand.publish("new", b"new, too")
    fill(group)


@pytest.mark.parametrize("after", ["nothing", "joiner restarts", "joiner loses power", "all restart", "joiner leads"])
@pytest.mark.parametrize("ending", ["commit", "commit before", "prepared before", "rollback"])
def test_everything_between_two_bases(ending: str, after: str) -> None:
    with scenario(kept_bytes=2_000, piece_bytes=200, pieces_in_flight=2) as group:
        setup, hand = group.hand(), group.hand(transactional=True)
        written_before(group, setup, hand)
        joiner = group.backups[0]
        group.away(joiner)
        catch_up = half_sent(group, joiner)
        base = catch_up.base
        group.hold_disk(joiner)
        written_between(group, setup, hand)
        order = None
        if ending == "prepared before":
            group.hold_disk(group.primary)
            order = hand.commit()
            group.run_ms(20)
        elif ending == "commit before":
            hand.committed()
            fill(group)
        assert not catch_up.opened
        group.free_disk(joiner)
        if order is not None:
            group.run_ms(50)
            group.free_disk(group.primary)
            group.until("answered", lambda: order.over)
        group.ready()
        assert catch_up_of(group, joiner) is catch_up
        assert catch_up.base > base
        if ending == "commit":
            hand.committed()
        elif ending == "rollback":
            hand(calls.rollback)
        hand.go()
        setup.go()
        committed = ending != "rollback"
        group.until("nothing is uncommitted", lambda: none_uncommitted(group))
        group.everywhere("fleeting", *((b"fleeting 1", b"fleeting 2") if committed else ()))
        after_it(group, joiner, after)
        transient = () if after == "all restart" else (b"transient",)
        content = (*BODIES[:15], *transient, *BODIES[15:], b"more", b"and more")
        group.everywhere("q", *(content if committed else ()))
        group.everywhere("new", b"new", *((b"new, too",) if committed else ()))
        group.everywhere("again", *((b"to the new one",) if committed else ()))
        group.everywhere("taken", *BODIES[3 if committed else 0 : 6])
        group.everywhere("purged")
