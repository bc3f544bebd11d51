"""A queue of a million messages, an open transaction, and a backup that comes back by catch-up: it is ready at once (H-40).

What this shows is that nothing of the conversation depends on the length or waits for the transaction; the time that a real machine
takes to look at a million ids is `stress/test_blocking_transaction.py`'s. The guard's time ends with the change of the set.
"""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest

from tests.simulation import calls, cluster, scenario
from tests.simulation.scenario import Scenario
from tests.simulation.test_trace_hash import Blind
from understudy.broker.message import Message

MESSAGES = 1_000_000
AFTER_THE_GUARD_MS = 1_000


def fill(group: Scenario, messages: int) -> None:
    """Every broker holds the same messages, as if they had been published one after the other."""
    message = Message("", "long", b"\x00\x00", b"x", True)
    lead = group.queue(group.primary, "long")
    assert lead is not None
    message.offset = group.primary.node.state.log.applied
    ids = [lead.next_id() for _ in range(messages)]
    for node in group.nodes:
        queue = group.queue(node, "long")
        assert queue is not None
        for entry_id in ids:
            queue.enqueue(entry_id, message, 0)


@attrs.frozen
class Joined:
    """Of the backup that came back, in simulated time.

    Attributes:
        ready_ms: from when it goes on until it is listed.
        guard_ms: so much of that it was guarded.
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
        group.start()
        setup = group.hand()
        setup(calls.declare, "long")
        group.run_ms(100)
        fill(group, messages)
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
    long = joined(MESSAGES, open_transaction=True)
    assert 0 < long.guard_ms < long.ready_ms <= long.guard_ms + AFTER_THE_GUARD_MS
    assert long.ready_ms <= short.ready_ms + AFTER_THE_GUARD_MS, "the guard's own time has not grown"
    print(f"short {short}, long {long}")
