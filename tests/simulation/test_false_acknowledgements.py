"""A joiner has taken CATCH_UP and not yet the base: its log is still the old one, which may be another primary's.

What becomes durable of that in between must not be acknowledged to the new primary, which would take it for its own records.
"""

from __future__ import annotations

import attrs

from tests.simulator.scenario import MS, NEVER_MS, PERSISTENT, SimNode, calls, publish_confirmed, scenario
from understudy.replicator import wire


def test_what_is_about_to_be_replaced_by_a_catch_up_is_not_acknowledged() -> None:
    with scenario(brokers=4, kept_bytes=1, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        first = group.primary
        second, third, joiner = group.backups
        # The joiner is not listed, and its disk is slow: nobody waits for it.
        primary = first.ha.primary
        assert primary is not None
        primary.backups[joiner.name].must_leave = "the test says so"
        group.until("it leaves", lambda: joiner.name not in group.members)
        quick = joiner.knobs
        joiner.knobs = attrs.evolve(quick, fsync_us=(3_000 * MS, 3_001 * MS))
        group.until("it is linked again", lambda: joiner.ha.replicator.linked)
        group.cut_both(first, second)
        group.cut_both(first, third)
        tail = group.hand()
        for _ in range(20):
            tail.client.publish("", "q", PERSISTENT, b"of the first alone")
        group.until("it has the tail", lambda: joiner.node.state.log.end >= second.node.state.log.end + 20)
        group.crash(first)
        store = group.cluster.store
        store.cut_off.add(joiner.name)
        group.until("second or third leads", lambda: group.cluster.primary() is not None)
        leader = group.primary
        assert leader is not joiner
        hand = group.hand()
        for number in range(30):
            hand(publish_confirmed, "q", b"%d" % number)
        false: list[int] = []
        before = group.cluster.network.on_sent

        def sent(source: SimNode, target: SimNode, message: bytes) -> None:
            assert before is not None
            before(source, target, message)
            if source is joiner and message[0] == wire.ACK and joiner.node.state.log.epochs.newest == 1:
                false.append(wire.decode_number(message))

        group.cluster.network.on_sent = sent
        store.cut_off.clear()
        joiner.event(lambda ha: ha.group_changed(store.group, store.brokers()))
        group.until("it takes CATCH_UP", lambda: joiner.ha.replicator._link_epoch == 2)
        assert joiner._job is not None, "its disk is still at work"
        group.cut(leader, joiner)  # the base is on its way
        theirs = joiner.node.state.log
        group.until("what it held is on its disk", lambda: theirs.durable == theirs.end)
        group.run_ms(100)
        assert theirs.epochs.newest == 1
        assert not false, "acknowledged of its old log"
        joiner.knobs = quick
        group.mend()
