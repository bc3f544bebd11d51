"""The event feed of a simulated cluster: the real readers on the simulated disks, and on the files of facts beside them.

It reads when something is about to be lost (segments that are dropped, a data directory that is) and at the end, each time with
a new reader that goes on at the cursor of the one before. So a feed is whole, whatever a run drops, and resumptions are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.sim_facts import SimFacts
from understudy.broker.log.segment import NoJournalError
from understudy.observers.events_schema import Event
from understudy.observers.fact_reader import FactReader
from understudy.observers.feed import merged
from understudy.observers.feed_reader import FeedReader

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster
    from tests.simulation.sim_node import SimNode


class SimFeed:
    """Reads journals and facts of all brokers of ``cluster``; ``take`` is given the broker and its next events.

    The facts are those of detail "messages".
    """

    def __init__(self, cluster: SimCluster, take: Callable[[str, list[Event]], None]) -> None:
        self._nodes = list(cluster.nodes.values())
        self._take = take
        self._cursors: dict[str, bytes | None] = {}
        self._fact_cursors: dict[Path, bytes | None] = {}
        self._folder = TemporaryDirectory(prefix="understudy-facts-")
        self.resumed = 0
        for node in self._nodes:
            node.before_loss = self.read
            node.facts = SimFacts(node, Path(self._folder.name))

    def read(self, node: SimNode) -> None:
        """What ``node`` has written since the last time."""
        assert node.facts is not None
        cursor = self._cursors.get(node.name)
        reader = FeedReader(node.storage, cursor)
        directory = node.facts.directory
        facts = FactReader(directory, self._fact_cursors.get(directory))
        self.resumed += cursor is not None
        with closing(facts):
            for events in merged([_journal(reader), facts.events()]):
                self._take(node.name, events)
            self._fact_cursors[directory] = facts.cursor()
        with suppress(NoJournalError):
            reader.find_damage()
        self._cursors[node.name] = reader.cursor()

    def finish(self) -> None:
        """The run is over."""
        for node in self._nodes:
            assert node.facts is not None
            node.facts.close()
            self.read(node)
        self._folder.cleanup()


def _journal(reader: FeedReader) -> Iterator[list[Event]]:
    with suppress(NoJournalError):
        yield from reader.events()


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
