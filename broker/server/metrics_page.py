"""MetricsPage: ``/metrics``, the page that a Prometheus server scrapes.

A scrape takes a snapshot: `broker_metrics` and the plugins read what the core counts anyway. Nothing is told
to prometheus-client while messages flow, so it keeps no state; here it writes the text. The page is
made in slices as every page that grows (`slices`): a family at a time, and long families by parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from understudy.broker.metrics import Distribution, Family, Sample
from understudy.broker.pages import BadQueryError, Page, Query, RunsInSlices, Steps

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PART: Final = 50
"""So many series of one family are written in a step."""


class MetricsPage:
    """Makes the page.

    Args:
        slices: what it is made by.
        broker: steps to the broker's families; told whether the queues are asked for one by one.
        plugins: each makes its families at once.
    """

    def __init__(
        self,
        slices: RunsInSlices,
        broker: Callable[[bool], Steps[list[Family]]],
        plugins: Sequence[Callable[[], Iterable[Family]]],
    ) -> None:
        self._slices = slices
        self._broker = broker
        self._plugins = plugins

    async def page(self, query: Query) -> Page:
        """The page; ``per_queue=1`` adds a series for each of the first queues.

        Raises:
            BadQueryError: another parameter, or another value of it.
        """
        unknown = query.keys() - {"per_queue"}
        if unknown:
            raise BadQueryError(f"no parameter {min(unknown)!r}; there is per_queue")
        per_queue = query.get("per_queue", "0")
        if per_queue not in ("0", "1"):
            raise BadQueryError(f"per_queue is 0 or 1, not {per_queue!r}")
        text = await self._slices.run(self._text(per_queue == "1"))
        return Page(200, text, CONTENT_TYPE)

    def _text(self, per_queue: bool) -> Steps[bytes]:
        families = yield from self._broker(per_queue)
        for plugin in self._plugins:
            families += plugin()
            yield
        parts = []
        for family in families:
            for first in range(0, len(family.samples), PART):
                text = generate_latest(_Scrape(family._replace(samples=family.samples[first : first + PART])))
                parts.append(text if not first else _without_head(text))
                yield
        return b"".join(parts)


class _Scrape(CollectorRegistry, Collector):
    """What prometheus-client is shown: one family, already collected."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield _metric(self._family)


def _metric(family: Family) -> Metric:
    kind, name, text, label_names, samples = family
    names = list(label_names)
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=names)
        for labels, value in samples:
            assert isinstance(value, Distribution), f"{name} is a histogram"
            buckets = [(f"{bound:.10g}", float(count)) for bound, count in value.buckets]
            histogram.add_metric(_utf8(labels), [*buckets, ("+Inf", float(value.observed))], value.total)
        return histogram
    metric = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=names)
    for sample in samples:
        metric.add_metric(_utf8(sample.labels), _number(name, sample))
    return metric


def _number(name: str, sample: Sample) -> float:
    assert not isinstance(sample.value, Distribution), f"{name} is no histogram"
    return float(sample.value)


def _utf8(labels: tuple[str, ...]) -> list[str]:
    """Names of clients need not be UTF-8. Escaped, two different names stay different series."""
    return [label.encode("utf-8", "backslashreplace").decode("utf-8") for label in labels]


def _without_head(text: bytes) -> bytes:
    """Without ``# HELP`` and ``# TYPE``: these stand once a family."""
    return text.split(b"\n", 2)[2]
