"""Histograms, and the text that Prometheus is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from understudy.broker.plugin_api.metrics import Family, Histogram, Sample, labelled, one
from understudy.broker.plugin_api.pages import BadQueryError, Steps
from understudy.broker.server.web.metrics_page import PART, MetricsPage
from understudy.broker.server.web.slices import Slices


def page_of(*families: Family, query: dict[str, str] | None = None) -> list[str]:
    def steps(per_queue: bool) -> Steps[list[Family]]:
        yield
        return [one("gauge", "asked_per_queue", "Asked.", per_queue)]

    async def made() -> Any:
        page = await MetricsPage(Slices(), steps, [lambda: families]).page(query or {})
        assert isinstance(page.body, bytes)
        return page.body.decode().splitlines()

    lines: list[str] = asyncio.run(made())
    return lines


def test_a_histogram_counts_at_or_below_each_bound() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1_000):
        histogram.observe(value)
    assert histogram.snapshot() == (((10, 2), (20, 4)), 6, 1_062)
    lines = page_of(one("histogram", "x_seconds", "Some time.", histogram.snapshot(0.5)))
    assert lines[3:] == [
        "# HELP x_seconds Some time.",
        "# TYPE x_seconds histogram",
        'x_seconds_bucket{le="5"} 2.0',
        'x_seconds_bucket{le="10"} 4.0',
        'x_seconds_bucket{le="+Inf"} 6.0',
        "x_seconds_count 6.0",
        "x_seconds_sum 531.0",
    ]


def test_a_family_of_many_series_has_one_head() -> None:
    count = 2 * PART + 1
    lines = page_of(labelled("counter", "x_total", "X.", ("n",), (((str(n),), n) for n in range(count))))
    assert lines[3:5] == ["# HELP x_total X.", "# TYPE x_total counter"]
    assert lines[5:] == [f'x_total{{n="{n}"}} {float(n)}' for n in range(count)]


def test_names_of_clients_are_escaped_and_stay_different() -> None:
    names = ['a"\\\n', "\udcff", "\udcfe"]
    lines = page_of(Family("gauge", "x", "X.", ("q",), tuple(Sample((name,), 1) for name in names)))
    assert lines[5:] == [r'x{q="a\"\\\n"} 1.0', r'x{q="\\udcff"} 1.0', r'x{q="\\udcfe"} 1.0']


def test_the_query() -> None:
    assert page_of(query={"per_queue": "1"})[-1] == "asked_per_queue 1.0"
    assert page_of(query={"per_queue": "0"})[-1] == "asked_per_queue 0.0"
    for query in ({"per_queue": "yes"}, {"per-queue": "1"}):
        with pytest.raises(BadQueryError, match="per_queue"):
            page_of(query=query)
