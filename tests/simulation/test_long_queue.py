"""A long queue, a transaction that is not over, and a backup that comes: it is ready at once (H-40).

It comes back by catch-up while a transaction is open; or it is an *expected* one, listed when another broker begins to lead, with
a transaction that was closed and not decided, or a branch in doubt.

What this shows is that nothing of the conversation depends on the length or waits for the transaction; the time that a real machine
takes to look at a million ids is `stress/test_blocking_transaction.py`'s. The guard's time ends with the change of the set; an
expected backup is in the set, and its guard, which stands at EPOCH, is passed when it has acknowledged that.
"""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest

from tests.simulation.steps_kit import Blind
from tests.simulator import cluster, scenario
from tests.simulator.branch_steps import X, ask, listed_on
from tests.simulator.scenario import NEVER_MS, Hand, Order, Scenario, SimNode, calls
from understudy.broker.message import Message
from understudy.broker.transactions.xa_status import XaStatus
from understudy.ha.status import BrokerStatus

JOINED_MESSAGES = 200_000
EXPECTED_MESSAGES = 100_000
"""Where a backup is expected: four brokers hold them, twice."""
AFTER_THE_GUARD_PER_MESSAGE_MS = 0.001
"""A second for a million messages. So a shorter queue proves as much: its bound is that much smaller."""


def fill(group: Scenario, messages: int) -> None:
    """Every broker holds the same empty messages, as if they had been published one after the other; no journal has them."""
    message = Message("", "long", b"\x00\x00", b"", True)
    lead = group.queue(group.primary, "long")
    assert lead is not None
    message.offset = group.primary.node.state.log.applied
    ids = [lead.next_id() for _ in range(messages)]
    for node in group.nodes:
        queue = group.queue(node, "long")
        assert queue is not None
        queue.newest_id = ids[-1]
        for entry_id in ids:
            queue.enqueue(entry_id, message, 0)


def begin(group: Scenario, messages: int) -> None:
    group.start()
    group.hand()(calls.declare, "long")
    group.run_ms(100)
    fill(group, messages)


@attrs.frozen
class Joined:
    """Of the backup that came, in simulated time.

    Attributes:
        ready_ms: from when it goes on until it is listed; of an expected one, until it is ready.
        guard_ms: so much of that it was guarded; of an expected one, until its guard is passed.
    """

    ready_ms: float
    guard_ms: float


def is_guarded(group: Scenario, name: str) -> bool:
    primary = group.primary.ha.primary
    backup = primary.backups.get(name) if primary is not None else None
    return backup is not None and backup.guard is not None


def joined(messages: int, *, open_transaction: bool) -> Joined:
    """Bring it back by catch-up."""
    group = Scenario(1, kept_bytes=1, fsync_us=(100, 1_500))
    with group.cluster.knobs.in_force():
        begin(group, messages)
        if open_transaction:
            hand = group.hand(transactional=True)
            hand.publish("long", *[b"undecided"] * 10)
            hand.take("long", 10)
        joiner = group.backups[0]
        group.away(joiner)
        group.move_the_kept_log_on()
        joiner.resume()
        resumed_us, before = group.world.now_us, group.world.happened["catch-up begins"]
        group.until("it is guarded", lambda: is_guarded(group, joiner.name))
        guarded_us = group.world.now_us
        assert joiner.name not in group.members
        group.until("it is listed", lambda: joiner.name in group.members)
        listed_us = group.world.now_us
        group.ready()
        assert group.world.happened["catch-up begins"] == before + 1
        assert len(group.queue(joiner, "long").entries) == messages  # type: ignore[union-attr]
        if open_transaction:
            assert group.events(joiner) == group.events(group.primary) == 10
        return Joined((listed_us - resumed_us) / 1_000, (listed_us - guarded_us) / 1_000)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkers would look for the messages in the log, where nobody has put them."""
    monkeypatch.setattr(cluster, "Checkers", Blind)
    monkeypatch.setattr(scenario, "watching_queues", nullcontext)


@pytest.mark.usefixtures("unwatched")
def test_an_open_transaction_and_a_long_queue_cost_no_time() -> None:
    short = joined(10, open_transaction=False)
    long = joined(JOINED_MESSAGES, open_transaction=True)
    late_ms = AFTER_THE_GUARD_PER_MESSAGE_MS * JOINED_MESSAGES
    assert 0 < long.guard_ms < long.ready_ms <= long.guard_ms + late_ms
    assert long.ready_ms <= short.ready_ms + late_ms, "the guard's own time has not grown"
    print(f"short {short}, long {long}")


TOUCHED = 10


def exchange(hand: Hand) -> None:
    """Ten messages are taken and ten others come: the queue is as long afterwards as it was before."""
    hand.publish("long", *[b"undecided"] * TOUCHED)
    hand.take("long", TOUCHED)


def close(group: Scenario) -> Order:
    """A transaction whose PREPARE is on every disk, and which its primary cannot decide: it hears no vote."""
    hand = group.hand(transactional=True)
    exchange(hand)
    for backup in group.backups:
        group.cut(backup, group.primary)
    order = hand.commit()
    group.until("closed", lambda: all(group.prepare_durable(node) for node in group.nodes))
    return order


def prepare(group: Scenario) -> None:
    """A branch in doubt."""
    hand = group.hand()
    hand(calls.dtx_select)
    hand(calls.dtx_start, X)
    exchange(hand)
    hand(calls.dtx_end, X)
    assert hand(calls.dtx_prepare, X) == XaStatus.OK
    group.until("all list it", lambda: all(listed_on(node) == {X} for node in group.nodes))


def is_ready(node: SimNode) -> bool:
    return node.ha.status is BrokerStatus.READY


def expected(messages: int, undecided: str) -> Joined:
    """Another broker begins to lead. Of two that it expects one is silent, so nothing is decided while the other comes."""
    group = Scenario(1, brokers=4, min_insync=2, backup_timeout_ms=NEVER_MS, fsync_us=(100, 1_500))
    with group.cluster.knobs.in_force():
        begin(group, messages)
        order = close(group) if undecided == "closed" else None
        if undecided == "in doubt":
            prepare(group)
        successor, comes, silent = group.backups
        group.crash(group.primary)
        group.mend()
        group.cut_both(successor, silent)
        group.promote(successor)
        led_us = group.world.now_us
        primary = successor.ha.primary
        assert primary is not None
        assert not is_ready(comes)
        group.until("the guard is passed", lambda: primary.backups[comes.name].acked >= primary.epoch_offset > 0)
        guard_us = group.world.now_us
        group.until("it is ready", lambda: is_ready(comes))
        ready_us = group.world.now_us
        assert {comes.name, silent.name} < set(group.members)
        assert primary.status is BrokerStatus.RECOVERING
        for node in (successor, comes):
            assert group.has_prepare(node) == (undecided == "closed")
            assert bool(listed_on(node)) == (undecided == "in doubt")
        group.mend()
        group.until("active", lambda: group.cluster.primary() is successor)
        if undecided == "in doubt":
            assert ask(group, calls.dtx_commit) == XaStatus.OK
        for node in (successor, comes, silent):
            group.until("decided", lambda node=node: group.transaction(node) is None)  # type: ignore[misc]
            queue = group.queue(node, "long")
            assert queue is not None
            assert len(queue.entries) == messages
            assert sum(entry.message.content() == b"undecided" for entry in queue.entries.values()) == (
                TOUCHED if undecided else 0
            )
        if order is not None:
            group.until("its client knows that its primary has died", lambda: order.over)
            assert order.lost
        return Joined((ready_us - led_us) / 1_000, (guard_us - led_us) / 1_000)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("undecided", ["closed", "in doubt"])
def test_an_expected_backup_is_ready_whatever_is_undecided(undecided: str) -> None:
    """A thousandth of a millisecond a message would be too much, as where a transaction is open and there are a million."""
    late_ms = AFTER_THE_GUARD_PER_MESSAGE_MS * EXPECTED_MESSAGES
    short = expected(TOUCHED, "")
    long = expected(EXPECTED_MESSAGES, undecided)
    assert long.ready_ms <= long.guard_ms + late_ms
    assert long.guard_ms <= short.guard_ms + late_ms, "the guard's own time has not grown"
    print(f"short {short}, long {long}")
