"""The pages that say which branches of distributed transactions are in doubt, and what the queues hold."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.core.core_kit import Core
from understudy.broker.config import parse
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.plugin_api.pages import Making, Page
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process.garbage import CollectorStatistics
from understudy.broker.server.process.heap import Heap
from understudy.broker.server.turn.node_driver import NodeDriver
from understudy.broker.server.web import slices, status_report
from understudy.broker.server.web.status_report import StatusReport
from understudy.broker.server.web.time_text import time_text
from understudy.broker.transactions.dtx_branch import Completion, DtxBranch
from understudy.broker.transactions.in_doubt import COMMITTED, PREPARED, InDoubt
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.broker.transactions.xid import Xid

NOW_MS = 1_795_000_000_000


def branch(global_id: bytes, **more: Any) -> InDoubt:
    given: dict[str, Any] = {
        "vhost": "/",
        "xid": Xid(7, global_id, b"\xff\x00"),
        "state": PREPARED,
        "since_ms": NOW_MS - 61_500,
        "enqueues": 2,
        "dequeues": 1,
        "queues": ("a", "b"),
        "queues_left_out": 3,
    } | more
    return InDoubt(**given)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
    return Core()


class NoStatistics:
    def statistics(self) -> CollectorStatistics:
        return CollectorStatistics(
            young_looks=0, full_looks=0, unseen_freezes=0, found=0, longest_ms=0.0, total_ms=0.0, ends=0, blocks=0
        )


def report_of(core: Core | None) -> StatusReport:
    report = StatusReport(parse('[broker]\nid = "b1"'), {"amqp": 1, "http": 2}, Plugins())
    node = core.node if core is not None else None
    driver = SimpleNamespace(
        node=node, spill=None, bodies=None, cores=1, sessions=[], carriage=None, journal=None, journal_driver=None
    )
    driver.expiry_clock = core.node.broker.clock.expiry_clock if core is not None else ExpiryClock()
    driver.garbage, driver.heap = NoStatistics(), Heap(None)
    report.driver = cast("NodeDriver", driver)
    return report


def fill(core: Core) -> None:
    """A queue of several slices."""
    client = core.client()
    core.queue(client, "q")
    for _ in range(40):
        client.publish("q", b"x" * 100_000)
    core.sync()


def put(core: Core, monkeypatch: pytest.MonkeyPatch, *branches: InDoubt) -> None:
    monkeypatch.setattr("understudy.broker.server.web.status_report.branches_in_doubt", lambda state: iter(branches))


def shown(making: Page | Making) -> Any:
    """The object of a page that is made in slices."""

    async def made() -> Page:
        assert not isinstance(making, Page)
        return await making

    body = asyncio.run(made()).body
    return json.loads(body) if isinstance(body, bytes) else body


def test_branches_in_doubt(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    completed = branch(b"h", state=COMMITTED, since_ms=NOW_MS + 5, enqueues=0, dequeues=0, queues=(), queues_left_out=0)
    put(core, monkeypatch, branch(b"order 17"), completed)
    assert shown(report_of(core).pages()["/dtx"]({})) == {
        "broker": "b1",
        "status": "standalone",
        "primary": "b1",
        "in_doubt": [
            {
                "vhost": "/",
                "xid": "7:h:%FF%00",
                "format_id": 7,
                "global_id_hex": "68",
                "branch_id_hex": "ff00",
                "state": "committed",
                "since": "2026-11-18T11:06:40.005Z",
                "age_s": 0,
                "enqueues": 0,
                "dequeues": 0,
                "queues": [],
                "queues_left_out": 0,
            },
            {
                "vhost": "/",
                "xid": "7:order%2017:%FF%00",
                "format_id": 7,
                "global_id_hex": "6f72646572203137",
                "branch_id_hex": "ff00",
                "state": "prepared",
                "since": "2026-11-18T11:05:38.500Z",
                "age_s": 61.5,
                "enqueues": 2,
                "dequeues": 1,
                "queues": ["a", "b"],
                "queues_left_out": 3,
            },
        ],
        "left_out": 0,
    }


def test_more_than_a_page_holds(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_report, "MAX_BRANCHES", 2)
    put(core, monkeypatch, *(branch(bytes((number,))) for number in range(1, 6)))
    page = shown(report_of(core).dtx({}))
    assert [row["global_id_hex"] for row in page["in_doubt"]] == ["01", "02"]
    assert page["left_out"] == 3


def test_while_the_core_is_recovered_nobody_knows() -> None:
    report = report_of(None)
    assert shown(report.dtx({})) == shown(report.queues({})) == {"error": "the core is being recovered"}
    report.driver = None
    assert shown(report.dtx({})) == {"error": "the core is being recovered"}
    assert shown(report.status({}))["blockers"] == ["the journal is being read"]


def test_the_status_counts_them(core: Core) -> None:
    state = core.node.state
    assert shown(report_of(core).status({}))["transactions"] == {
        "open": 0,
        "undecided": 0,
        "in_doubt": 0,
        "completed": 0,
    }
    for tx_id in (1, 2):
        tx = state.transactions[tx_id] = TxBuffer(tx_id)
        tx.branch = cast("DtxBranch", SimpleNamespace(offset=0))
    state.applying.completions["/", Xid(1, b"g", b"b")] = Completion(committed=True, offset=1, time_ms=1)
    counts = shown(report_of(core).status({}))["transactions"]
    assert (counts["open"], counts["in_doubt"], counts["completed"]) == (0, 2, 1)


def test_the_status_shows_a_jump_of_the_wall_clock(core: Core) -> None:
    broker = core.broker
    quiet = shown(report_of(core).status({}))["expiry_clock"]
    assert quiet == {"behind_wall_clock_s": 0, "jumps": 0, "latest_jump": None}
    expected_ms = broker.clock.wall_ms + 1_000
    core.node.tick(broker.clock.now_ms + 1_000, expected_ms + 7_200_000)
    jumped = shown(report_of(core).status({}))["expiry_clock"]
    assert jumped["latest_jump"] == {"old": time_text(expected_ms), "new": time_text(expected_ms + 7_200_000)}
    assert (jumped["jumps"], jumped["behind_wall_clock_s"]) == (1, 7_199)
    core.pass_ms(7_200_000)
    assert shown(report_of(core).status({}))["expiry_clock"]["behind_wall_clock_s"] == 0


@pytest.mark.parametrize("wrong", [{"state": "committed by hand"}, {"queues": tuple(map(str, range(21)))}])
def test_a_row_holds_what_it_says(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        branch(b"g", **wrong)


@pytest.mark.asyncio
async def test_while_queues_are_digested_others_have_their_turns(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass over two gigabytes kept the loop for ten seconds: links were lost, and one broker after the other took over."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)  # a step a slice, however fast this machine is
    fill(core)
    report = report_of(core)
    first, second = (asyncio.create_task(report.digest({})) for _ in range(2))
    turns = 0
    while not first.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 4
    assert not second.done(), "one at a time"
    assert await first == await second
    status, body, _ = first.result()
    assert isinstance(body, bytes)
    page = json.loads(body)
    assert (status, page["broker"], page["applied"]) == (200, "b1", core.node.state.log.applied)
    assert [(queue["name"], queue["messages"]) for queue in page["queues"]] == [("q", 40)]


@pytest.mark.asyncio
async def test_while_the_core_is_recovered_nothing_is_digested() -> None:
    page = await report_of(None).digest({})
    assert (page.status, page.body) == (503, {"error": "the core is being recovered"})


@pytest.mark.asyncio
async def test_so_many_wait_for_a_digest_and_no_more(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_report, "MAX_DIGESTS", 2)
    fill(core)
    report = report_of(core)
    pages = await asyncio.gather(*(report.digest({}) for _ in range(4)))
    assert [page.status for page in pages] == [200, 200, 503, 503]
    assert pages[3].body == {"error": "2 others wait for a digest"}
    assert (await report.digest({})).status == 200
