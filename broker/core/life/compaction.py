"""Compaction: one broker writes what lives in its oldest segments again, at the journal's end, so that these may go.

Segments go from the oldest on, and only when nothing in them lives. So one old message would keep everything written after it.
A *pass* takes the oldest segments up to some offset. It looks through the queues for messages that stand there, and writes them
again in AGAIN notes (``log/again_note.py``). Then nothing lives there, and the segments go as ever: the floor in the next group,
then the files. A pass never removes anything itself. Killed at any step, it has added notes that say what is so anyway.

**When.** A pass begins when what is dead outweighs what lives two to one, and fills at least half a segment. Its victims are as few
of the oldest as free enough that no more is dead than lives. So of three octets written about one is written again, more when what
lives fills about one segment, and a queue that moves on in order is never written again at all. What lives is counted once a queue.

**Why the oldest, and not the emptiest.** A record that takes a message away must not go before the record that brought it, else a
recovery brings the message back. From the oldest on that holds by itself.

**What an AGAIN note may miss.** It says what is in the queues at ``applied``. Records stand before it which have no effect yet:
those behind ``applied``, and what open transactions have written. When they take a message away later, they may go with their
segments before the note goes with its own, and the note would bring the message back. So a note is *settled* when all that stands
before it has had its effect: a second note names what has left meanwhile. Until that is durable the messages count at their old
place, and no segment goes behind ``needs``. So a PREPARE and its decision stay as they did.

**What recovery does.** It takes the note at ``applied``, a message that is there is left as it is. A message that is not there was
in a segment that has gone: for the note is written only when everything is applied that any batch before it calls stable, so that
recovery has not come further than ``applied``.

It costs nothing while nothing is to be done. A slice writes at most `SLICE_BYTES`, or one message, or looks through one page of a
queue; the edge paces slices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import attrs

from understudy.broker.core.queues.entry_index import Page
from understudy.broker.core.queues.messages_again import MessagesAgain, Unsettled
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import journal_gate
from understudy.broker.log.again_note import AgainNote, AgainTarget
from understudy.broker.log.body_place import NOWHERE
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.journal_state import Occupancy
from understudy.broker.log.live_offsets import ENTRY_BYTES, last_of_bucket
from understudy.broker.log.return_record import NEVER
from understudy.broker.message import Message

SLICE_BYTES: Final = 128 << 10
"""Of messages in one AGAIN note; at least one message."""
MOST_UNSETTLED: Final = 64
"""So many notes wait to be settled before more are written."""
DEAD_TO_LIVE: Final = 2
"""A pass begins when so many times more is dead than lives."""
LEAST_SHARE: Final = 2
"""And when the dead fill one part in so many of a segment."""
MOST_TRIES: Final = 3
"""So many passes up to the same offset are begun: a message that moves during a pass takes its place to where it goes."""

_Found = tuple[Queue, int]
"""A place: queue and replication id. Nothing is held by it that has left the queue meanwhile."""


@attrs.define
class CompactionCounts:
    """Counts of a process's compaction since it began.

    Attributes:
        passes: how many were begun.
        messages, octets: written again: how many, and the octets of the notes.
    """

    passes: int = 0
    messages: int = 0
    octets: int = 0


class _Pass:
    """One pass: messages that stand at or before ``limit``.

    Attributes:
        limit: an offset, the last of its bucket.
        found: places of messages of the last page that are not written yet, the next one last.
        shared: places of messages that are in several queues, so that each is written once. The key is the ``id`` of a message
            that may have gone since, or says where the body is: places of one key may be of several messages.
        looked_through: no page is left.
    """

    def __init__(self, limit: int, state: BrokerState) -> None:
        self.limit = limit
        self.found: list[_Found] = []
        self.shared: dict[int | tuple[int], list[_Found]] = {}
        self.looked_through = False
        self._pages = self._all_pages(state)

    def _all_pages(self, state: BrokerState) -> Iterator[tuple[Queue, Page]]:
        for queue in list(state.queues.values()):
            if queue.live is state.live:
                for number in list(queue.entries.pages):
                    page = queue.entries.pages.get(number)
                    if page:
                        yield queue, page

    def look_on(self) -> None:
        """Look through the next page, if there is one."""
        page = next(self._pages, None)
        if page is None:
            self.looked_through = True
            return
        queue, entries = page
        limit = self.limit
        if isinstance(entries, PackedPage):
            for entry_id in entries.ids_up_to(limit):
                body = entries.shared_body(entry_id)
                if body:
                    self.shared.setdefault((body,), []).append((queue, entry_id))
                else:
                    self.found.append((queue, entry_id))
            self.found.reverse()
            return
        for entry in entries.values():
            message = entry.message
            if message.offset <= limit:
                if message.shared:
                    self.shared.setdefault(id(message), []).append((queue, entry.id))
                else:
                    self.found.append((queue, entry.id))
        self.found.reverse()

    def next_message(self) -> list[_Found]:
        """The places of one message; none if another page is to be looked through, or all is done."""
        if self.found:
            return [self.found.pop()]
        if self.looked_through and self.shared:
            return self.shared.popitem()[1]
        return []

    @property
    def over(self) -> bool:
        """True if nothing is left."""
        return self.looked_through and not self.found and not self.shared


class Compaction:
    """Of one core.

    Args:
        state: of the core.
        gate: takes the notes.

    Attributes:
        counts: what it has done.
    """

    def __init__(self, state: BrokerState, gate: JournalGate) -> None:
        self._state = state
        self._gate = gate
        self._again: MessagesAgain = state.again
        self._pass: _Pass | None = None
        self._tried = self._tries = 0
        self.counts = CompactionCounts()

    @property
    def active(self) -> bool:
        """True if :meth:`step` may have something to do."""
        return self._pass is not None or bool(self._again.unsettled)

    # -- when ---------------------------------------------------------------------------------------------------------

    def look(self, journal: Occupancy, checkpoint_offset: int) -> bool:
        """Begin a pass if it is worth it. Called when segments might go.

        Args:
            journal: what the journal takes up.
            checkpoint_offset: see `BrokerNode.droppable_before`.

        Returns:
            True if a pass has begun.
        """
        if self.active or not journal.sealed or journal.sealed[0].last_offset > checkpoint_offset:
            return False
        log = self._state.log
        oldest = self._state.live.oldest(log.end)
        if oldest > max(journal.sealed[0].last_offset, log.start):
            return False  # no message keeps the first segment
        end = self._victims_end(journal, checkpoint_offset)
        if not end:
            return False
        limit = last_of_bucket(max(end, log.start) if oldest <= log.start else end)
        if not self._frees(limit, checkpoint_offset) or not self._may_try(limit):
            return False
        self._pass = _Pass(limit, self._state)
        self.counts.passes += 1
        return True

    def _may_try(self, limit: int) -> bool:
        """False if passes up to ``limit`` have not helped."""
        self._tries = self._tries + 1 if limit == self._tried else 1
        self._tried = limit
        return self._tries <= MOST_TRIES

    def _victims_end(self, journal: Occupancy, checkpoint_offset: int) -> int:
        """The last offset of the oldest segments that are worth it; 0 if none are."""
        taken = sum(each.size_bytes for each in journal.sealed) + journal.newest_used_bytes
        least = journal.segment_bytes // LEAST_SHARE
        if taken < max(least, (1 + DEAD_TO_LIVE) * self._state.live.total_octets()):
            return 0  # a first look that takes no step a bucket
        live = self._live_octets(journal)
        live_total = sum(live)
        dead_total = taken - live_total
        if dead_total < max(least, DEAD_TO_LIVE * live_total):
            return 0
        end = dead = 0
        before = min(self._state.first_unresolved(), self._state.log.applied)
        for segment, living in zip(journal.sealed, live, strict=False):
            if segment.last_offset > checkpoint_offset or last_of_bucket(segment.last_offset) >= before:
                break  # it could not go
            if dead >= dead_total - live_total and segment.number > journal.bound_segment:
                break
            end = max(end, segment.last_offset)
            dead += segment.size_bytes - living
        return end if dead >= least else 0

    def _live_octets(self, journal: Occupancy) -> list[int]:
        """About how many octets live in each sealed segment, and in what follows them."""
        ends = list(accumulate((each.last_offset for each in journal.sealed), max))
        live = [0] * (len(ends) + 1)
        for first, octets in self._state.live.octets():
            live[bisect_left(ends, first)] += octets
        sizes = [*(each.size_bytes for each in journal.sealed), journal.newest_used_bytes]
        return [min(pair) for pair in zip(live, sizes, strict=True)]

    def _frees(self, limit: int, checkpoint_offset: int) -> bool:
        """False if something else than messages keeps the segments up to ``limit``."""
        state = self._state
        if state.first_unresolved() <= limit or state.log.applied <= limit:
            return False
        if not state.applying.deduplicates:
            return True
        return state.id_windows.oldest_needed(checkpoint_offset, limit + 1) > limit

    # -- what ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One slice, at the end of a turn. Returns False if nothing can be done now."""
        log = self._state.log
        if log.applied < min(max(log.stable, log.once_stable), log.end):
            return False
        if self._state.put_off.waiting:
            return False  # messages are in queues that are gone
        done = self._settle()
        if self._pass is None or len(self._again.unsettled) >= MOST_UNSETTLED:
            return done
        self._go_on(self._pass)
        return True

    def _settle(self) -> bool:
        """Settle the oldest note that can be: one a slice, since the places of many would be changed in one go."""
        state = self._state
        first = state.first_unresolved()
        for unsettled in self._again.unsettled.values():
            if not unsettled.ending and unsettled.settled_after < first:
                unsettled.end()
                ended = self._again.end_of(unsettled, state.queues, state.log.applied)
                self._gate.append_note(journal_gate.SETTLED, ended.encode(), _Settled(self._again, unsettled, state))
                return True
        return False

    def _go_on(self, going: _Pass) -> None:
        """Look through the next page, if the last one is written, and write the next note."""
        if not going.found and not going.looked_through:
            going.look_on()
        messages: list[tuple[Message, list[AgainTarget]]] = []
        size = 0
        while size < SLICE_BYTES and (places := going.next_message()):
            size += max(self._take(going, places, messages), ENTRY_BYTES * len(places))
        if messages:
            self._write(messages)
        if going.over:
            self._pass = None

    def _take(self, going: _Pass, places: list[_Found], messages: list[tuple[Message, list[AgainTarget]]]) -> int:
        """Put one message on ``messages``, if it is still there; returns about how many octets that is."""
        state = self._state
        targets = []
        taken: Message | None = None
        for queue, entry_id in places:
            entry = queue.entries.get(entry_id)
            if entry is None or entry.message.offset > going.limit or queue.deleted:
                continue
            message = entry.message
            if message.persistent and queue.durable:
                if taken is not None and not message.is_as(taken):
                    going.found.append((queue, entry_id))
                    continue
                taken = message
                returned = queue.returns.of(entry.id) if queue.returns is not None else NEVER
                targets.append(AgainTarget(queue.id, entry.id, entry.deadline_ms, returned))
                continue
            # A transient one: no journal has it. It stands at a newer place at once.
            message.stay()
            again = message.again_at(state.log.applied, NOWHERE)
            queue.live.release(message.offset, message.size)
            queue.live.add(again.offset, again.size)
            entry.hold_again(again)
        if taken is None:
            return 0
        messages.append((taken, targets))
        return taken.size + ENTRY_BYTES * len(targets)

    def _write(self, messages: list[tuple[Message, list[AgainTarget]]]) -> None:
        state = self._state
        applied = state.log.applied
        again = AgainNote(
            self._again.newest + 1,
            applied,
            min(applied, state.first_unresolved() - 1),
            state.log.end,
            messages,
        )
        payload = again.encode()
        place = self._gate.append_note(journal_gate.AGAIN, payload)
        self._again.note(again, again.places(place))
        self.counts.messages += len(messages)
        self.counts.octets += len(payload)


class _Settled:
    """Called when a SETTLED note is durable."""

    __slots__ = ("_again", "_state", "_unsettled")

    def __init__(self, again: MessagesAgain, unsettled: Unsettled, state: BrokerState) -> None:
        self._again = again
        self._unsettled = unsettled
        self._state = state

    def __call__(self) -> None:
        self._again.settled(self._unsettled.number, self._state.queues)
