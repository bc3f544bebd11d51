"""Reading the queues at the end: until the brokers agree, or until nothing can change any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import attrs
import pytest

from understudy.client.runs.broker_group import BrokerView
from understudy.client.stress import evidence
from understudy.client.stress.evidence import Evidence
from understudy.client.stress.workloads.by_name import WORKLOADS
from understudy.client.verdicts import BrokerContent, Message

QUEUES = ["q"]


def read(*counts: int) -> Evidence:
    """A client finds ``counts[0]`` messages, and the brokers state the others."""
    client, *brokers = (
        BrokerContent.of(f"b{number}", {"q": [Message(f"m{each}", "q") for each in range(count)]})
        for number, count in enumerate(counts)
    )
    return Evidence(content=client, brokers=brokers)


SAME, DIFFERENT, UNREAD = read(2, 2, 2), read(2, 2, 1), Evidence(unread="no answer")


class FakeWatch:
    """Brokers that are ready or not, and the clients of the primary."""

    def __init__(self, *, ready: bool = True, sockets: int = 0) -> None:
        self._ready = ready
        self._sockets = sockets
        self.primary = BrokerView(broker="b1", status="active")

    def all_ready(self) -> bool:
        return self._ready

    async def page(self, broker: str, path: str) -> dict[str, Any]:
        assert (broker, path) == ("b1", "/status")
        return {"clients": {"sockets": self._sockets}}


def gathered(
    monkeypatch: pytest.MonkeyPatch, readings: Iterator[Evidence], watch: FakeWatch, reading_s: float = 0.0
) -> tuple[Evidence, int]:
    """The result, and how many readings it took, half a second apart; STILL_S is 5 s and SETTLE_S 30 s."""
    clock = [0.0]
    count = 0

    async def gather_once(*_: object) -> Evidence:
        nonlocal count
        count += 1
        clock[0] += reading_s
        return next(readings)

    async def sleep(pause_s: float) -> None:
        clock[0] += pause_s

    monkeypatch.setattr(evidence, "_gather_once", gather_once)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return asyncio.run(evidence.gather(None, QUEUES, watch)), count  # type: ignore[arg-type]


def test_brokers_that_agree_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(monkeypatch, repeat(SAME), FakeWatch()) == (SAME, 1)


def test_what_was_given_back_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = chain(repeat(DIFFERENT, 9), [SAME])
    assert gathered(monkeypatch, readings, FakeWatch()) == (SAME, 10)
    assert gathered(monkeypatch, chain(repeat(DIFFERENT, 55), [SAME]), FakeWatch(sockets=1)) == (SAME, 56)


def test_a_difference_at_rest_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(monkeypatch, repeat(DIFFERENT), FakeWatch()) == (DIFFERENT, 11)


@pytest.mark.parametrize("watch", [FakeWatch(ready=False), FakeWatch(sockets=1)])
def test_while_something_may_change_the_whole_time_is_used(monkeypatch: pytest.MonkeyPatch, watch: FakeWatch) -> None:
    assert gathered(monkeypatch, repeat(DIFFERENT), watch) == (DIFFERENT, 62)


def test_what_changes_or_cannot_be_read_is_not_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = chain.from_iterable(repeat((DIFFERENT, read(2, 1, 2))))
    assert gathered(monkeypatch, turns, FakeWatch())[1] == 62
    assert gathered(monkeypatch, repeat(UNREAD), FakeWatch())[1] == 62


def test_readings_that_take_long_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a reader holds do not expire meanwhile: they are where they belong at the next reading."""
    assert gathered(monkeypatch, iter([DIFFERENT, read(2, 1, 2), SAME]), FakeWatch(), reading_s=40.0) == (SAME, 3)
    assert gathered(monkeypatch, repeat(UNREAD), FakeWatch(), reading_s=40.0)[1] == 3


class PassingConnection:
    """A queue whose messages leave it one by one, whenever their number is asked for."""

    def __init__(self, messages: int) -> None:
        self.messages = messages

    def declare(self, queue: str, arguments: object) -> int:
        assert (queue, arguments) == ("q", {"x-message-ttl": 200})
        self.messages = max(self.messages - 1, 0)
        return self.messages


@pytest.mark.parametrize(("messages", "left"), [(3, 0), (1000, 700)])
def test_messages_that_are_due_elsewhere_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, messages: int, left: int
) -> None:
    clock = [0.0]

    def sleep(pause_s: float) -> None:
        clock[0] += pause_s

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    workload = attrs.evolve(WORKLOADS["bank"], queues=QUEUES, passing=QUEUES, arguments={"q": {"x-message-ttl": 200}})
    connection = PassingConnection(messages)
    evidence._await_passing(connection, workload)  # type: ignore[arg-type]
    assert connection.messages == pytest.approx(left, abs=3)
