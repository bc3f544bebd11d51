"""EventStream: one numbered stream of events of one broker, and what its makers share: who, when, where, and what is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from understudy.observers import events_schema as schema
from understudy.observers.events_schema import SCHEMA_VERSION, Event
from understudy.observers.feed.context import FeedContext, FeedTx
from understudy.observers.feed.event_digest import digest_of


class EventStream:
    """Receiver of the events that `feed.records` and `feed.notes` tell.

    Args:
        context: what is known so far; changed in place.

    Attributes:
        context: of the journal, as far as it was read.
        group, broker: whose journal it is.
        incarnation, seq: of the last event.
        at_ms: of the group that is being read.
        sync: number of that group.
        event_digest: of the events of this incarnation that were taken; -1: not known.
        out: events that were said and not taken yet.
    """

    def __init__(self, context: FeedContext | None = None) -> None:
        self.context = context if context is not None else FeedContext()
        self.group = self.broker = ""
        self.incarnation = ""
        self.seq = 0
        self.at_ms = 0
        self.sync = 0
        self.event_digest = 0
        self.out: list[Event] = []
        self._digested = 0

    def say(self, event: Callable[..., Event], offset: int, *fields: object, epoch: int = 0) -> None:
        """Make the next event: ``fields`` are its own, in their order; ``epoch`` is the log's newest unless it is given."""
        context = self.context
        self.seq = seq = self.seq + 1
        self.out.append(
            event(
                SCHEMA_VERSION,
                self.group,
                context.founding,
                self.broker,
                self.incarnation,
                seq,
                epoch or context.epoch,
                offset,
                self.at_ms,
                *fields,
            )
        )

    def said_up_to(self, seq: int) -> None:
        """Events up to the number ``seq`` were put into `out`."""
        self.seq = seq

    def comes_with(self, sync: int, at_ms: int) -> None:
        """Note that the next events were written with fsync number ``sync``, at ``at_ms`` by the wall clock."""
        self.sync = sync
        self.at_ms = at_ms

    def begin_anew(self, context: FeedContext) -> None:
        """The log begins anew: ``context`` is all that is known of it."""
        self.context = context

    def digested(self) -> int:
        """The digest of this incarnation's events up to here; -1 if it is not known."""
        if self.event_digest >= 0:
            self.event_digest = digest_of(self.out[self._digested :], self.event_digest)
        self._digested = len(self.out)
        return self.event_digest

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        self.digested()
        out, self.out, self._digested = self.out, [], 0
        return out

    def advance(self, stable: int) -> None:
        """The log is known to be stable so far: say what that applies."""
        context = self.context
        was = context.applied
        for tx in context.advance(stable):
            self.say(schema.Apply, tx.prepare, context.stable, 0, tx.text, tx.csn, tx.decided, epoch=tx.prepare_epoch)
        if context.applied > was:
            self.say(schema.Apply, context.applied, context.stable, was)

    def of_tx(self, tx_id: int, offset: int) -> FeedTx:
        """The transaction that a record is of; its first record opens it."""
        tx = self.context.transactions.get(tx_id)
        if tx is None:
            tx = self.context.begin(tx_id, offset)
            self.say(schema.Open, offset, tx.text)
        return tx


def runs_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of each run of consecutive ids, in the order of the record."""
    runs: list[tuple[int, int]] = []
    first = last = -1
    for each in ids:
        if each == last + 1 and first >= 0:
            last = each
            continue
        if first >= 0:
            runs.append((first, last - first + 1))
        first = last = each
    if first >= 0:
        runs.append((first, last - first + 1))
    return runs
