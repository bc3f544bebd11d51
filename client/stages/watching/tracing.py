"""Tracing: spans of OpenTelemetry, where its API package is installed. Without it the headers of a trace are passed on as they are.

The headers are ``traceparent``, ``tracestate`` and ``baggage`` (W3C Trace Context). A span covers a delivery from its arrival to
the broker's commit; each step is an event of it, in the order in which they were done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import Delivery

CARRIED: Final = ("traceparent", "tracestate", "baggage")


def carried_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a trace among the headers of a message."""
    return {name: value for name in CARRIED if isinstance(value := found.get(name), str)}


class Tracing:
    """The tracer of a worker; made by `tracing_if_installed`."""

    def __init__(self, api: Any) -> None:
        self._trace, self._propagate = api
        self._tracer = self._trace.get_tracer("understudy.stages")

    def start(self, stage: str, delivery: Delivery) -> Span:
        """The span of a delivery, a child of the span that has sent it."""
        attributes: dict[str, Any] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": stage,
            "messaging.message.id": delivery.id,
            "understudy.attempt": delivery.failures + 1,
        }
        for name, header in (("flow", headers.FLOW), ("flow_id", headers.FLOW_ID), ("trace_id", headers.TRACE_ID)):
            if text := delivery.text(header):
                attributes[f"understudy.{name}"] = text
        span = self._tracer.start_span(
            f"process {stage}",
            context=self._propagate.extract(carried_of(delivery.headers)),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        return Span(span, self._trace, self._propagate)

    def carried(self) -> dict[str, str]:
        """Headers that make what is sent now a child of the span that runs here."""
        found: dict[str, str] = {}
        self._propagate.inject(found)
        return found


class Span:
    """One delivery's span."""

    def __init__(self, span: Any, trace: Any, propagate: Any) -> None:
        self._span = span
        self._trace = trace
        self._propagate = propagate

    def carried(self) -> dict[str, str]:
        """Headers for what the stage sends."""
        found: dict[str, str] = {}
        self._propagate.inject(found, context=self._trace.set_span_in_context(self._span))
        return found

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Spans that begin within a ``with`` are children of this one."""
        with self._trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
            yield

    def note(self, step: str, error: Exception | None) -> None:
        """A step was done."""
        if error is not None:
            self._span.record_exception(error)
        self._span.add_event(step)

    def end(self, error: BaseException | None) -> None:
        """The delivery is settled, or lost."""
        if error is not None:
            self._span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._span.end()


def tracing_if_installed() -> Tracing | None:
    """Spans, if OpenTelemetry's API package is installed."""
    try:
        from opentelemetry import propagate, trace  # noqa: PLC0415  # no dependency of the product
    except ImportError:
        return None
    return Tracing((trace, propagate))
