"""Counts, ages, log lines and spans of deliveries, as a slot notes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.client.stages.place import Order, delivery, rules
from understudy.client.stages import Retry, sqlite
from understudy.client.stages.broker import clock
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.core.handling import Rules, handle
from understudy.client.stages.watching.log_lines import _Json, _Named, _Text
from understudy.client.stages.watching.pages import WorkerPages
from understudy.client.stages.watching.tracing import Tracing, tracing_if_installed
from understudy.client.stages.watching.watch import Handling, Watch
from understudy.testing.stages.skipping import SkippingClock


@pytest.fixture
def skipping() -> Iterator[SkippingClock]:
    made = SkippingClock()
    before = clock.use(made)
    yield made
    clock.use(before)


def work(
    watch: Watch, given: Rules, arrived: Delivery, function: Any = lambda _: None, **others: Any
) -> list[Envelope]:
    """One delivery, noted as a slot does; returns what was sent. Answers to other steps are given by their names."""
    answers: dict[type, Any] = {do.Claim: True, do.ReadUnsent: [], do.Now: clock.now_ms()}
    answers |= {getattr(do, name): answer for name, answer in others.items()}
    steps, sent = handle(given, arrived), list[Envelope]()
    with watch.handling(given.stage, arrived) as handling:
        step = next(steps)
        try:
            while True:
                try:
                    answer = answers.get(type(step))
                    if isinstance(step, do.Call):
                        with handling.calling(step):
                            answer = function(step)
                    if isinstance(step, do.Settle):
                        sent += step.envelopes
                except ValueError as error:
                    handling.note(step, error)
                    step = steps.throw(error)
                else:
                    handling.note(step, None)
                    step = steps.send(answer)
        except StopIteration:
            return sent


def fails(_: do.Call) -> None:
    raise ValueError("the bank is away")


def raised(handling: Handling) -> int:
    """The connection is lost in the middle of a delivery. Returns how many were in flight then."""
    found = 0
    with contextlib.suppress(ConnectionError), handling:
        found = handling._watch.in_flight(handling.stage)
        raise ConnectionError
    return found


def test_each_end_of_a_delivery_is_counted() -> None:
    watch = Watch(["reserve"])
    counts = watch.counts["reserve"]
    work(watch, rules(), delivery(), lambda _: Order(1))
    work(watch, rules(), delivery(), fails)
    work(watch, rules(), delivery(headers={headers.FAILURES: 6}), fails)
    work(watch, rules(), delivery(body=b"no"))
    work(watch, rules(retry=Retry(2, blocking=True)), delivery(), fails)
    assert (counts.done, counts.failed, counts.retried, counts.dead) == (1, 5, 2, 3)
    assert (counts.finished, counts.lost, watch.in_flight("reserve")) == (5, 0, 0)
    assert raised(watch.handling("reserve", delivery())) == 1
    assert (counts.finished, counts.lost, watch.in_flight("reserve")) == (5, 1, 0)


def test_a_parked_message_and_a_refused_commit_are_no_failures() -> None:
    watch = Watch(["reserve"])
    counts = watch.counts["reserve"]
    work(watch, rules(key=lambda _: "k"), delivery(), Line="m0")
    assert (counts.parked, counts.again, counts.failed) == (1, 0, 0)
    handling = watch.handling("reserve", delivery())
    handling.note(do.Wait(1_000, failed=False), None)
    assert (counts.retried, counts.failed) == (0, 0)


def test_a_worker_that_stands_by_is_ready_and_its_messages_have_no_age(skipping: SkippingClock) -> None:
    watch = Watch(["reserve"])
    skipping.skip(60_000)
    assert not watch.has_its_part("reserve")
    watch.stand_by("reserve")
    assert watch.has_its_part("reserve")
    assert watch.oldest_age_s("reserve") == 0
    skipping.skip(7_000)  # the broker is away
    assert not watch.has_its_part("reserve")
    assert 7 <= watch.oldest_age_s("reserve") < 30


def test_the_oldest_message_has_an_age_and_so_has_a_stage_without_a_consumer(skipping: SkippingClock) -> None:
    watch = Watch(["reserve", "charge"])
    skipping.skip(5_000)
    with watch.consuming("reserve"):
        assert watch.oldest_age_s("reserve") == 0
        sent_ms = clock.now_ms() - 60_000
        with (
            watch.handling("reserve", delivery(headers={headers.SENT: sent_ms})),
            watch.handling("reserve", delivery()),
        ):
            skipping.skip(30_000)
            assert 90 <= watch.oldest_age_s("reserve") < 120
        assert watch.oldest_age_s("reserve") == 0
    skipping.skip(7_000)
    assert 7 <= watch.oldest_age_s("reserve") < 30
    assert 42 <= watch.oldest_age_s("charge") < 60


@pytest.mark.parametrize("formatter", [_Text("%(message)s"), _Json()], ids=["text", "json"])
def test_log_lines_within_a_delivery_name_it(formatter: logging.Formatter) -> None:
    watch, lines = Watch(["reserve"]), list[str]()

    def line(_: object = None) -> None:
        record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "took %d", (7,), None)
        _Named().filter(record)
        lines.append(formatter.format(record))

    arrived = delivery(headers={headers.FLOW: "last", headers.FLOW_ID: "f1", headers.TRACE_ID: "t1"})
    work(watch, rules(), arrived, line)
    line()
    if isinstance(formatter, _Json):
        inside, outside = map(json.loads, lines)
        assert (inside["event"], inside["level"], inside["logger"]) == ("took 7", "info", "shop")
        assert {"flow": "last", "flow_id": "f1", "trace_id": "t1", "message_id": "m1"}.items() <= inside.items()
        assert (inside["transaction"], "message_id" in outside) == ("m1/1", False)
    else:
        told = "took 7 stage=reserve message_id=m1 attempt=1 transaction=m1/1 flow=last flow_id=f1 trace_id=t1"
        assert lines == [told, "took 7"]


def test_a_span_covers_a_delivery_and_its_events_have_the_order_of_the_steps() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    class Api:
        """The API package with a provider of this test's own: the one of the process is set once for ever."""

        get_tracer, SpanKind, StatusCode = provider.get_tracer, trace.SpanKind, trace.StatusCode
        use_span, set_span_in_context = staticmethod(trace.use_span), staticmethod(trace.set_span_in_context)

    watch = Watch(["reserve", "charge"], Tracing((Api, propagate)))
    with tracer.start_as_current_span("web"):
        carried = watch.tracing.carried() if watch.tracing is not None else {}

    def function(_: do.Call) -> Order:
        with tracer.start_as_current_span("inside"):
            return Order(1)

    (sent,) = work(watch, rules(), delivery(headers=carried | {headers.FLOW: "checkout"}), function)
    work(watch, rules(stage="charge"), delivery(stage="charge", headers=sent.headers | {headers.FLOW: "last"}), fails)
    web, inside, reserve, charge = exporter.get_finished_spans()
    assert len({each.context.trace_id for each in (web, inside, reserve, charge) if each.context}) == 1
    assert [each.parent.span_id if each.parent else 0 for each in (inside, reserve, charge)] == [
        each.context.span_id if each.context else 0 for each in (reserve, web, reserve)
    ]
    assert [each.name for each in reserve.events] == [
        "BeginDatabase", "Claim", "Call", "Store", "CommitDatabase", "Settle", "Mark"
    ]  # fmt: skip
    assert (charge.status.status_code, charge.status.description) == (
        trace.StatusCode.ERROR, "ValueError: the bank is away"
    )  # fmt: skip
    assert tracing_if_installed() is not None


def test_without_a_tracer_the_headers_of_a_trace_are_passed_on() -> None:
    given = {"traceparent": "00-1", "baggage": "user=7", "other": "x", headers.FLOW: "checkout"}
    (sent,) = work(Watch(["reserve"]), rules(), delivery(headers=given), lambda _: Order(1))
    assert {name: value for name, value in sent.headers.items() if not name.startswith("x-")} == {
        "traceparent": "00-1",
        "baggage": "user=7",
    }


def page(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def _pages(folder: Path) -> None:
    database = sqlite(folder / "shop.db")
    database.prepare()
    watch = Watch(["reserve"])
    work(watch, rules(), delivery(headers={headers.FAILURES: 6}), fails)
    async with WorkerPages("shop", watch, database).served("127.0.0.1", 0) as port:
        assert (await asyncio.to_thread(page, port, "/livez")) == (200, b"alive\n")
        assert (await asyncio.to_thread(page, port, "/readyz")) == (503, b"no consumer: reserve\n")
        assert (await asyncio.to_thread(page, port, "/other"))[0] == 404
        with watch.consuming("reserve"):
            assert (await asyncio.to_thread(page, port, "/readyz"))[0] == 200
            status = json.loads((await asyncio.to_thread(page, port, "/status"))[1])
            text = (await asyncio.to_thread(page, port, "/metrics"))[1].decode()
    assert (status["ready"], status["stages"]["reserve"]["dead_letters"]) == (True, 1)
    assert status["outbox"] == {"messages": 0, "oldest_age_s": 0}
    found = {
        (sample.name, sample.labels.get("stage")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["understudy_stages_dead_letters_total", "reserve"] == 1
    assert found["understudy_stages_oldest_message_age_seconds", "reserve"] == 0
    assert found["understudy_stages_outbox_messages", None] == 0
    (folder / "shop.db").write_bytes(b"no database at all, and longer than a header of one")
    assert (await WorkerPages("shop", watch, database).status())["outbox"]["messages"] == -1


def test_the_pages_of_a_worker_tell_its_state(tmp_path: Path) -> None:
    asyncio.run(_pages(tmp_path))
