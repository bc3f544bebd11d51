"""The feed: sources of events, their order, what of them is wanted, and sinks.

    EventSource  ->  merged  ->  Selection  ->  FeedSink

A source is one broker's journal (`feed.reader.FeedReader`), or one broker's facts that are in no journal. A sink is a terminal, a
file, a topic. Between them nothing is kept: a source says where it can go on, a sink when it has kept what it was given, and the
command (`feed.edge.command`) stores the cursor of the former after the latter.

**Facts that are no record** (roles, readiness, links) are one more `EventSource` of their broker: `FeedDirectory` puts the sources
of a broker together, and keeps a cursor for each journal. Their events have an incarnation of their own, `seq` from 1, the wall
clock of their broker, and the end of its log as their position, so they are merged like all others.

**Order.** The events of one source stay in its order. Sources are merged by wall clock, then by position: on one host that is the
order in which things happened; over hosts it is as good as their clocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol

import attrs

from understudy.observers.events_schema import Append, Event

Key = tuple[int, int, int, str]


class EventSource(Protocol):
    """Yields events of one broker."""

    def events(self) -> Iterator[list[Event]]:
        """Present events, in order; called again later, the feed goes on. A reader may stop behind each list."""


class FeedSink(Protocol):
    """Takes events. `feed.edge.sink` has the terminal's, `feed.edge.sink_files` files."""

    def take(self, events: list[Event]) -> None:
        """Take some more, in order. May buffer."""

    def flush(self) -> None:
        """Return when everything that was taken is kept, as far as this sink keeps things."""

    def close(self) -> None:
        """No more is coming; what was taken is kept."""


class FeedCursors(Protocol):
    """Keeps where the feed stands: by broker and source, a text. A file by itself, or a sink that keeps it with its events.

    Attributes:
        with_events: it is such a sink, and each `save` ends a file, or a transaction.
    """

    with_events: bool

    def load(self) -> dict[str, str]:
        """Cursors that were kept last; empty at first."""

    def due(self, now_s: float) -> bool:
        """True if it is time to keep the cursors; ``now_s`` is of a monotonic clock. Asked after the sink has flushed."""

    def save(self, cursors: dict[str, str]) -> bool:
        """Keep ``cursors``, which stand behind all that the sink has taken, and no further.

        Returns:
            Whether they are kept, durably. If not, nothing more is given to the sink before they are.
        """

    def hurry(self) -> None:
        """The feed is asked to end: `save` waits for nothing for longer than seconds, also one under way. For a signal handler."""


def keyed(source: Iterable[list[Event]]) -> Iterator[tuple[Key, list[Event]]]:
    """The lists of one source, each with its place in the order of all sources."""
    newest = 0
    for events in source:
        first = events[0]
        for event in events:
            newest = max(newest, event.at_ms or getattr(event, "primary_ms", 0))
        yield (newest, first.epoch, first.offset, first.broker), events


def merged(sources: Iterable[Iterable[list[Event]]]) -> Iterator[list[Event]]:
    """The lists of all sources in one order; of each source in its own."""
    for _, events in heapq.merge(*map(keyed, sources), key=lambda each: each[0]):
        yield events


@attrs.frozen(kw_only=True)
class Selection:
    """Which events are wanted; the default is all.

    Args:
        txs: transactions, as events name them, or without the founding; None: all, and what is of none.
        queue: name of a queue, or ``vhost/name``; "": any.
        since_ms: wall clock of the earliest.
    """

    txs: frozenset[str] | None = None
    queue: str = ""
    since_ms: int = 0

    @property
    def everything(self) -> bool:
        return self.txs is None and not (self.queue or self.since_ms)

    def of(self, events: list[Event]) -> list[Event]:
        """Those of one list that are wanted. With ``txs``, also the `Append` that says that they are on the disk there."""
        if self.everything:
            return events
        since = self.since_ms
        wanted = [each for each in events if (not since or each.at_ms >= since) and self._concerns(each)]
        if wanted and self.txs is not None:
            wanted += [each for each in events if isinstance(each, Append)]
        return wanted

    def _concerns(self, event: Event) -> bool:
        if self.txs is not None:
            tx = getattr(event, "tx", "")
            if tx not in self.txs and tx.rpartition("/")[2] not in self.txs:
                return False
        if self.queue:
            queue = getattr(event, "queue", "")
            return bool(queue) and self.queue in (queue, f"{getattr(event, 'vhost', '')}/{queue}")
        return True
