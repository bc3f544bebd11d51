"""FeedModel: a broker's queues, built from its feed alone. What an audit does, in the small."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from understudy.observers import events_schema as schema
from understudy.observers.events_schema import Event

Change = tuple[int, str, int, range]
"""(offset, "+", "-" or "x", queue id, ids): they come, leave, or the queue is deleted."""


class FeedModel:
    """Fed with the events of one broker.

    Attributes:
        queues: ids of persistent messages that each queue holds, as applied.
        applied: transactions by how often they were applied.
        committed: transactions with a `Commit`.
        whole: nothing is missing since the beginning of this journal.
    """

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.seqs: dict[str, int] = {}
        self._reset(whole=True)

    def _reset(self, *, whole: bool) -> None:
        self.whole = whole
        self.applied: Counter[str] = Counter()
        self.queues: dict[int, set[int]] = defaultdict(set)
        self._pending: list[Change] = []
        self._content: dict[str, list[Change]] = defaultdict(list)
        self._places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._count(event)
            self._take(event)

    def _count(self, event: Event) -> None:
        if not isinstance(event, schema.Gap | schema.End):  # these have no number
            expected = self.seqs.get(event.incarnation, 0) + 1
            assert event.seq == expected, f"{event} where number {expected} is due"
            self.seqs[event.incarnation] = event.seq

    def _take(self, event: Event) -> None:
        match event:
            case schema.Gap() if not event.reason.startswith("facts_"):
                self.seqs.clear()
                self._reset(whole=event.to_segment == 1)
            case schema.Enqueue(persistent=True) | schema.Dequeue() | schema.Assign():
                self._message(event)
            case schema.Delete(what="queue"):
                self._pending.append((event.offset, "x", event.queue_id, range(0)))
            case schema.Commit():
                self.committed.add(event.tx)
            case schema.Apply():
                self._advance(event)
            case schema.Cut():
                self._cut(event)
            case schema.Piece():
                self._piece(event)
            case _:
                pass

    def _message(self, event: schema.Enqueue | schema.Dequeue | schema.Assign) -> None:
        offset, queue, tx = event.offset, event.queue_id, event.tx
        match event:
            case schema.Enqueue(tx=""):
                self._pending.append((offset, "+", queue, range(event.id, event.id + 1)))
            case schema.Enqueue():
                self._places[tx].append((offset, queue, event.place))
            case schema.Dequeue():
                change = (offset, "-", queue, range(event.id, event.id + event.count))
                (self._content[tx] if tx else self._pending).append(change)
            case schema.Assign():
                ids = [event.id + place for _, target, place in self._places[tx] if target == queue]
                self._content[tx] += [(offset, "+", queue, range(each, each + 1)) for each in ids]

    def _advance(self, event: schema.Apply) -> None:
        if not event.tx:
            self._apply_before(event.offset + 1)
            return
        self._apply_before(event.offset)
        self.applied[event.tx] += 1
        self._places.pop(event.tx, None)
        for change in self._content.pop(event.tx, []):
            self._apply(change)

    def _apply_before(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[0][0] < offset:
            self._apply(pending.pop(0))

    def _apply(self, change: Change) -> None:
        _, sign, queue, ids = change
        if sign == "+":
            self.queues[queue].update(ids)
        elif sign == "-":
            self.queues[queue].difference_update(ids)
        else:
            self.queues.pop(queue, None)

    def _cut(self, event: schema.Cut) -> None:
        if event.reason == "catch_up":
            return  # the base says what stays
        if event.reason == "let_go":
            self._reset(whole=self.whole)
            return
        self._pending = [each for each in self._pending if each[0] <= event.offset]
        for name, places in list(self._places.items()):
            self._places[name] = [each for each in places if each[0] <= event.offset]
        for tx, changes in list(self._content.items()):
            self._content[tx] = [each for each in changes if each[0] <= event.offset]

    def _piece(self, event: schema.Piece) -> None:
        ids = range(event.id, event.id + event.count)
        if event.what == "base":
            self._pending.clear()
        elif event.what == "drop":
            self.queues[event.queue_id].difference_update(ids)
        elif event.what == "queue":
            self.queues[event.queue_id].update(ids)
