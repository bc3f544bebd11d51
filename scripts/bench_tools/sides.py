"""The interface of a cluster under test, as the runner uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Side(Protocol):
    """One cluster, started and stopped by the bench, on loopback ports of its own.

    Everything it writes goes below the folder it was given.  ``stop`` may be called at any time, also after a ``start``
    that failed half-way, and leaves no process.
    """

    name: str
    queue_type: str | None

    def start(self) -> None:
        """Start all nodes and return when every one takes part and is in sync."""

    def stop(self) -> None:
        """End every process this side started, by its id."""

    @property
    def port(self) -> int:
        """AMQP port of the node that leads the queues."""

    def process_roots(self) -> Sequence[int]:
        """Processes whose trees are the brokers; raises BenchError if one of them has ended."""

    def check_replication(self, queues: Sequence[str]) -> Sequence[str]:
        """Faults of the copies of ``queues``; empty when every node holds every queue in sync."""

    def description(self) -> Mapping[str, str | int]:
        """Versions and settings for the report."""
