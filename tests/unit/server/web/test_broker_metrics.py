"""The page ``/metrics`` of a core, and of a process without one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from tests.unit.server.web.test_status_report import report_of
from understudy.broker.amqp.methods import (
    BASIC_GET,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.limits import Limits
from understudy.broker.core.turn.work_refusals import DISK
from understudy.broker.plugin_api.pages import Making, Page
from understudy.broker.server.web import broker_metrics
from understudy.broker.server.web.status_report import StatusReport


def shown(report: StatusReport, **query: str) -> dict[str, float]:
    """The series of the page, by name and labels."""

    async def made() -> bytes:
        making = report.pages()["/metrics"](query)
        page = await cast("Making", making)
        assert isinstance(page, Page)
        assert isinstance(page.body, bytes)
        return page.body

    lines = asyncio.run(made()).decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    series = {name: float(value) for name, _, value in pairs}
    assert len(series) == len(pairs), "each series stands there once"
    return series


def report(core: Core | None) -> StatusReport:
    made = report_of(core)
    cast("Any", made.driver).turns = SimpleNamespace(commit_times=None)
    return made


def get(core: Core, client: Client, number: int) -> None:
    client.method(BASIC_GET, "q", True, channel=number)
    core.sync()
    client.heard()


def test_a_process_between_two_cores_shows_itself() -> None:
    series = shown(report(None))
    assert series["understudy_ready"] == 0
    assert series["process_resident_memory_bytes"] > 0
    assert "understudy_queues" not in series


def test_deliveries_of_channels_that_ended_are_counted_on() -> None:
    core = Core()
    page = report(core)
    client = core.client(channels=2)
    core.queue(client, "q")
    for _ in range(3):
        client.publish("q", b"x")
    core.sync()
    for number in (1, 2, 2):
        get(core, client, number)
    assert shown(page)["understudy_messages_delivered_total"] == 3
    assert shown(page)["understudy_channels"] == 2
    client.method(CHANNEL_CLOSE, 200, "", 0, 0, channel=2)
    core.sync()
    assert shown(page)["understudy_messages_delivered_total"] == 3
    assert shown(page)["understudy_channels"] == 1


def test_a_channel_that_ends_during_a_scrape_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """To Prometheus a counter that falls has begun anew: all of it would count once more."""
    monkeypatch.setattr(broker_metrics, "CHUNK", 1)
    core = Core()
    metrics = report(core)._metrics._broker
    clients = [core.client() for _ in range(2)]
    core.queue(clients[0], "q")
    for client in clients:
        client.publish("q", b"x")
        core.sync()
        get(core, client, 1)

    def delivered(close: bool) -> float:
        steps = metrics(False)
        try:
            for number in range(1_000):
                next(steps)
                if close and number == 3:  # one connection has been looked at
                    for client in clients:
                        client.connection.lost("gone")
        except StopIteration as done:
            [family] = [each for each in done.value if each.name == "understudy_messages_delivered_total"]
            return cast("float", family.samples[0].value)
        raise AssertionError("no end")

    assert delivered(close=False) == 2
    assert delivered(close=True) == 2
    assert delivered(close=False) == 2


def test_confirms_are_counted_by_the_acks_that_tell_them() -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(CONFIRM_SELECT, False)
    for _ in range(3):
        client.publish("q", b"x")
    assert shown(report(core))["understudy_messages_confirmed_total"] == 0
    core.sync()
    series = shown(report(core))
    assert (series["understudy_messages_confirmed_total"], series["understudy_messages_published_total"]) == (3, 3)


def test_causes_of_refusing_work_are_there_before_they_come() -> None:
    core = Core()
    assert shown(report(core))['understudy_work_refused{cause="disk"}'] == 0
    core.broker.refuse_work(DISK, "full")
    core.broker.refuse_work("in-sync set", "small")
    series = shown(report(core))
    assert series['understudy_work_refused{cause="disk"}'] == 1
    assert series['understudy_work_refused{cause="in-sync set"}'] == 1
    assert series['understudy_work_refused{cause="memory"}'] == 0


def refusals(core: Core) -> dict[str, float]:
    """By reason, without those that have not come yet."""
    found = shown(report(core))
    return {
        series.split('"')[1]: value
        for series, value in found.items()
        if series.startswith("understudy_refused_total") and value
    }


def test_each_refusal_is_counted_by_its_reason() -> None:
    """The gauge says that work is refused now; a scrape later nobody would know that it was."""
    core = Core(Limits(message_bytes=1024, connections=2, tx_bytes=2000))
    confirming, transacting = core.client(), core.client()
    core.queue(confirming, "q")
    confirming.method(CONFIRM_SELECT, False)
    transacting.method(TX_SELECT)
    transacting.publish("q", b"x")
    assert refusals(core) == {}
    core.broker.refuse_work(DISK, "full")
    for _ in range(2):
        confirming.publish("q", b"x")
    transacting.method(TX_COMMIT)
    core.broker.refuse_work(DISK, "")
    assert refusals(core) == {"disk": 3}
    core.broker.refuse_work("in-sync set", "small")
    transacting.send(encode_method(2, CHANNEL_OPEN), publish("q", b"x", channel=2), publish("q", b"x", channel=2))
    core.broker.refuse_work("in-sync set", "")
    assert refusals(core) == {"disk": 3, "in-sync set": 1}, "a connection is blocked once"
    assert transacting.heard()[-2:] == ["connection.blocked", "connection.unblocked"]
    confirming.publish("q", b"x" * 1025)
    transacting.send(encode_method(3, CHANNEL_OPEN), encode_method(3, TX_SELECT))
    for _ in range(9):
        transacting.publish("q", b"x" * 100, channel=3)
    with pytest.raises(AssertionError):
        core.client()
    more = {"message size": 1, "transaction size": 1, "connections": 1}
    assert refusals(core) == {"disk": 3, "in-sync set": 1} | more
    assert shown(report(core))['understudy_refused_total{reason="memory"}'] == 0


def test_a_nacked_publish_is_not_counted_as_confirmed() -> None:
    """Nacked publishes used to be counted with the next one that was confirmed."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.method(CONFIRM_SELECT, False)
    client.publish("q", b"x")
    core.broker.refuse_work(DISK, "full")
    for _ in range(2):
        client.publish("q", b"x")
    core.broker.refuse_work(DISK, "")
    client.publish("q", b"x")
    core.sync()
    assert client.heard() == ["confirm.select-ok", "basic.nack", "basic.nack", "basic.ack"]
    assert shown(report(core))["understudy_messages_confirmed_total"] == 2


def test_so_many_queues_have_series_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "MAX_QUEUES", 2)
    core = Core()
    client = core.client()
    for name in ("a", "b", "c"):
        core.queue(client, name)
    series = shown(report(core), per_queue="1")
    queues = [name for name in series if name.startswith("understudy_detailed_queue_messages_ready")]
    assert [name.partition("{")[2] for name in queues] == ['queue="a",vhost="/"}', 'queue="b",vhost="/"}']
    assert series["understudy_detailed_queues_left_out"] == 1
