"""The event feed of a simulated cluster: the real readers on the simulated disks, and on the files of facts beside them.

It reads when something is about to be lost (segments that are dropped, a data directory that is) and at the end, each time with
a new reader that goes on at the cursor of the one before. So a feed is whole, whatever a run drops, and resumptions are tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from tests.simulator.sim_facts import SimFacts
from understudy.broker.log.segment import NoJournalError
from understudy.observers.events_schema import Event, Segment
from understudy.observers.feed.edge.fact_reader import FactReader
from understudy.observers.feed.feed import merged
from understudy.observers.feed.reader import FeedReader

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster
    from tests.simulator.sim_node import SimNode


class SimFeed:
    """Reads journals and facts of all brokers of ``cluster``; ``take`` is given the broker and its next events.

    The facts are those of detail "messages".

    Args:
        anew: a data directory that was replaced gets a reader of its own, as a new broker would. Else the reader of the old
            one goes on in the new one, and says that there is a gap.
    """

    def __init__(self, cluster: SimCluster, take: Callable[[str, list[Event]], None], *, anew: bool = False) -> None:
        self._nodes = list(cluster.nodes.values())
        self._take = take
        self._anew = anew
        self._cursors: dict[str | Path, bytes | None] = {}
        self._fact_cursors: dict[Path, bytes | None] = {}
        self._folder = TemporaryDirectory(prefix="understudy-facts-")
        self.resumed = 0
        for node in self._nodes:
            node.before_loss = self.read
            node.facts = SimFacts(node, Path(self._folder.name))

    def read(self, node: SimNode) -> None:
        """Read what ``node`` has written since the last time."""
        assert node.facts is not None
        directory = node.facts.directory  # another one after each loss
        journal = directory if self._anew else node.name
        cursor = self._cursors.get(journal)
        reader = FeedReader(node.storage, cursor)
        facts = FactReader(directory, self._fact_cursors.get(directory))
        self.resumed += cursor is not None
        with closing(facts):
            for events in merged([_journal(reader), facts.events()]):
                self._take(node.name, events)
            self._fact_cursors[directory] = facts.cursor()
            ends: list[Event] = [end for end in (reader.end(), facts.end()) if end is not None]
            if ends:
                self._take(node.name, ends)
        with suppress(NoJournalError):
            reader.find_damage()
        self._cursors[journal] = reader.cursor()

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


class Lives:
    """Tells the lives of one broker's data directory apart.

    A segment is named by a salt, which a real journal draws anew. A simulated one has the seed's, so the first segment of a
    directory that was lost and made anew has the name of the first one before.
    """

    def __init__(self) -> None:
        self._life = 0
        self._seen: set[str] = set()

    def named(self, event: Event) -> Event:
        """``event``; in later lives its journal's incarnation has their number behind the salt."""
        if isinstance(event, Segment) and not event.previous and event.incarnation in self._seen:
            self._life += 1
            self._seen.clear()
        if not event.incarnation.startswith("j"):
            return event
        self._seen.add(event.incarnation)
        if not self._life:
            return event
        changes = {"incarnation": self._later(event.incarnation)}
        if isinstance(event, Segment) and event.previous:
            changes["previous"] = self._later(event.previous)
        return msgspec.structs.replace(event, **changes)

    def _later(self, incarnation: str) -> str:
        name, at, since = incarnation.partition("@")
        return f"{name}{self._life:04x}{at}{since}"


class FeedFiles:
    """JSON lines, a file a broker, in a directory that is made if it is missing."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._encode = msgspec.json.Encoder().encode_lines
        self._begun: set[str] = set()
        self._lives: dict[str, Lives] = defaultdict(Lives)

    def take(self, broker: str, events: list[Event]) -> None:
        with (self._directory / f"{broker}.jsonl").open("ab" if broker in self._begun else "wb") as file:
            lives = self._lives[broker]
            file.write(self._encode([lives.named(each) for each in events]))
        self._begun.add(broker)
