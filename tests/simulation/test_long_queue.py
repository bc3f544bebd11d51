"""A queue of a million messages, an open transaction, and a backup that comes back by catch-up: it is ready at once (H-40).

What this shows is that nothing of the conversation depends on the length or waits for the transaction; the time that a real machine
takes to look at a million ids is `stress/test_blocking_transaction.py`'s.
"""

from __future__ import annotations

from contextlib import nullcontext

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


def ready_after_ms(messages: int, *, open_transaction: bool) -> float:
    """From when the backup goes on until it is listed, in simulated time."""
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
        group.until("it is listed", lambda: joiner.name in group.members)
        took_ms = (group.world.now_us - resumed_us) / 1_000
        group.ready()
        assert group.world.happened["catch-up begins"] == before + 1
        assert len(group.queue(joiner, "long").entries) == messages  # type: ignore[union-attr]
        if open_transaction:
            assert group.events(joiner) == group.events(group.primary) == 10
        return took_ms


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkers would look for the messages in the log, where nobody has put them."""
    monkeypatch.setattr(cluster, "Checkers", Blind)
    monkeypatch.setattr(scenario, "watching_queues", nullcontext)


@pytest.mark.usefixtures("unwatched")
def test_an_open_transaction_and_a_long_queue_cost_no_time() -> None:
    guard_ms = ready_after_ms(10, open_transaction=False)
    assert ready_after_ms(MESSAGES, open_transaction=True) < guard_ms + AFTER_THE_GUARD_MS
