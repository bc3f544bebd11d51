"""Metrics as plain values: what the core counts, and what plugins hand to the page ``/metrics``.

The core and plugins know no exposition format. They keep ints, and make :class:`Family` objects when a
scrape asks for them. ``server/metrics_page`` turns these into Prometheus text. So a metric costs a hot
path nothing but the int that is counted there already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_BOUNDS_US: Final = (
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
)
"""Upper bounds of durations, in microseconds: from a fast disk's fsync to a time-out."""
COUNT_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Upper bounds of a number of transactions."""


class Histogram:
    """Counts of observed ints by upper bound. :meth:`observe` is for at most one call a group or a turn.

    Attributes:
        bounds: ascending upper bounds, each included; what is above the last is counted too.
        counts: one a bound and one for what is above; not cumulative.
        observed: how many values.
        total: their sum.
    """

    __slots__ = ("bounds", "counts", "observed", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.observed = self.total = 0

    def observe(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.observed += 1
        self.total += value

    def snapshot(self, scale: float = 1.0) -> Distribution:
        """The observations so far, bounds and sum multiplied by ``scale`` (``1e-6``: microseconds as seconds)."""
        cumulative = 0
        buckets = []
        for bound, count in zip(self.bounds, self.counts, strict=False):
            cumulative += count
            buckets.append((bound * scale, cumulative))
        return Distribution(tuple(buckets), self.observed, self.total * scale)


class Distribution(NamedTuple):
    """A moment of a :class:`Histogram`: (upper bound, how many at or below it), how many in all, their sum."""

    buckets: tuple[tuple[float, int], ...]
    observed: int
    total: float


class Sample(NamedTuple):
    """One series of a family: the values of its labels, and its own value."""

    labels: tuple[str, ...]
    value: float | Distribution


class Family(NamedTuple):
    """One metric.

    Attributes:
        kind: ``counter``, ``gauge`` or ``histogram``.
        name: with the unit last, and of a counter with ``_total``.
        text: one sentence for ``# HELP``.
        label_names: what the labels of each sample stand for.
        samples: their values are ``Distribution`` in a histogram and numbers elsewhere.
    """

    kind: Kind
    name: str
    text: str
    label_names: tuple[str, ...]
    samples: tuple[Sample, ...]


def one(kind: Kind, name: str, text: str, value: float | Distribution) -> Family:
    """A family of one series without labels."""
    return Family(kind, name, text, (), (Sample((), value),))


def labelled(
    kind: Kind, name: str, text: str, label_names: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Family:
    """A family of the series ``values``: (values of the labels, value). It may have none."""
    return Family(kind, name, text, label_names, tuple(Sample(labels, value) for labels, value in values))
