"""The text of one family of metrics, as prometheus-client writes it. The first scrape loads this module."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from understudy.broker.plugin_api.metrics import Distribution, Family, Sample


def family_text(family: Family) -> bytes:
    """``# HELP``, ``# TYPE``, and a line for each sample."""
    return generate_latest(_Scrape(family))


class _Scrape(CollectorRegistry, Collector):
    """The collector for prometheus-client: one family, already collected."""

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
