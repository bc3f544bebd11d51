"""The demo's conclusions from the cluster's lines and from the brokers' pages, without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from understudy.client.runs.broker_group import BrokerGroup, BrokerView, GroupError
from understudy.client.runs.digests import agree, digests_of
from understudy.client.verdicts import BrokerContent, QueueContent

pytestmark = pytest.mark.asyncio


def change(
    broker: str, status: str, *, role: str = "backup", pid: int = 1, epoch: int = 1, in_sync: str = ""
) -> dict[str, Any]:
    return {
        "time": 0.0,
        "event": "status",
        "broker": broker,
        "pid": pid,
        "port": 5672,
        "role": role,
        "status": status,
        "epoch": epoch,
        "primary": "b1",
        "in_sync": in_sync.split(),
        "blockers": [],
    }


def ended(broker: str, code: int, *, restarts: bool = True) -> dict[str, Any]:
    return {
        "time": 0.0,
        "event": "exit",
        "broker": broker,
        "pid": None,
        "status": "down",
        "code": code,
        "restarts": restarts,
    }


class Told:
    """A group that is told lines by hand."""

    def __init__(self, folder: Path) -> None:
        self.views: list[BrokerView] = []
        self.group = BrokerGroup(folder / "cluster", 5672, self.views.append)

    def tell(self, *changes: dict[str, Any]) -> BrokerGroup:
        for each in changes:
            self.group._take(each)
        return self.group


@pytest_asyncio.fixture
async def told(tmp_path: Path) -> Told:
    """Three brokers, b1 leads, all are ready."""
    told = Told(tmp_path)
    told.tell(
        change("b1", "active", role="primary", pid=11, in_sync="b1 b2 b3"),
        change("b2", "ready", pid=12),
        change("b3", "ready", pid=13),
    )
    return told


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    return sent


async def test_all_are_ready(told: Told) -> None:
    assert told.group.all_ready
    assert told.group.primary is not None
    assert told.group.primary.broker == "b1"


@pytest.mark.parametrize(
    "spoiler",
    [
        change("b2", "catchup", pid=12),
        change("b1", "recovering", role="primary", pid=11, in_sync="b1 b2 b3"),
        change("b1", "active", role="primary", pid=11, in_sync="b1 b2"),
    ],
)
async def test_not_all_are_ready(told: Told, spoiler: dict[str, Any]) -> None:
    assert not told.tell(spoiler).all_ready


async def test_of_two_that_think_they_lead_the_higher_epoch_does(told: Told) -> None:
    group = told.tell(change("b2", "active", role="primary", pid=12, epoch=2))
    assert group.primary is not None
    assert group.primary.broker == "b2"


async def test_a_kill_and_what_the_dead_said_before(told: Told, signals: list[tuple[int, int]]) -> None:
    group = told.group
    group.kill(group.views["b1"])
    assert signals == [(11, 9)]
    assert group.views["b1"].status == "down"
    told.tell(change("b1", "active", role="primary", pid=11, in_sync="b1 b2 b3"))
    assert group.primary is None, "a line that was in the pipe"
    told.tell(ended("b1", -9), change("b1", "joining", pid=21))
    assert group.views["b1"].pid == 21
    assert not group.unexpected


@pytest.mark.parametrize(("code", "restarts"), [(70, True), (74, False), (0, False), (-9, True), (-11, True)])
async def test_an_end_that_nobody_asked_for_is_noted(told: Told, code: int, restarts: bool) -> None:
    group = told.tell(ended("b2", code, restarts=restarts))
    assert group.unexpected == {f"b2 ended by itself, code {code}": 1}


async def test_after_the_stop_only_bad_ends_are_noted(told: Told) -> None:
    told.group._stopping = True
    told.tell(ended("b1", 0, restarts=False), ended("b2", 0, restarts=False), ended("b3", -9, restarts=False))
    assert told.group.unexpected == {"b3 ended when it was asked to stop, code -9": 1}


async def test_waiting_in_vain_says_for_what(told: Told) -> None:
    with pytest.raises(GroupError, match="four brokers; b1 active; b2 ready; b3 ready"):
        await told.group.wait_until("four brokers", lambda: False, 0.01)


async def test_a_broker_without_a_page(told: Told) -> None:
    with pytest.raises(GroupError, match="b1 does not answer GET /digest"):
        await told.group.page("b1", "/digest")


# -- digests ------------------------------------------------------------------------------------------------------------


def page(broker: str, **queues: tuple[int, str]) -> BrokerContent:
    listed = [
        {"vhost": "/", "name": name, "messages": count, "digest": digest} for name, (count, digest) in queues.items()
    ]
    return digests_of(broker, {"broker": broker, "queues": listed})


async def test_a_page_is_read() -> None:
    assert page("b1", a=(1, "x")).queues == {"a": QueueContent(count=1, digest="x")}


async def test_digests_agree() -> None:
    assert agree([page(broker, a=(1, "x"), b=(0, "y")) for broker in ("b1", "b2", "b3")])


async def test_one_broker_holds_something_else() -> None:
    assert not agree([page("b1", a=(1, "x")), page("b2", a=(1, "z")), page("b3", a=(1, "x"))])


async def test_no_answer_is_no_agreement() -> None:
    assert not agree([])


async def test_a_page_of_another_form_is_refused() -> None:
    with pytest.raises(GroupError, match="not as it should be"):
        digests_of("b1", {"queues": [{"name": "a"}]})
