"""How long attempts to reach Kafka take when the feed is asked to end."""

from __future__ import annotations

import asyncio

import pytest

from understudy.observers.feed.edge.kafka import session as kafka_feed_session
from understudy.observers.feed.edge.kafka.session import Limit


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_feed_session, "HURRY_S", 0.01)


async def amid(limit: Limit) -> None:
    """The feed is asked to end while an attempt hangs."""
    asyncio.get_running_loop().call_soon(limit.hurry)
    await limit.bounded(asyncio.Event().wait())


def test_an_attempt_that_hangs_is_given_up_and_so_are_those_that_follow() -> None:
    limit = Limit()
    with pytest.raises(TimeoutError):
        asyncio.run(amid(limit))
    with pytest.raises(TimeoutError):
        asyncio.run(limit.bounded(asyncio.Event().wait()))


def test_a_feed_that_is_asked_to_end_between_attempts_may_make_one_more() -> None:
    limit = Limit()
    assert asyncio.run(limit.bounded(asyncio.sleep(0, "whole"))) == "whole"
    limit.hurry()
    assert asyncio.run(limit.bounded(asyncio.sleep(0, "last"))) == "last"
    with pytest.raises(TimeoutError):
        asyncio.run(limit.bounded(asyncio.Event().wait()))
