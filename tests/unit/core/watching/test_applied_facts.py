"""Facts of what a resting log has applied: told once, and only if no batch of the journal states them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.watching import applied_facts
from understudy.broker.core.watching.applied_facts import REST_MS, AppliedFacts
from understudy.broker.core.watching.facts import Facts


class Told:
    """A core with a queue and a transactional channel; what it tells of rests."""

    def __init__(self) -> None:
        self.core = Core()
        self.log = self.core.node.state.log
        self.log.kept.limit_bytes = 0  # as of a broker alone
        self.facts = Facts(lambda: 7)
        self.facts.follow(self.log)
        self.applied = AppliedFacts(self.core.node.state, self.facts)
        self.now_ms = 0
        self.client = self.core.client()
        self.core.queue(self.client, "q")
        self.client.method(TX_SELECT)

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            self.client.send(publish("q", b"x"), encode_method(1, TX_COMMIT))
            self.core.sync()
        self.core.sync()

    def after(self, duration_ms: int) -> list[dict[str, Any]]:
        """Facts ``applied`` that are told within ``duration_ms``."""
        for _ in range(duration_ms // 50):
            self.now_ms += 50
            self.applied.look(self.now_ms)
        return [each.fields for each in self.facts.take()[0] if each.name == "applied"]


def test_the_last_transaction_before_a_rest_is_told_once() -> None:
    told = Told()
    told.commit(3)
    log = told.log
    assert log.stated < log.applied == log.stable == log.end
    assert told.after(REST_MS) == [], "it does not rest yet"
    *transactions, position = told.after(REST_MS)
    assert position == {"upto": log.end, "stable": log.end}
    assert [each["tx"] for each in transactions] == ["1.3"], "of the others a batch says it"
    assert (transactions[0]["csn"], transactions[0]["stable"]) == (3, log.end)
    assert log.stated < transactions[0]["decided_at"] <= log.end
    assert transactions[0]["upto"] < transactions[0]["decided_at"]
    assert told.after(10_000) == []
    told.commit()
    *transactions, position = told.after(2 * REST_MS)
    assert [each["tx"] for each in transactions] == ["1.4"]


def test_a_busy_log_tells_nothing() -> None:
    told = Told()
    for _ in range(20):
        told.commit()
        assert told.after(REST_MS - 50) == []


def test_what_is_kept_for_a_rest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_facts, "RECENT", 2)
    told = Told()
    told.commit(9)
    assert len(told.applied._recent) == 2
    assert len(told.after(2 * REST_MS)) == 2
    assert not told.applied._recent


def test_a_log_that_rests_unstable_tells_nothing() -> None:
    """Nothing is applied that its journal does not state."""
    told = Told()
    told.commit()
    told.after(2 * REST_MS)
    told.client.send(publish("q", b"x"), encode_method(1, TX_COMMIT))
    log = told.log
    assert log.applied == log.stated < log.end
    assert told.after(2 * REST_MS) == []
