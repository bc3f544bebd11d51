"""The event feed of a simulated cluster: the real reader on the simulated disks.

It reads when something is about to be lost (segments that are dropped, a data directory that is) and at the end, each time with
a new reader that goes on at the cursor of the one before. So a feed is whole, whatever a run drops, and resumptions are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from understudy.broker.log.segment import NoJournalError
from understudy.observers.events_schema import Event
from understudy.observers.feed_reader import FeedReader

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster
    from tests.simulation.sim_node import SimNode


class SimFeed:
    """Reads the journals of all brokers of ``cluster``; ``take`` is given the broker and its next events."""

    def __init__(self, cluster: SimCluster, take: Callable[[str, list[Event]], None]) -> None:
        self._nodes = list(cluster.nodes.values())
        self._take = take
        self._cursors: dict[str, bytes | None] = {}
        self.resumed = 0
        for node in self._nodes:
            node.before_loss = self.read

    def read(self, node: SimNode) -> None:
        """What ``node`` has written since the last time."""
        cursor = self._cursors.get(node.name)
        reader = FeedReader(node.storage, cursor)
        self.resumed += cursor is not None
        with suppress(NoJournalError):
            for events in reader.events():
                self._take(node.name, events)
            reader.find_damage()
        self._cursors[node.name] = reader.cursor()

    def finish(self) -> None:
        """The run is over."""
        for node in self._nodes:
            self.read(node)


class FeedFiles:
    """JSON lines, a file a broker, in a directory that is made if it is missing."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._encode = msgspec.json.Encoder().encode_lines
        self._begun: set[str] = set()

    def take(self, broker: str, events: list[Event]) -> None:
        with (self._directory / f"{broker}.jsonl").open("ab" if broker in self._begun else "wb") as file:
            file.write(self._encode(events))
        self._begun.add(broker)
