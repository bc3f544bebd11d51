"""OpenBatch: what a leading broker has appended since it closed a batch, and all that appends to it but transactions.

Consecutive dequeues become one record, which is appended before anything that comes after them. A batch is closed at the end of a
turn if anybody waits for it; what nobody waits for goes with the next one that somebody does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from understudy.broker.core.queues.entry import GONE, Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.completions import Completions
from understudy.broker.core.turn.counters import Counters
from understudy.broker.log import record
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.log import journal_form
from understudy.broker.log.pending import DEQUEUE, ENQUEUE, ENQUEUE_NOTED, Change
from understudy.broker.message import DelayedMessage, Message
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.plugin_api.plugin import Stability
from understudy.broker.transactions.tx_buffer import groups_of

OPEN_BYTES: Final = 128 << 10
"""An open batch of that many message bytes is closed though nobody waits for it."""
LARGE_BATCH_BYTES: Final = 256 << 20
"""With so much of large messages a batch is closed within a turn: one may be 512 MiB, and a batch takes a gigabyte."""


class Publisher(Protocol):
    """A connection (``Connection``), as far as batches go."""

    def turn_ended(self, offset: int) -> None:
        """The batch of what was published in this turn ends at ``offset``."""


class OpenBatch:
    """One per core.

    Attributes:
        publishers: connections that have published since a batch was closed.
        stability: says how far the log is stable, and hears of each batch.
        frozen: no batch is closed: what is appended goes out when this is over, or is lost with this core. What is in the log
            becomes stable and is answered as ever.
        eager: somebody waits for what has been appended.
    """

    def __init__(
        self,
        state: BrokerState,
        gate: JournalGate,
        stability: Stability,
        clock: Clock,
        counters: Counters,
        completions: Completions,
    ) -> None:
        """``stability``: that of a broker alone, whose answers need no proof."""
        self.state = state
        self.publishers: list[Publisher] = []
        self.stability = stability
        self.frozen = self.eager = False
        self._alone = True
        self._log = state.log
        self._apply_enqueue = state.applying.apply_enqueue
        self._append_record = state.taking.append_record
        self._gate = gate
        self._clock = clock
        self._expiry_now = clock.expiry_now
        self._counters = counters
        self._totals = counters.totals
        self._waiting: deque[tuple[int, Callable[[Any], None], Any]] = completions.waiting
        self._dequeues: list[tuple[int, int]] = []
        self._dequeue_reason = record.ACKNOWLEDGED
        self._open_bytes = self._large_bytes = 0
        self._barrier = 0
        self._log.applies(Change.ENQUEUE_NOTED, self._apply_noted)
        self._log.applies(Change.ENQUEUE_LOCAL, self._apply_local)

    # -- its end --------------------------------------------------------------------------------------------------

    def stable_by(self, stability: Stability) -> None:
        """Let a plugin say how far the log is stable."""
        self.stability = stability
        self._alone = False

    def freeze(self) -> None:
        """Close no batch from now on."""
        self.frozen = True

    def thaw(self) -> None:
        """Close batches again."""
        self.frozen = False

    def is_waited_for(self) -> bool:
        """True if an answer waits for what has been appended."""
        waiting = self._waiting
        return bool(waiting) and waiting[-1][0] > self._log.closed_end

    def end_turn(self, flush: bool, held: bool) -> bool:
        """Close the batch if it is awaited or large, or to ``flush`` it. Returns True if something is left, else ``held``."""
        log = self._log
        if self._dequeues:
            self.close_dequeues()
        if log.end == log.closed_end:
            if self.publishers:  # to queues outside the log
                self.close()
            return held
        waiting = self._waiting
        awaited = self.eager or flush or (bool(waiting) and waiting[-1][0] > log.closed_end)
        if not awaited and self._open_bytes < OPEN_BYTES:
            return True
        self.close()
        return held

    def close(self) -> None:
        """Hand on what has been appended, if anything; what was published is outstanding until it is stable."""
        log = self._log
        for connection in self.publishers:
            connection.turn_ended(log.end)
        self.publishers.clear()
        self.eager = False
        self._open_bytes = self._large_bytes = 0
        batch = log.close_batch()
        if batch is None:  # it all went to queues outside the log
            return
        self._gate.append_batch(journal_form(batch), batch.last)
        log.kept.trim(log.applied)
        self.stability.batch_closed(batch)

    # -- what is about to be appended -----------------------------------------------------------------------------

    def note_awaited(self) -> None:
        """Close the batch at the end of this turn: somebody waits for what is in it."""
        self.eager = True

    def note_open_bytes(self, size_bytes: int) -> None:
        """A message of an open transaction is about to be appended: nobody waits for it, but it takes memory."""
        self._totals["published"] += 1
        self._open_bytes += size_bytes
        if self._dequeues:
            self.close_dequeues()

    def note_part(self) -> None:
        """A part of a body is about to be appended: the parts behind it wait for it to become stable."""
        self.eager = True
        self.close_dequeues()

    def note_large(self, size_bytes: int) -> None:
        """A message of `MANY_READS_BYTES` or more has been appended."""
        self._large_bytes += size_bytes
        if size_bytes >= LARGE_BYTES:
            self._log.hold_large()
        if self._large_bytes >= LARGE_BATCH_BYTES and not self.frozen:
            self.close()

    # -- records --------------------------------------------------------------------------------------------------

    def append_record(self, raw: bytes) -> int:
        """Append a rare record, after the dequeues that were settled before it."""
        self.close_dequeues()
        self.eager = True
        return self._append_record(raw)

    def barrier(self) -> int:
        """The log's end, behind a barrier that is still to be sent: when stable, every listed member has acknowledged since.

        One barrier serves a whole turn. Its own offset is no good for :meth:`Completions.complete`: later records of the turn may
        be awaited.
        """
        if self._barrier <= self._log.closed_end:
            self._barrier = self.append_record(record.BARRIER_RECORD)
        return self._log.end

    def provable(self) -> int:
        """The offset at which an answer may be told for which nothing may have been appended; the log's end.

        What is known here may rest on records that are not stable, or be history: a broker that was replaced must not tell it. Any
        record that is still to be sent proves that it was not. A broker alone needs no proof.
        """
        log = self._log
        if log.end == log.closed_end and not self._alone:
            self.barrier()
        return log.end

    def dequeue(self, queue: Queue, entry: Entry, reason: int) -> None:
        """Take one message out for good, outside any transaction. Consecutive ones become one record."""
        if entry.state == GONE:  # its queue was deleted meanwhile
            return
        queue.mark_dequeuing(entry)
        if not queue.logged:
            queue.remove(entry.id)
            return
        if reason != self._dequeue_reason and self._dequeues:
            self.close_dequeues()
        self._dequeue_reason = reason
        self._dequeues.append((queue.id, entry.id))

    def close_dequeues(self) -> None:
        """Append what was dequeued since the last record: whatever is appended next comes after it."""
        if self._dequeues:
            groups = groups_of(self._dequeues)
            self._dequeues = []
            offset = self._log.append(record.encode_dequeue(self._dequeue_reason, groups))
            self._log.pending.append((offset, DEQUEUE, groups))

    def append_dequeue(self, head: bytes, octets: bytes, queue: Queue, ids: Sequence[int]) -> None:
        """Append an encoded DEQUEUE of ``queue``: its head, and the octets of ``ids``, which are PURGED or DEQUEUING."""
        self.close_dequeues()
        if len(octets) >= LARGE_BYTES:
            self._log.hold_large()
        else:
            octets = bytes(octets)
        offset = self._log.append(head, octets)
        self._log.pending.append((offset, DEQUEUE, [(queue.id, ids)]))

    # -- publishes ------------------------------------------------------------------------------------------------

    def deadline(self, queue: Queue, expiration_ms: int | None, message: Message | None = None) -> int:
        """The `Clock.expiry_ms` at which ``message``, published now, has expired in ``queue``; 0 for never."""
        ttl = queue.time_to_live(expiration_ms, message)
        return 0 if ttl is None else max(1, self._expiry_now() + ttl)

    def publish(self, queues: list[Queue], message: Message, expiration_ms: int | None) -> int:
        """Enqueue outside any transaction; returns the offset at which it is stable."""
        self._totals["published"] += 1
        log = self._log
        if self._dequeues:
            self.close_dequeues()
        self.eager = True
        if message.__class__ is DelayedMessage:
            message.fall_due(record.deadline_at(message.due_ms, self._expiry_now()))
        offset = log.end + 1
        if len(queues) == 1:  # by far the most frequent
            queue = queues[0]
            if queue.logged and expiration_ms is None and queue.ttl_ms is None and queue.limits is None:
                queue.newest_id = entry_id = queue.newest_id + 1
                queue.brought_at = offset
                targets = [(queue.id, entry_id, 0)]
                head = record.encode_enqueue(targets, message, not (message.persistent and queue.durable))
                message.offset = log.append(head, message.properties, message.content())
                log.pending.append((offset, ENQUEUE, (message, targets)))
                return offset
        else:
            message.share()
        return self._publish_to_several(queues, message, expiration_ms, offset)

    def _publish_to_several(self, queues: list[Queue], message: Message, expiration_ms: int | None, offset: int) -> int:
        """As :meth:`publish`: any number of queues, of any kind. A record stands at ``offset``, which is the next."""
        log = self._log
        targets = []
        local: list[Queue] = []
        durable = noted = False
        for queue in queues:
            if queue.logged:
                queue.newest_id = entry_id = queue.newest_id + 1
                deadline = 0
                if queue.ttl_ms is not None or expiration_ms is not None:
                    deadline = self.deadline(queue, expiration_ms, message)
                    noted = True
                targets.append((queue.id, entry_id, deadline))
                durable = durable or queue.durable
                queue.brought_at = offset
                if queue.limits is not None:
                    queue.limits.published(message.size)
                    noted = True
            else:
                local.append(queue)
        if targets:
            transient = not (message.persistent and durable)
            message.offset = log.append(
                record.encode_enqueue(targets, message, transient), message.properties, message.content()
            )
            assert message.offset == offset
            if noted:
                log.pending.append((offset, ENQUEUE_NOTED, (message, targets, self._counters.subscriptions)))
            else:
                log.pending.append((offset, ENQUEUE, (message, targets)))
        for queue in local:
            self.publish_local(queue, message, expiration_ms)
        return log.end

    def publish_local(self, queue: Queue, message: Message, expiration_ms: int | None) -> None:
        """Enqueue in a queue that is not in the log, behind what has been appended."""
        log = self._log
        entry = (queue, message, self.deadline(queue, expiration_ms, message), self._counters.subscriptions)
        if queue.limits is not None:
            queue.limits.published(message.size)
        if log.pending:
            log.pending.append((log.end, Change.ENQUEUE_LOCAL, entry))
            queue.brought_at = log.end
        else:  # nothing stands before it, and it waits for no disk itself
            self._apply_local(entry)

    def _apply_noted(self, argument: tuple[Message, list[record.Target], int]) -> None:
        """Apply what this broker has published to queues with limits, or with a deadline."""
        message, targets, subscriptions = argument
        state = self.state
        self._apply_enqueue((message, targets))
        for queue_id, entry_id, deadline in targets:
            queue = state.queues.get(queue_id)
            if queue is None:
                continue
            if queue.limits is not None:
                queue.limits.applied(message.size)
            if deadline:
                state.arrived.append((queue, entry_id, subscriptions))

    def _apply_local(self, argument: tuple[Queue, Message, int, int]) -> None:
        queue, message, deadline, subscriptions = argument
        if not queue.deleted:
            message.stay()
            entry_id = queue.next_id()
            queue.enqueue(entry_id, message, deadline)
            if queue.window is not None:
                self.state.id_windows.note(self.state.queues, 0, [(queue.id, entry_id, 0)], message)
            if queue.limits is not None:
                queue.limits.applied(message.size)
            if deadline:
                self.state.arrived.append((queue, entry_id, subscriptions))
            self.state.schedule(queue)
