"""Pages /status and /queues of many queues: their content, their slices, and what they cost the loop."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.unit.core.core_kit import Core
from tests.unit.core.moving.speaker import Speaker
from tests.unit.server.fakes import FakeTransport
from tests.unit.server.web.test_status_report import report_of
from understudy.broker.amqp.methods import QUEUE_DELETE
from understudy.broker.core.topology.registry import Registry
from understudy.broker.plugin_api.pages import BadQueryError, Page, Steps
from understudy.broker.server.web import queue_survey
from understudy.broker.server.web.http_server import HttpSession
from understudy.broker.server.web.slices import Slices, sorted_in_steps
from understudy.broker.server.web.status_report import MAX_QUEUES, STATUS_QUEUES, StatusReport

pytestmark = pytest.mark.asyncio

MANY = 5_000


def core_with(count: int) -> Core:
    core = Core()
    client = core.client()
    for number in range(count):
        core.queue(client, f"q{number:05}")
        if number % 500 == 0:
            core.sync()
    core.sync()
    return core


async def body_of(making: Awaitable[Page]) -> Any:
    body = (await making).body
    return json.loads(body) if isinstance(body, bytes) else body


async def follow(report: StatusReport, link: str | None) -> list[str]:
    """The names on this page of /queues and on all that come after it."""
    names: list[str] = []
    while link is not None:
        parts = urlsplit(link)
        assert parts.path == "/queues"
        page = await body_of(report.queues(dict(parse_qsl(parts.query, errors="surrogateescape"))))
        names += [row["name"] for row in page["queues"]]
        link = page["queues_next"]
    return names


async def test_the_pages_have_every_queue_once_and_in_order() -> None:
    core = core_with(STATUS_QUEUES + 30)
    client = core.client()
    odd = ["a b&c=d/%2F", "\N{SNOWMAN}"]
    for name in odd:
        core.queue(client, name)
    core.sync()
    client.publish("q00007", b"x")
    core.sync()
    report = report_of(core)
    status = await body_of(report.status({}))
    first = [row["name"] for row in status["queues"]]
    assert len(first) == STATUS_QUEUES
    assert status["queues_left_out"] == 32
    totals = {"ready": 1, "acquired": 0, "withheld": 0, "uncommitted": 0, "consumers": 0}
    assert status["queue_totals"] == {"queues": 132, **totals}
    everything = sorted([f"q{number:05}" for number in range(130)] + odd)
    assert first + await follow(report, status["queues_next"]) == everything
    assert await follow(report, "/queues?limit=7") == everything
    assert await follow(report, "/queues?vhost=%2F&after=q00126&limit=2") == ["q00127", "q00128", "q00129", odd[1]]


async def test_a_small_broker_has_all_on_one_page() -> None:
    status = await body_of(report_of(core_with(3)).status({}))
    assert [row["name"] for row in status["queues"]] == ["q00000", "q00001", "q00002"]
    assert (status["queues_left_out"], status["queues_next"]) == (0, None)
    assert set(status["queues"][0]) == {
        *(
            "vhost",
            "name",
            "ready",
            "acquired",
            "withheld",
            "uncommitted",
            "consumers",
            "enqueued",
            "dequeued",
            "durable",
        ),
        *("replicate", "policy", "active_consumer"),
    }


async def test_a_message_that_is_withheld_is_told_of() -> None:
    core = core_with(1)
    speaker = Speaker(core)
    speaker.declare("late", {"x-delayed-publish": True})
    speaker.publish("late", headers={"x-delay": 60_000})
    status = await body_of(report_of(core).status({}))
    (late,) = (row for row in status["queues"] if row["name"] == "late")
    assert (late["ready"], late["withheld"]) == (0, 1)
    assert status["queue_totals"]["withheld"] == 1


async def test_queues_that_come_and_go_between_two_pages() -> None:
    core = core_with(20)
    client = core.client()
    report = report_of(core)
    link = "/queues?limit=10"
    first = await body_of(report.queues({"limit": "10"}))
    client.method(QUEUE_DELETE, "q00009", False, False, False)
    core.sync()
    assert client.heard() == ["queue.delete-ok"]
    core.queue(client, "q00012b")
    core.sync()
    rest = await follow(report, first["queues_next"])
    assert "q00012b" in rest
    assert rest[0] == "q00010"
    assert "q00009" not in await follow(report, link)


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "x"}, {"limit": "9" * 5_000}, {"limit": str(MAX_QUEUES + 1)}, {"offset": "1"}]
)
async def test_a_query_that_will_not_do_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(BadQueryError, match=next(iter(query))):
        await report_of(core_with(1)).queues(query)


async def test_the_sums_over_many_queues_are_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_survey, "FEW", 5)
    core = core_with(10)
    client = core.client()
    report = report_of(core)
    assert (await body_of(report.status({})))["queue_totals"]["ready"] == 0
    client.publish("q00003", b"x")
    core.queue(client, "zz")
    core.sync()
    status = await body_of(report.status({}))
    assert status["queue_totals"]["ready"] == 0, "the survey is not a second old"
    assert status["queues"][3]["ready"] == 1, "a row is of the moment"
    monkeypatch.setattr(queue_survey, "AGE_S", 0.0)
    assert (await body_of(report.status({})))["queue_totals"] | {"consumers": 0} == {
        "queues": 11,
        "ready": 1,
        "acquired": 0,
        "withheld": 0,
        "uncommitted": 0,
        "consumers": 0,
    }


async def test_a_registry_that_is_made_anew_is_looked_at_anew() -> None:
    """As a backup's is with each cut of its log. It showed the queues of its first registry, none, from then on."""
    core = core_with(3)
    report = report_of(core)
    assert (await body_of(report.status({})))["queue_totals"]["queues"] == 3
    core.node.state.topology.rebuild_registry()
    core.queue(core.client(), "q3")
    core.sync()
    status = await body_of(report.status({}))
    assert [row["name"] for row in status["queues"]] == ["q00000", "q00001", "q00002", "q3"]
    assert status["queue_totals"]["queues"] == 4


async def test_a_survey_whose_virtual_host_is_gone_shows_no_queue_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_survey, "FEW", -1)
    core = core_with(3)
    report = report_of(core)
    assert (await body_of(report.status({})))["queue_totals"]["queues"] == 3
    core.node.state.topology.registry = Registry()
    for path, query in (("/status", {}), ("/queues", {"vhost": "/", "after": "q00000"})):
        page = await body_of(report.pages()[path](query))  # type: ignore[arg-type]
        assert (page["queues"], page["queue_totals"]["queues"]) == ([], 3), "the sums are not a second old"


class Asker:
    """Asks for a page as a poller does, and measures the CPU time of the loop."""

    def __init__(self, report: StatusReport) -> None:
        self._pages = report.pages()

    async def longest_hold_s(self, path: str) -> float:
        """The most that one pass of the loop takes while the page is made."""
        began = time.thread_time()
        transport = self._ask(path)
        longest = time.thread_time() - began
        while not transport.written:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
        return longest

    async def takes_s(self, path: str) -> float:
        """Processor seconds that a request takes in all."""
        began = time.thread_time()
        transport = self._ask(path)
        while not transport.written:  # noqa: ASYNC110  # a transport tells nobody
            await asyncio.sleep(0.002)
        return time.thread_time() - began

    def _ask(self, path: str) -> FakeTransport:
        session, transport = HttpSession(self._pages, lambda: None), FakeTransport()
        session.connection_made(transport)
        session.data_received(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return transport


async def test_no_page_of_many_queues_holds_the_loop() -> None:
    """A request for /status at 5,000 queues took 25 ms in one go. A slice is a millisecond, or one step if that is longer."""
    asker = Asker(report_of(core_with(MANY)))
    gc.collect()
    gc.disable()  # a broker looks for garbage when it has nothing to do
    try:
        for path in ("/status", "/queues", "/digest", "/dtx"):
            longest_s = max([await asker.longest_hold_s(path) for _ in range(3)])
            each_s = sum([await asker.takes_s(path) for _ in range(5)]) / 5
            print(f"{path}: {longest_s * 1e3:.1f} ms of CPU at most in one go, {each_s * 1e3:.2f} ms a request")
            assert longest_s < 0.02, "it is about 1 ms, of /digest 3 ms"
    finally:
        gc.enable()


async def test_askers_take_turns_and_leave_the_loop_most_of_its_time() -> None:
    order: list[str] = []

    def work(name: str) -> Steps[str]:
        for _ in range(3):
            ends = time.perf_counter() + 0.002
            while time.perf_counter() < ends:
                pass
            order.append(name)
            yield
        return name

    slices = Slices()
    began = time.perf_counter()
    await asyncio.gather(slices.run(work("a")), slices.run(work("b")))
    assert order == ["a", "b"] * 3
    assert time.perf_counter() - began > 0.03, "six slices of 2 ms, and rests of 6 ms"


async def test_who_has_gone_is_worked_for_no_longer() -> None:
    ended: list[str] = []

    def endless() -> Steps[None]:
        try:
            while True:
                yield
        finally:
            ended.append("ended")

    slices = Slices()
    task = asyncio.create_task(slices.run(endless()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]
    assert await slices.run(sorted_in_steps([3, 1, 2] * 200, lambda each: each)) == sorted([3, 1, 2] * 200)
