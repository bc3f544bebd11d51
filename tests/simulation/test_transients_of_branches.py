"""Transients of a branch in doubt end with the EPOCH that says so, on every broker, and come back by no way.

A prepared branch outlives its primary, so it is the one transaction that an EPOCH finds closed and whose events it ends in part.
"""

from __future__ import annotations

import pytest

from tests.simulator.scenario import NEVER_MS, Hand, Scenario, SimNode, calls, scenario
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid
from understudy.ha.showing.events import BackupResumes, CatchUpBegins, TransactionRefused

TRANSIENT = encode_properties(delivery_mode=1)
X = Xid(7, b"global", b"b1")


def prepared(group: Scenario, *, size: int = 0, count: int = 1) -> Hand:
    """A branch that brings to queue a: "1 kept", ``count`` transient messages of ``size`` bytes, "3 kept"."""
    hand = group.hand()
    hand(calls.declare, "a")
    hand(calls.dtx_select)
    hand(calls.dtx_start, X)
    hand.publish("a", b"1 kept")
    for _ in range(count):
        hand.publish("a", b"2 not".ljust(size), properties=TRANSIENT)
    hand.publish("a", b"3 kept")
    hand(calls.dtx_end, X)
    assert hand(calls.dtx_prepare, X) == XaStatus.OK
    return hand


def commit(group: Scenario) -> None:
    """Whoever leads commits it; then all hold what an EPOCH left of it, and nothing else."""
    hand = group.hand()
    assert hand(calls.dtx_commit, X) == XaStatus.OK
    group.everywhere("a", b"1 kept", b"3 kept")


def leads_again(group: Scenario, node: SimNode) -> None:
    """This primary restarts so fast that nobody takes over: it lacks what the others still have in memory."""
    assert node.ha.primary is not None
    epoch = node.ha.primary.epoch
    group.crash(node)
    others = [each for each in group.nodes if each.up and not each.paused]
    for other in others:
        other.pause()
    node.start()
    group.until("it leads again", lambda: node.ha.primary is not None and node.ha.primary.epoch > epoch, 60_000)
    for other in others:
        other.resume()


def transients(node: SimNode) -> int:
    """How many transient events of the branch that broker still holds."""
    tx = Scenario.transaction(node)
    assert tx is not None
    return len(tx.transient_at)


def ended(group: Scenario) -> None:
    """No broker holds anything transient of the branch any more."""
    group.until("all have applied the end", lambda: not any(transients(node) for node in group.nodes))


def an_end_not_applied(group: Scenario, successor: SimNode) -> SimNode:
    """The primary has restarted, and its EPOCH that ends what is transient is in the log of all members.

    But ``successor`` has not heard that it is stable, and leads now. Returns the one that died.
    """
    first = group.primary
    group.hold_disk(successor)
    leads_again(group, first)
    log = successor.node.state.log
    group.until("it has the EPOCH", lambda: log.epochs.newest == 2)
    group.run_ms(500)
    group.cut(first, successor)
    group.free_disk(successor)
    group.until("it is stable", lambda: group.cluster.primary() is first)
    group.hand().begin(
        calls.declare, "b"
    )  # its batch says so, too: who has that on its disk recovers with the EPOCH applied
    group.run_ms(50)
    group.replace_primary(successor)
    group.mend()
    assert transients(successor) > 0
    return first


# -- what is there --------------------------------------------------------------------------------------------------------


def test_a_restart_of_all_takes_what_is_transient_from_a_branch() -> None:
    """On every broker alike; what a journal keeps is all there (G5)."""
    with scenario() as group:
        prepared(group)
        for node in group.nodes:
            group.crash(node)
        for node in group.nodes:
            node.start()
        group.ready()
        commit(group)


def test_a_primary_that_has_restarted_alone_takes_it_from_all() -> None:
    """The restarted primary leads again, and lacks what the others still have in memory: its EPOCH ends that."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        prepared(group)
        first = group.primary
        leads_again(group, first)
        group.ready()
        assert group.primary is first
        ended(group)
        commit(group)


def test_who_only_heard_of_the_end_brings_up_an_empty_one() -> None:
    """The new primary never restarted, and holds less than DTX_PREPARE counts since an EPOCH said so; the joiner, too, says yes."""
    with scenario(kept_bytes=1) as group:
        prepared(group)
        first = group.primary
        second, joiner = group.backups
        leads_again(group, first)
        group.ready()
        group.replace_primary(second)
        first.start()
        group.ready()
        assert not second.extension.replicator.fresh
        group.caught_up_from_nothing(joiner)
        assert group.world.happened[TransactionRefused.name] == 0
        commit(group)


# -- an end that the primary has not applied ------------------------------------------------------------------------------


def test_a_refill_brings_nothing_that_an_epoch_has_ended() -> None:
    """A broker has applied that EPOCH and has restarted since; who leads now has it in its log, and has not applied it yet."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        prepared(group)
        successor, other = group.backups
        first = an_end_not_applied(group, successor)
        group.crash(other)
        other.start()
        group.until("it is refilled", lambda: group.world.happened[BackupResumes.name] > 0)
        first.start()
        group.ready()
        ended(group)
        commit(group)


@pytest.mark.parametrize(
    "meanwhile", ["nothing", "its disk is slow", "the base moves on", "the base moves on, and it leads"]
)
def test_the_end_is_applied_while_a_joiner_gets_what_it_ends(meanwhile: str) -> None:
    """The catch-up goes on with what it began, and the joiner ends it with the log, as all others did.

    A base that is put again stands behind the EPOCH, which the joiner never applies then: it is sent what is left, anew.
    """
    moves = meanwhile.startswith("the base moves on")
    with scenario(kept_bytes=60_000 if moves else 1 << 20) as group:
        prepared(group, size=64 << 10, count=60)
        successor, joiner = group.backups
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        first = an_end_not_applied(group, successor)
        if meanwhile != "nothing":
            group.hold_disk(joiner)
        joiner.start()
        before = group.world.happened[CatchUpBegins.name]
        group.until("the catch-up begins", lambda: group.world.happened[CatchUpBegins.name] > before)
        first.start()
        group.until("applied", lambda: transients(successor) == 0)
        bases = group.world.happened["base again"]
        if moves:
            group.until("active", lambda: group.cluster.primary() is successor)
            hand = group.hand()
            hand(calls.declare, "other")
            for _ in range(100):
                hand.publish("other", bytes(1_000))
        else:
            group.run_ms(100)
        group.free_disk(joiner)
        group.ready()
        assert group.world.happened["base again"] - bases == moves
        ended(group)
        if meanwhile.endswith("it leads"):
            group.replace_primary(joiner).start()
        commit(group)
