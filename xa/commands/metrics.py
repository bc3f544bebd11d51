"""Metrics of distributed transactions, as Prometheus reads them: what is in doubt, since when, and which servers answer.

A scrape asks the state server and each resource manager of one profile, as ``understudy xa list`` does. It changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy.xa.commands.operator import Found, Operator
from understudy.xa.core.errors import XaError
from understudy.xa.core.register.wire import Shown

STATES: Final = ("active", "pending", "parked", "heuristic", "ruled")


class XaCollector(Collector):
    """Families of one profile.

    Args:
        operator: looks at each scrape.
        profile: its name, a label of all metrics.
        resources: names of the resource managers that `operator` looks at.
    """

    def __init__(self, operator: Operator, profile: str, resources: Iterable[str]) -> None:
        self._operator = operator
        self._profile = profile
        self._resources = list(resources)

    def describe(self) -> Iterator[Metric]:
        """No family is named at registration: no server is asked then."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families of this moment. Of what cannot be asked there is no sample but ``up``."""
        up = self._family("state_server_up", "1 if the state server answers.")
        try:
            found = self._operator.look()
        except XaError:
            up.add_metric([self._profile], 0)
            yield up
            return
        up.add_metric([self._profile], 1)
        yield up
        yield from self._transactions(found.entries, found.now_ms)
        yield from self._branches(found)

    def _transactions(self, entries: Iterable[Shown], now_ms: int) -> Iterator[Metric]:
        counts: Counter[str] = Counter()
        oldest_ms = dict.fromkeys(STATES, 0)
        failed = 0
        for one in entries:
            counts[one.state] += 1
            oldest_ms[one.state] = max(oldest_ms[one.state], now_ms - one.entry.began_ms)
            failed += one.entry.attempts
        number = self._family("transactions", "Transactions that the state server knows.", "state")
        age = self._family("transactions_oldest_seconds", "Age of the oldest one since its begin; 0 of none.", "state")
        for state in STATES:
            number.add_metric([self._profile, state], counts[state])
            age.add_metric([self._profile, state], oldest_ms[state] / 1000)
        attempts = self._family("failed_recoveries", "Failed recoveries of the transactions that the server knows.")
        attempts.add_metric([self._profile], failed)
        yield from (number, age, attempts)

    def _branches(self, found: Found) -> Iterator[Metric]:
        up = self._family("resource_manager_up", "1 if the resource manager lists its branches.", "resource")
        orphans = self._family("orphans", "Branches in doubt that the state server does not know.", "resource")
        counts = Counter(one.resource for one in found.orphans)
        for name in self._resources:
            up.add_metric([self._profile, name], name not in found.unreachable)
            if name not in found.unreachable:
                orphans.add_metric([self._profile, name], counts[name])
        yield from (up, orphans)

    @staticmethod
    def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"understudy_xa_{name}", text, labels=("profile", *labels))
