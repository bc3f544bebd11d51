"""Subject: the coordinator under test, and how a core is made with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from understudy.broker.coordinators import Coordinator, CoordinatorChoice, NullCoordinator, Participant
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.testing.coordinator_kit.watch import Watch

MAX_WITHHELD_MS: Final = 1_000


@attrs.frozen
class Subject:
    """A class of coordinators, with its options.

    Attributes:
        seeds: how many interleavings each check tries; 1 or more.
        crash_seeds: how many of them are run once for each place at which they can be cut short; 1 or more.
        max_withheld_ms: as ``[transactions] max_withheld_ms``: the bound of what is withheld.
    """

    coordinator: type[Coordinator]
    options: Mapping[str, str] = attrs.field(factory=dict)
    seeds: int = 5
    crash_seeds: int = 1
    max_withheld_ms: int = MAX_WITHHELD_MS

    @property
    def is_asked(self) -> bool:
        """False of a coordinator for brokers in which nothing is to be coordinated."""
        return not issubclass(self.coordinator, NullCoordinator)

    def make_node(self, watch: Watch, participants: Sequence[Participant], limits: Limits) -> BrokerNode:
        """A core with a coordinator of its own, under watch, which has ``participants`` behind it.

        A coordinator that is never asked runs alone and without a watch: each of both would be a reason to ask it.
        """
        watched = watch.coordinator_class(self.coordinator, participants) if self.is_asked else self.coordinator
        choice = CoordinatorChoice(self.coordinator.__name__, watched, self.options, self.max_withheld_ms)
        return BrokerNode("kit", limits, bytes, coordinator=choice)
