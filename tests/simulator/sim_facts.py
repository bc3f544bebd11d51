"""Facts of one simulated broker that are no records: written by the product's code into real files beside the simulated disk.

`SimNode` calls this where `ha.edge.driver` and `server.turn.node_driver` call theirs. A process that is killed loses what it
had not written; a power failure leaves the files alone, since nothing is claimed of facts then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from understudy.broker.core.watching.applied_facts import AppliedFacts
from understudy.broker.core.watching.facts import Facts
from understudy.broker.core.watching.message_facts import MessageFacts
from understudy.broker.server.files.fact_log import FactLog
from understudy.ha.showing.events import HaEvent
from understudy.ha.showing.feed_facts import HaFacts

if TYPE_CHECKING:
    from tests.simulator.sim_network import LinkEnd
    from tests.simulator.sim_node import SimNode


class SimFacts:
    """Of one broker, whose processes come and go.

    Attributes:
        directory: the files of facts; another one after each loss of the data directory.
        ha: of the present process.
    """

    def __init__(self, node: SimNode, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._lives = self._losses = 0
        self.lose_directory()
        self._applied: AppliedFacts | None = None

    # -- processes ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process begins."""
        node = self._node
        self._lives += 1
        self._facts = Facts(lambda: node.wall_ms)
        self.ha = HaFacts(self._facts)
        incarnation = f"p{node.wall_ms}-{self._lives}"
        self._log = FactLog(
            self.directory, node.config.group, node.name, self._facts, lambda: node.world.now_ms / 1000, incarnation
        )

    def opening(self) -> None:
        """A core whose journal is read is about to be opened."""
        self._facts.follow(self._node.node.state.log)

    def opened(self) -> None:
        """The opened core runs."""
        node = self._node.node
        node.broker.work.on_change.append(self._facts.work)
        MessageFacts(node.broker, self._facts)
        self._applied = AppliedFacts(node.state, self._facts)

    def left(self) -> None:
        """The opened core is gone."""
        self._facts.follow(None)
        self._applied = None

    def turn_over(self) -> None:
        self._log.write()

    def lose_directory(self) -> None:
        """The data directory is lost, with all facts in it (only while the broker is down)."""
        self._losses += 1
        self.directory = self._folder / f"{self._node.name}-{self._losses}"
        self.directory.mkdir()

    def close(self) -> None:
        """The run is over."""
        if self._lives:
            self._log.close()

    # -- what happens ---------------------------------------------------------------------------------------------------

    def happened(self, event: HaEvent) -> None:
        group = self._node.ha.group
        if group is not None:
            self.ha.founding(group.founding)
        self.ha.happened(event, group.min_insync if group is not None else 0)

    def step_down(self, reason: str) -> None:
        primary = self._node.ha.primary
        if primary is not None:
            self.ha.step_down(reason, primary.hand_over.named)

    def tick(self, now_ms: int) -> None:
        self.ha.look_at_links(_is_broken)
        primary = self._node.ha.primary
        if primary is not None and self.ha.is_due(now_ms):
            self.ha.look(primary.readiness())
        if self._applied is not None:
            self._applied.look(now_ms)


def _is_broken(link: object) -> bool:
    end: LinkEnd = link  # type: ignore[assignment]  # all links here are
    return end.broken
