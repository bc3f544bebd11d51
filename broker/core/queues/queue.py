"""A queue: its messages in replication-id order, what is handed out, who consumes.

Queue order *is* id order. Ids ascend as records are applied, so the ordinary way in is an append; a message that comes
back (requeue, recover, a dead consumer) is put in by its id through a small heap, and a message that
fills a gap marks the queue unsorted until :meth:`sort`. On a broker that follows only ``entries`` is kept; ``ready`` is built when
it begins to lead (:meth:`activate`).

What the queue says about itself (``depth``) speaks of applied messages only: nothing of an undecided transaction is in
``entries``; ``uncommitted`` counts that apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import attrs

from understudy.broker.core.queues import put_off
from understudy.broker.core.queues.consumer_order import ConsumerOrder
from understudy.broker.core.queues.dead_letters import DeadLetterRule
from understudy.broker.core.queues.deduplication import DeduplicationRule
from understudy.broker.core.queues.entry import (
    ACQUIRED,
    DEQUEUING,
    GONE,
    HELD,
    PURGED,
    READY,
    RETURNING,
    WITHHELD,
    Entry,
)
from understudy.broker.core.queues.entry_index import PAGE_BITS, EntryIndex
from understudy.broker.core.queues.id_window import IdWindow
from understudy.broker.core.queues.leaving import Leaving, Places, forget, mark_in_hand
from understudy.broker.core.queues.packed_page import PackedPage, Stand
from understudy.broker.core.queues.queue_limits import QueueLimits
from understudy.broker.core.queues.queue_line import QueueLine
from understudy.broker.core.queues.queue_returns import QueueReturns
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.queues.return_rule import ReturnRule
from understudy.broker.log import live_offsets
from understudy.broker.log.live_offsets import ENTRY_BYTES, LiveOffsets
from understudy.broker.log.return_record import Returned
from understudy.broker.log.row_batch import Rows, message_of
from understudy.broker.message import DelayedMessage, Message, SpilledBody

if TYPE_CHECKING:
    from understudy.broker.core.queues.consumer import Consumer

SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
CONSUMER_TIMEOUT: Final = "x-consumer-timeout"
DELAYED_PUBLISH: Final = "x-delayed-publish"
"""The argument of a queue in which a publish may be delayed (``core/moving/delayed_publish.py``)."""

_new = object.__new__


@attrs.frozen(kw_only=True)
class QueueStatistics:
    """A view for status, metrics and tests. ``ready`` + ``acquired`` = messages that are visible to clients.

    ``withheld``: messages whose delay is not over yet; nobody gets them.
    ``active_consumer``: of a queue with a single active consumer; "" if none is, None of other queues.
    """

    vhost: str
    name: str
    ready: int
    acquired: int
    withheld: int
    uncommitted: int
    consumers: int
    enqueued: int
    dequeued: int
    durable: bool
    replicate: str
    policy: str | None
    active_consumer: str | None


class Queue(QueueLine):
    """One queue.

    ``level`` says what of it is in the log, where ``id`` names it: all of it, its definition alone, or nothing (exclusive queues
    among others). What is not lives in this process only. ``logged`` is ``level.messages_in_log``. ``brought_at`` is where
    the log brings it something last, a plain message or a commit, as this broker has written it. ``cleared`` counts the messages
    that :meth:`clear` has dropped. ``adopted``: an earlier leader, or process, declared it. ``had_consumer``: the log says so;
    kept of auto-delete queues only. ``order`` is that of consumers, None if they are served in turn. ``consumer_timeout_ms``: None
    means that of the broker. ``dead_letters`` says where messages go that die here, None for nowhere; ``limits`` how many
    there may be, None for any number. ``return_rule`` says what becomes of messages that come back, None if nothing is counted;
    ``returns`` what is known of them, None if nothing is; ``takes_delays``: the header ``x-delay`` of a message counts here.
    ``leaving`` are messages of which an applied record says that they are gone, which :meth:`leave` takes out in slices; ``purged``
    counts those that a purge has taken and no record, in ``acquired`` too.
    ``fetching``: bodies of its next messages are being read. A sweep has passed the pages of ``entries`` before ``swept_page``.
    ``policy`` names the policy that has changed what ``arguments`` say, None for none. ``window`` has the ids of messages that
    came, None if the queue drops no duplicates.
    """

    __slots__ = (
        "acquired",
        "adopted",
        "arguments",
        "auto_delete",
        "brought_at",
        "cleared",
        "consumer_timeout_ms",
        "consumers",
        "dead_letters",
        "deleted",
        "dequeued",
        "durable",
        "exclusive_consumer",
        "expires_ms",
        "fetching",
        "had_consumer",
        "id",
        "last_id",
        "leaving",
        "level",
        "limits",
        "live",
        "logged",
        "newest_id",
        "order",
        "overfull",
        "owner",
        "policy",
        "purged",
        "redelivered_below",
        "return_rule",
        "returning",
        "returns",
        "scheduled",
        "swept_page",
        "takes_delays",
        "ttl_ms",
        "uncommitted",
        "unsorted",
        "used_ms",
        "vhost",
        "window",
        "withholds",
    )

    def __init__(
        self,
        queue_id: int,
        vhost: str,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        live: LiveOffsets,
        level: ReplicationLevel = ReplicationLevel.ALL,
        owner: Any = None,
        overfull: Callable[[Queue], None] | None = None,
        withholds: Callable[[Queue], None] | None = None,
    ) -> None:
        """Make an empty, unused queue.

        ``live`` counts what has to stay in the journal for the messages; it is one of its own for a queue that has none there.
        ``overfull`` is told when more is in the queue than may be, ``withholds`` when a message is withheld.
        """
        super().__init__(name, not level.declared_in_log)
        self.id = queue_id
        self.vhost = vhost
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.owner = owner
        self.level = level
        self.logged = level.messages_in_log
        self.overfull = overfull
        self.policy: str | None = None
        self.returns: QueueReturns | None = None
        self.takes_delays = arguments.get(DELAYED_PUBLISH) is True
        self.withholds = withholds
        rule = DeduplicationRule.of(arguments)
        self.window = None if rule is None else IdWindow(rule)
        self.configure(arguments)
        self.acquired = self.returning = 0
        self.uncommitted = 0
        self.dequeued = 0
        self.cleared = 0
        self.leaving: list[Leaving] = []
        self.purged = 0
        self.fetching = False
        self.swept_page = 0
        self.last_id = 0
        self.newest_id = 0
        self.redelivered_below = 0
        self.unsorted = False
        self.scheduled = False
        self.deleted = False
        self.consumers: deque[Consumer] = deque()
        self.order = ConsumerOrder((), single=True) if arguments.get(SINGLE_ACTIVE_CONSUMER) else None
        self.exclusive_consumer = False
        self.had_consumer = False
        self.used_ms = 0
        self.adopted = False
        self.brought_at = 0
        self.live = live

    def configure(self, arguments: dict[str, Any], policy: str | None = None) -> None:
        """Set what is in force here: ``arguments`` are the queue's own, as ``policy`` has changed them. No message has come yet."""
        self.policy = policy
        self.ttl_ms: int | None = arguments.get("x-message-ttl")
        self.expires_ms: int | None = arguments.get("x-expires")
        self.consumer_timeout_ms: int | None = arguments.get(CONSUMER_TIMEOUT)
        self.dead_letters = DeadLetterRule.of(arguments)
        self.limits = None if self.overfull is None else QueueLimits.of(arguments, self.overfull)
        self.return_rule = ReturnRule.of(arguments)

    # -- applying -------------------------------------------------------------------------------------------------

    def enqueue(self, entry_id: int, message: Message, deadline_ms: int) -> None:
        """Add an applied message. An id that is already here is left as it is (it may be brought twice)."""
        entries = self.entries
        late = entry_id <= self.last_id  # a younger transient message was brought before the log brought this one
        if late:
            if entry_id in entries:
                return
            self.unsorted = True
            number = entry_id >> PAGE_BITS
            self._unpack(number)
            page = entries.page_for(entry_id)
            self.sweep_again(number)
        else:
            self.last_id = entry_id
            page = entries.newest if entry_id < entries.newest_end else self.begin_page(entry_id)
        # Entry(...), of which the call of the class is two thirds: 0.2 us of each message on each broker.
        entry = page[entry_id] = _new(Entry)
        entry.id = entry_id
        entry.message = message
        entry.deadline_ms = deadline_ms
        entry.redelivered = False
        entry.state = READY
        entries.count += 1
        # As LiveOffsets.add, without the call.
        self.live.buckets[message.offset >> live_offsets.BUCKET_SHIFT] += message.size + ENTRY_BYTES
        if message.__class__ is DelayedMessage and self._comes_late(entry):
            return
        if self.active:
            if late:
                heappush(self.returned, (entry_id, entry))
            else:
                self.tail.append(entry)
            if self.limits is not None:
                self.limits.entered(self, entry)

    def enqueue_rows(self, rows: Rows, bodies: SpilledBody) -> None:
        """Recovery: add applied messages, whose bodies ``bodies`` gives back. They come into packed pages if they may."""
        ids = rows.ids
        if self.active or not self.packs or ids[0] <= self.last_id or not rows.ascend:
            self._enqueue_each(rows, 0, len(ids), bodies)
            return
        begin = 0
        while begin < len(ids):
            number = ids[begin] >> PAGE_BITS
            fits = ids[-1] >> PAGE_BITS == number
            end = len(ids) if fits else bisect_left(ids, number + 1 << PAGE_BITS, begin)
            page = self.entries.grow(number, bodies)
            if page is None:
                self._enqueue_each(rows, begin, end, bodies)
            else:
                self._extend(page, rows, begin, end)
            begin = end

    def _extend(self, page: PackedPage, rows: Rows, begin: int, end: int) -> None:
        page.extend(rows, begin, end)
        self.entries.grown(end - begin)
        self.live.add_rows(rows.offsets[begin:end], rows.sizes[begin:end])
        self.last_id = rows.ids[end - 1]

    def _enqueue_each(self, rows: Rows, begin: int, end: int, bodies: SpilledBody) -> None:
        for row in islice(rows.rows(), begin, end):
            self.enqueue(row.entry_id, message_of(row, bodies), row.deadline_ms)

    def remove(self, entry_id: int) -> bool:
        """Take an applied message away for good; False if it is not here."""
        entries = self.entries
        number = entry_id >> PAGE_BITS
        page = entries.pages.get(number)
        if page.__class__ is PackedPage:
            return self._remove_packed(page, entry_id)
        entry = page.pop(entry_id, None) if page is not None else None  # type: ignore[union-attr]
        if entry is None:
            return False
        entries.count -= 1
        if not page:
            entries.emptied(number)
        if self.returns is not None:
            self._forget_return(entry)
        if entry.state in HELD:
            self.acquired -= 1
            if entry.state == RETURNING:
                self.returning -= 1
        elif self.limits is not None:
            self.limits.left(entry)
        entry.state = GONE
        self.dequeued += 1
        message = entry.message
        self.live.release(message.offset, message.size)
        return True

    def _remove_packed(self, page: PackedPage, entry_id: int) -> bool:
        """As :meth:`remove`, out of ``page``."""
        stand = page.drop(entry_id)
        if stand is None:
            return False
        self.entries.dropped(entry_id >> PAGE_BITS, page)
        if self.returns is not None:
            self.returns.known.pop(entry_id, None)
        if page.state in HELD:
            self.acquired -= 1
            self.purged -= page.state == PURGED
        elif self.limits is not None:
            self.limits.left_bytes(stand.size)
        self.dequeued += 1
        self.live.release(*stand)
        return True

    def take_over(self, place: Queue) -> None:
        """Take over what a recovery has put into ``place``."""
        place.settle()
        self.entries, place.entries = place.entries, self.entries
        self.last_id = place.last_id
        self.unsorted = place.unsorted
        self.dequeued, self.cleared = place.dequeued, place.cleared
        self.uncommitted = place.uncommitted
        self.returns = place.returns
        if self.takes_delays:
            for entry in self.entries.objects():
                if isinstance(entry.message, DelayedMessage):
                    self._comes_late(entry)  # the place did not know that its queue delays messages

    def continue_from(self, ended: Queue) -> None:
        """Take what ``ended`` holds, of another core; its consumers have nothing of it here. This queue is new."""
        ended.sort()
        for number, page in ended.entries.pages.items():
            if isinstance(page, PackedPage):
                self.entries.hold(number, page.copy())
                for stand in page.stands():
                    self.live.add(*stand)
                continue
            for entry in page.values():
                self.enqueue(entry.id, entry.message, entry.deadline_ms)
        self.entries.begin(ended.entries.newest_number)
        self.last_id = ended.last_id
        self.dequeued, self.cleared = ended.dequeued, ended.cleared
        if ended.returns is not None:
            for entry_id, returned in ended.returns.known.items():
                self.know(entry_id, returned)

    def leave(self, ids: Sequence[int]) -> Iterator[None]:
        """Take many applied messages away for good: they count as gone at once, and the items are the slices of the work.

        Until that is done they count as ``acquired``, which no broker hands out. A broker that has written the record holds them
        already. What an earlier leader has written is applied before this one answers, while its messages are READY here: nothing
        of that is put off.
        """
        leaving = Leaving(ids)
        self.leaving.append(leaving)
        if not self.active:
            self.acquired += len(ids)
        elif (first := self.entries.get(ids[0])) is None or first.state not in HELD:
            self._take_out(leaving, len(ids))
        return self._leave(leaving)

    def _leave(self, leaving: Leaving) -> Iterator[None]:
        while leaving in self.leaving:  # else the queue was cleared, or `settle` has done it
            self._take_out(leaving, put_off.SLICE)
            if not leaving.left:
                return
            yield

    def _take_out(self, leaving: Leaving, most: int) -> None:
        """Take out the next messages of ``leaving``, so many at most."""
        entries, active = self.entries, self.active
        end = min(leaving.at + most, len(leaving.ids))
        for entry_id in leaving.ids[leaving.at : end]:
            if not active:
                self.acquired -= 1
            page = entries.pages.get(entry_id >> PAGE_BITS)
            if isinstance(page, PackedPage):
                self._remove_packed(page, entry_id)
                continue
            entry = entries.pop(entry_id)
            if entry is None:
                continue
            if self.returns is not None:
                self._forget_return(entry)
            if active:
                self._count_out(entry)
            entry.state = GONE
            self.dequeued += 1
            self.live.release(entry.message.offset, entry.message.size)
        leaving.at = end
        if not leaving.left:
            self.leaving.remove(leaving)

    def _count_out(self, entry: Entry) -> None:
        if entry.state in HELD:
            self.acquired -= 1
            if entry.state == RETURNING:
                self.returning -= 1
            elif entry.state == PURGED:
                self.purged -= 1
        elif self.limits is not None:
            self.limits.left(entry)

    def emptied(self) -> None:
        """All messages have been taken out of the queue of a dropped core: of a purge or a record in its midst nothing is left."""
        self.acquired = self.returning = self.purged = 0
        self.leaving.clear()
        if self.returns is not None:
            self.returns.forget_withheld()

    def settle(self) -> None:
        """Take out now all that is to leave, before a look at every message."""
        while self.leaving:
            self._take_out(self.leaving[0], self.leaving[0].left)

    @property
    def left(self) -> int:
        """How many messages are in ``entries`` that count as gone."""
        return sum(each.left for each in self.leaving)

    def clear(self) -> Iterator[None]:
        """Drop everything: the queue is deleted, or its state is brought anew.

        Nothing is here any more when this returns, and nobody holds anything of it; the items are the slices of what is left to do.
        """
        entries, gone = self.entries, self.left
        mark_in_hand(entries, self.acquired - (self.purged if self.active else gone))
        self.cleared += len(entries) - gone
        self.dequeued += gone
        self.leaving.clear()
        self.entries = EntryIndex()
        lines = self.lines()
        self.acquired = self.returning = self.purged = 0
        known: dict[int, Returned] = {}
        if self.returns is not None:
            self._tell_withheld()  # nothing is any more
            known = self.returns.known
            self.returns.clear()
        if self.limits is not None:
            self.limits.begin(self)
        return forget(entries, self.live, lines, known)

    def sort(self) -> None:
        """Restore id order after gaps were filled. What counts as gone is so."""
        if self.leaving:
            self.settle()
        if self.unsorted:
            self.entries.sort()
            self.unsorted = False

    def activate(self, redelivered_below: int, first_new_id: int) -> None:
        """This broker begins to lead: everything that stood before may have been delivered by an earlier one.

        Args:
            redelivered_below: entries with a lower id are delivered with redelivered=1 (G9).
            first_new_id: ids handed out from now on are above this.
        """
        self.sort()
        self.active = True
        self.redelivered_below = redelivered_below
        self.newest_id = max(self.last_id, first_new_id)
        self.acquired = self.returning = self.purged = 0
        self.line_up()
        if self.returns is not None and self.returns.known:
            self.returns.activate(self)
            self.drop_held()
            self._tell_withheld()
        if self.limits is not None:
            self.limits.begin(self)

    # -- paging ---------------------------------------------------------------------------------------------------

    @property
    def packs(self) -> bool:
        """True if a page may be packed."""
        return True

    def swept(self, page: int) -> None:
        """A sweep passes the pages before this one: bodies there leave the memory, or stay."""
        self.swept_page = page

    def sweep_again(self, page: int) -> None:
        """Let the next sweep look at this page, and at those behind it."""
        self.swept_page = min(self.swept_page, page)

    def fetch_begins(self) -> None:
        """Bodies of the next messages are being read."""
        self.fetching = True

    def fetch_ends(self) -> None:
        """The bodies that were read are in memory."""
        self.fetching = False

    def first_behind(self, messages: int, octets: int) -> int:
        """The id behind so many messages, or octets of bodies, that are handed out next: this one and higher ones wait for long."""
        for number, entry in enumerate(self.shown()):
            octets -= entry.message.size
            if number >= messages or octets < 0:
                return entry.id
        return self.newest_id + 1

    def doubt(self) -> int:
        """Hand out everything that is here with redelivered=1. Returns the bound before, for :meth:`trust`."""
        before = self.redelivered_below
        self.redelivered_below = self.newest_id + 1
        return before

    def handed_out_below(self) -> int:
        """The id from which on no message has been handed out, by any broker. No consumer is left."""
        first = next((entry.id for entry in self.shown()), self.newest_id + 1)
        return max(first, self.redelivered_below)

    def trust(self, redelivered_below: int) -> None:
        """Note that no other broker has handed out a message with this id, or a higher one."""
        self.redelivered_below = redelivered_below

    # -- the queue itself -----------------------------------------------------------------------------------------

    def declared(self, used: bool) -> None:
        """The log declares it, perhaps again; ``used``: that it has had a consumer."""
        self.deleted = False
        self.had_consumer = used

    def delete(self) -> None:
        """Note that no client may use the queue any more."""
        self.deleted = True

    def adopt(self, now_ms: int) -> None:
        """An earlier leader, or process, declared it, and this one begins to lead."""
        self.used_ms = now_ms
        self.adopted = True

    def used(self, now_ms: int) -> None:
        """A client has declared it anew, or let go of it."""
        self.used_ms = now_ms

    def note_consumer(self) -> None:
        """A consumer has subscribed, of which the log need not tell."""
        self.had_consumer = True

    def count_uncommitted(self, number: int) -> None:
        """So many messages of open transactions are embargoed here."""
        self.uncommitted = number

    # -- consumers ------------------------------------------------------------------------------------------------

    def subscribe(self, consumer: Consumer) -> None:
        """``consumer`` is served from now on."""
        self.consumers.append(consumer)
        self.exclusive_consumer = consumer.exclusive
        if self.order is not None:
            self.order.add(consumer)
        elif consumer.priority:
            self.order = ConsumerOrder(self.consumers, single=False)

    def unsubscribe(self, consumer: Consumer) -> None:
        """``consumer`` gets nothing more."""
        self.consumers.remove(consumer)
        if consumer.exclusive:
            self.exclusive_consumer = False
        if self.order is not None:
            self.order.remove(consumer)
            if not self.consumers and not self.order.single:
                self.order = None

    def has_taker(self) -> bool:
        """True if a consumer may be sent a message now."""
        lines = (self.consumers,) if self.order is None else self.order.lines()
        return any(consumer.can_take() for line in lines for consumer in line)

    # -- handing out ----------------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> int:
        """Messages that have come."""
        return len(self.entries) + self.dequeued + self.cleared

    @property
    def depth(self) -> int:
        """Messages that may be handed out now."""
        return len(self.entries) - self.acquired - self.withheld

    @property
    def withheld(self) -> int:
        """Messages that are not due yet."""
        return self.returns.withheld if self.returns is not None else 0

    @property
    def judges(self) -> bool:
        """True if the queue may not take a message that is published to it."""
        return self.window is not None or self.refuses

    @property
    def refuses(self) -> bool:
        """True if a message is refused when the queue is full."""
        return self.limits is not None and not self.limits.drops

    def time_to_live(self, expiration_ms: int | None, message: Message | None = None) -> int | None:
        """How long a message lives here whose own time to live is ``expiration_ms``: the shorter of both, None for no end.

        That of the queue counts from when ``message`` is due.
        """
        ttl_ms = self.ttl_ms
        if ttl_ms is not None and isinstance(message, DelayedMessage) and (message.everywhere or self.takes_delays):
            ttl_ms += message.delay_ms
        if expiration_ms is None or (ttl_ms is not None and ttl_ms < expiration_ms):
            return ttl_ms
        return expiration_ms

    def priority_of(self, message: Message) -> int:
        """The priority that counts for ``message`` here; 0 in a queue without priorities."""
        return 0

    def next_id(self) -> int:
        self.newest_id += 1
        return self.newest_id

    def take(self) -> Entry | None:
        """The first ready message, marked ACQUIRED; None if there is none."""
        ready = self.ready
        returned = self.returned
        while True:
            if ready:
                entry = heappop(returned)[1] if returned and returned[0][0] < ready[0].id else ready.popleft()
            elif ready is not self.tail:
                self.next_page()
                continue
            elif returned:
                entry = heappop(returned)[1]
            else:
                return None
            if entry.state == READY:
                entry.state = ACQUIRED
                self.acquired += 1
                if self.limits is not None:
                    self.limits.left(entry)
                if entry.id < self.redelivered_below:
                    entry.redelivered = True
                return entry

    @property
    def waits_for_order(self) -> bool:
        """True if no consumer is served until what comes back is at its place: one consumer at a time has them in order."""
        return self.returning > 0 and self.order is not None and self.order.single

    def take_withheld(self) -> Entry | None:
        """The message that is due first of those that are withheld, marked ACQUIRED; None if there is none."""
        first = self.returns.first() if self.returns is not None else None
        if first is None:
            return None
        self.hold(first[1])
        return first[1]

    def take_expired(self, now_ms: Callable[[], int]) -> Iterator[Entry]:
        """The messages at the head whose deadlines have passed, each marked ACQUIRED. ``now_ms`` tells the time."""
        while (entry := self.peek()) is not None and entry.deadline_ms and entry.deadline_ms <= now_ms():
            taken = self.take()
            assert taken is entry, f"queue {self.name} shows message {entry.id} and gives {taken and taken.id}"
            yield entry

    def put_back(self, entry: Entry, redelivered: bool = True) -> None:
        """Return an ACQUIRED message to its place (its id). A message that is gone meanwhile stays gone."""
        if entry.state != ACQUIRED:
            return
        entry.state = READY
        if redelivered:
            entry.redelivered = True
        self.acquired -= 1
        heappush(self.returned, (entry.id, entry))
        if self.limits is not None:
            self.limits.entered(self, entry)

    def lock(self, entry_id: int) -> None:
        """A prepared branch takes this message away: nobody may have it before that is decided. It may be gone, or not here."""
        entry = self.unpack(entry_id)
        if entry is not None and entry.state in (READY, WITHHELD):
            self.hold(entry)

    def drop_places(self) -> None:
        """Messages have been locked: no place of them is left among those to hand out. They get another one if they come back.

        A purge that is under way would take such a place, of before, for one of its own.
        """
        self.drop_returned()
        if self.returns is not None:
            self.returns.compact()

    def hold(self, entry: Entry) -> None:
        """Take ``entry``, which was READY or WITHHELD, out of what may be handed out."""
        was = entry.state
        entry.state = ACQUIRED
        self.acquired += 1
        if was == WITHHELD and self.returns is not None:
            self.returns.taken()
        if self.limits is not None:
            self.limits.left(entry)

    def mark_dequeuing(self, entry: Entry) -> None:
        """Its dequeue has been logged: nobody may have it, but it counts as held until that is stable."""
        if entry.state in (READY, WITHHELD):
            self.hold(entry)
        entry.state = DEQUEUING

    def ready_entries(self) -> list[Entry]:
        """All messages that may be handed out now, in order."""
        self.sort()
        return [entry for entry in self.entries.values() if entry.state == READY]

    def purge(self) -> tuple[int, list[Places | PackedPage]]:
        """Take all messages that may be handed out, now or when they are due: no client gets or counts them any more.

        Returns:
            How many these are, and where they are, together with others that are neither READY nor WITHHELD. The caller marks them.
        """
        count = self.depth + self.withheld
        lines = [*self.packed_between(), *self.lines()]
        self.acquired += count
        self.purged += count
        if self.returns is not None:
            self.returns.forget_withheld()
        if self.limits is not None:
            self.limits.purged()
        return count, lines

    def mark_purged(self, entry: Entry, many: bool) -> None:
        """A purge has come to ``entry``. ``many``: :meth:`leave` will take it out, and not :meth:`remove`."""
        if many:
            entry.state = PURGED
        else:
            entry.state = DEQUEUING
            self.purged -= 1

    def purge_page(self, page: PackedPage, many: bool) -> list[int]:
        """A purge has come to ``page``, which was packed when it began; see :meth:`mark_purged`. Returns the ids that it takes."""
        ids = list(page)
        number = page.base >> PAGE_BITS
        if self.entries.pages.get(number) is page:
            page.mark(PURGED if many else DEQUEUING)
            if not many:
                self.purged -= len(ids)
            return ids
        taken = []
        for entry_id in ids:
            entry = self.entries.get(entry_id)
            if entry is not None and entry.state == READY:
                self.mark_purged(entry, many)
                taken.append(entry_id)
        return taken

    # -- coming late, and coming back -----------------------------------------------------------------------------

    def _comes_late(self, entry: Entry) -> bool:
        """Note when ``entry``, which is new, is due. True if it is withheld: this broker leads."""
        message = entry.message
        assert isinstance(message, DelayedMessage), f"{message} is not delayed"
        if not (message.everywhere or self.takes_delays):
            return False
        self.know(entry.id, Returned(due_ms=message.due_ms))
        if not self.active:
            return False
        self._withhold(entry)
        if self.limits is not None:
            self.limits.entered(self, entry)
        return True

    def forget_counts(self) -> None:
        """The state is brought anew, with what is known of messages that came back."""
        if self.returns is not None:
            self.returns.forget_counts()

    def know(self, entry_id: int, returned: Returned) -> bool:
        """Note what is known of the message of that id. False if it is not here, or if more is known of it."""
        if entry_id not in self.entries:
            return False
        if self.returns is None:
            self.returns = QueueReturns()
        if returned.hand_outs < self.returns.of(entry_id).hand_outs:
            return False
        self.returns.known[entry_id] = returned
        return True

    def hand_outs(self, entry_id: int) -> int:
        """How often the message of that id has come back."""
        return self.returns.of(entry_id).hand_outs if self.returns is not None else 0

    def begin_return(self, entry: Entry) -> None:
        """``entry``, which was handed out, comes back; :meth:`come_back` follows when that is stable."""
        entry.begin_return()
        self.returning += 1

    def note_redelivered(self, entry_id: int) -> None:
        """A client may have had the message of that id, which is here."""
        page = self.entries.pages[entry_id >> PAGE_BITS]
        if isinstance(page, PackedPage):
            page.note_redelivered(entry_id)
        else:
            page[entry_id].note_redelivered()

    def stand_again(self, entry_id: int, before: int, place: int, again: Callable[[Message], Message]) -> None:
        """The message of that id, if it is here and counts before ``before``, counts there, and its body is at ``place``.

        ``again`` makes the message that an object is to hold.
        """
        page = self.entries.pages.get(entry_id >> PAGE_BITS)
        if page is None or entry_id not in page:
            return
        if isinstance(page, PackedPage):
            stand = page.stand(entry_id)
            if stand.offset >= before:
                return
            page.stand_again(entry_id, before, place)
        else:
            entry = page[entry_id]
            stand = Stand(entry.message.offset, entry.message.size)
            if stand.offset >= before:
                return
            entry.hold_again(again(entry.message))
        self.live.release(*stand)
        self.live.add(before, stand.size)

    def let_go_last(self) -> None:
        """Take out one of the messages that came last, of a dropped core."""
        entry = self.entries.pop_last()
        if entry.state in HELD:
            self.acquired -= 1
        elif entry.state == WITHHELD and self.returns is not None:
            self.returns.taken()
        entry.leave()

    def bring(self, offset: int) -> None:
        """The record at ``offset``, which this broker has written, brings something here."""
        self.brought_at = offset

    def reserve_ids(self, count: int, offset: int) -> int:
        """Give so many consecutive ids to what the record at ``offset`` brings; returns the first."""
        first = self.newest_id + 1
        self.newest_id += count
        self.brought_at = offset
        return first

    def come_back(self, entry_id: int, returned: Returned) -> Entry | None:
        """A message comes back, and its RETURN is stable. If this broker leads, it is at its place, or withheld, from now on.

        Returns:
            The message, if this broker has handed it out and it is at its place again.
        """
        if not self.know(entry_id, returned) or not self.active:
            return None
        entry = self.unpack(entry_id)
        assert entry is not None, f"message {entry_id} of {self.name} has left"
        was = entry.state
        if was == RETURNING:
            entry.redelivered = True
            entry.state = READY
            self.acquired -= 1
            self.returning -= 1
            if not returned.due_ms:
                heappush(self.returned, (entry.id, entry))
            if self.limits is not None:
                self.limits.entered(self, entry)
        elif was == WITHHELD:  # by an older RETURN, which was the newest that was applied when this broker was promoted
            if returned.due_ms and self.returns is not None:
                entry.state = READY
                self.returns.taken()
            else:
                self.release(entry)
        if returned.due_ms and entry.state == READY:
            self._withhold(entry)
        return entry if was == RETURNING and entry.state == READY else None

    def _withhold(self, entry: Entry) -> None:
        assert self.returns is not None, f"queue {self.name} withholds {entry.id} and knows nothing of it"
        self.returns.withhold(entry)
        self._tell_withheld()

    def _tell_withheld(self) -> None:
        if self.withholds is not None and self.withheld:
            self.withholds(self)

    def release(self, entry: Entry) -> None:
        """``entry``, which was withheld, may be handed out from now on."""
        entry.state = READY
        heappush(self.returned, (entry.id, entry))
        if self.returns is not None:
            self.returns.taken()

    def _forget_return(self, entry: Entry) -> None:
        """``entry`` leaves for good."""
        assert self.returns is not None, f"queue {self.name} knows nothing of what came back"
        if entry.state == WITHHELD:
            self.returns.taken()
        self.returns.known.pop(entry.id, None)

    def lines(self) -> list[Places]:
        """Containers of all messages that are to be handed out, now or later, given away; see :meth:`give_away`."""
        lines = self.give_away()
        if self.returns is not None:
            lines.append(self.returns.give_away())
        return lines

    def _active_consumer(self) -> str | None:
        """The single active consumer, "" for none; None in a queue that serves all."""
        if self.order is None or not self.order.single:
            return None
        active = self.order.active
        return "" if active is None else active.description

    @property
    def held(self) -> int:
        """Messages that are handed out, or locked by a transaction, or whose dequeue is not applied."""
        return self.acquired - self.left

    def statistics(self) -> QueueStatistics:
        left = self.left
        return QueueStatistics(
            vhost=self.vhost,
            name=self.name,
            ready=self.depth,
            acquired=self.acquired - left,
            withheld=self.withheld,
            uncommitted=self.uncommitted,
            consumers=len(self.consumers),
            enqueued=self.enqueued,
            dequeued=self.dequeued + left,
            durable=self.durable,
            replicate=self.level.value,
            policy=self.policy,
            active_consumer=self._active_consumer(),
        )
