"""The broker as its channels see it: publish, settle, declare, commit; and the turn that makes all of it durable at once.

A driver does, in every turn: ``tick`` (time), ``Connection.receive`` for what has arrived, ``durable`` if an fsync came
back, then ``end_turn`` once: what has become stable is applied, the completion queue releases what clients wait for, in log
order, consumers are served, and publishers get their confirms; then the turn's commits are ordered and one batch is closed and
handed to the journal and to the plugin's links. There is no other way out: nothing in here answers early.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.field_table import encode_table
from understudy.broker.coordinators import CoordinatorChoice, Trigger
from understudy.broker.core.branches.dtx_manager import DtxManager
from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
from understudy.broker.core.clients.judged_publishes import JudgedPublishes
from understudy.broker.core.clients.reception import Reception
from understudy.broker.core.clients.unstable_bytes import UnstableBytes
from understudy.broker.core.commits.alone import AloneStability
from understudy.broker.core.commits.parted_bodies import PartedBodies
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.limits import Limits
from understudy.broker.core.moving.dead_letter_moves import Moving
from understudy.broker.core.moving.deduplicating import Deduplicating
from understudy.broker.core.moving.delays import Delays
from understudy.broker.core.moving.expiry import Expiry
from understudy.broker.core.moving.returning import Returning
from understudy.broker.core.queues.consumer_order import ConsumerOrder
from understudy.broker.core.queues.entry import GONE, READY, Entry
from understudy.broker.core.queues.priority_queue import queue_class
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.requests.admin import AdminCommands
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchange_deletion import delete_unbound
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.counters import Counters
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.turn.work_refusals import WorkRefusals
from understudy.broker.core.watching.hooks import Hooks
from understudy.broker.core.watching.pause_watch import PauseWatch
from understudy.broker.log import record
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.log import journal_form
from understudy.broker.log.pending import DEQUEUE, ENQUEUE, ENQUEUE_NOTED, Change
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.message import DelayedMessage, Message
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.plugin_api.plugin import Stability
from understudy.broker.transactions.outcomes import Outcome
from understudy.broker.transactions.tx_buffer import TxBuffer, groups_of

if TYPE_CHECKING:
    from understudy.broker.core.clients.connection import Connection
    from understudy.broker.core.queues.consumer import Consumer


OPEN_BYTES = 128 << 10
"""An open batch of that many message bytes is closed though nobody waits for it."""
LARGE_BATCH_BYTES = 256 << 20
"""With so much of large messages a batch is closed within a turn: one may be 512 MiB, and a batch takes a gigabyte."""
LAZY_MS = 2
"""Records that nobody waits for stay in the open batch at most that long, unless ``group.max_wait_ms`` says otherwise."""


class Broker:
    """One broker process's core.

    Attributes:
        name: this broker's id; "" before it leads.
        leading: it may change state: standalone, or the primary of its group.
        answering: it may tell and deliver; False while a promoted broker is recovering.
        default_level: of queues that do not say how much of them is replicated; None: nothing is, this broker is alone.
        clock: the times that this core goes by.
        work: why new work is refused.
        counters: what this core has counted.
        reception: connections, and what becomes of clients that come now.
        unstable: octets that are not stable, of all connections.
        hooks: listeners.
        frozen: no batch is closed: what is appended goes out when this is over, or is lost with this core. What is in the log
            becomes stable and is answered as ever.
        leaving: it turns its clients away. That a consumer goes with them says nothing of its queue: the client comes back, here
            or elsewhere.
    """

    def __init__(
        self,
        state: BrokerState,
        gate: JournalGate,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        expiry_clock: ExpiryClock | None = None,
        coordinator: CoordinatorChoice | None = None,
    ) -> None:
        self.state = state
        self.log = state.log
        self.log.applies(Change.ENQUEUE_NOTED, self._apply_noted)
        self.log.applies(Change.ENQUEUE_LOCAL, self._apply_local)
        self.gate = gate
        self.limits = limits
        self.random_bytes = random_bytes
        self.stability: Stability = AloneStability(state)
        self.leading = False
        self.answering = False
        self.frozen = self.leaving = False
        self.default_level: ReplicationLevel | None = None
        self.clock = Clock(expiry_clock)
        self.epoch = 0
        self.name = ""
        self.work, self.counters, self.reception = WorkRefusals(), Counters(), Reception()
        self.unstable = UnstableBytes(limits, self.reception)
        self.hooks = Hooks(state.on_requeued)
        self._totals = self.counters.totals
        self.parted_bodies, self.pauses = PartedBodies(self), PauseWatch(self)
        self.publishers: list[Connection] = []
        self.after_release: list[Callable[[], None]] = []
        self.barred_names: dict[str, int] = {}
        self._completions: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self._dequeues: list[tuple[int, int]] = []
        self._dequeue_reason = record.ACKNOWLEDGED
        self._eager = False
        self._open_bytes = self._large_bytes = 0
        self._sequence = 0
        self._local_id = 0
        self._hold_commits = limits.hold_commits
        self._group_count = limits.group_count or sys.maxsize
        self._barrier = 0
        self.dtx, self.admin = DtxManager(self), AdminCommands(self)
        self.expiry = Expiry(self)
        self.moving, self.consumer_timeouts = Moving(self), ConsumerTimeouts(self)
        self.returning, self.delays = Returning(self), Delays(self)
        self.deduplicating, self.judged = Deduplicating(self), JudgedPublishes(self)
        # At the end: the coordinator of a plugin may ask its host for anything while it is made.
        self.transactions = Transactions(self, coordinator)

    # -- leading --------------------------------------------------------------------------------------------------

    def lead(self, epoch: int, name: str, transients_lost: bool) -> int:
        """Begin ``epoch`` as its primary: append EPOCH, make every queue ready to serve. Returns EPOCH's offset.

        Nothing is answered until ``answering`` is set by whoever knows that the epoch is acknowledged.
        """
        state = self.state
        log = self.log
        log.begin_epoch(epoch)
        self.epoch = epoch
        self.name = name
        self.leading = state.deciding = self._eager = True
        offset = state.append_record(record.encode_epoch(epoch, name, transients_lost, self.clock.wall_ms))
        for tx_id, csn in state.owed_commits():
            state.append_record(record.encode_commit(tx_id, csn, self.clock.wall_ms))
        self.barred_names = state.pending_bars()
        floor = epoch << ID_EPOCH_SHIFT
        for queue in state.queues.values():
            queue.activate(floor, floor)
            queue.used_ms = self.clock.running_ms
            queue.adopted = True
        self.expiry.adopt_exchanges()
        return offset

    def serve(self) -> None:
        """Admit clients and answer from now on. This epoch's EPOCH record is stable."""
        self.log.apply_up_to(self.stability.stable_offset())
        self.dtx.adopt()
        self.reception.admit()
        self.answering = True
        self.moving.begin()
        self.barred_names = {name: at for name, at in self.barred_names.items() if self.bars(name)}
        for queue in self.state.queues.values():
            queue.used_ms = self.clock.running_ms  # nobody was answered before
            self.schedule(queue)
        self.expiry.begin_grace()
        self.expiry.messages.begin()

    def next_queue_id(self) -> int:
        self._sequence += 1
        return self.epoch << ID_EPOCH_SHIFT | self._sequence

    def next_local_id(self) -> int:
        """An id for a queue that the log does not declare: epoch 0, so it can never be taken for one that it does."""
        self._local_id += 1
        return self._local_id

    def refuse_work(self, cause: str, reason: str) -> None:
        """Refuse new work for ``cause``, or no more (`WorkRefusals.refuse`); connections that it concerns hear of it."""
        work = self.work
        before = work.reason
        work.refuse(cause, reason)
        if work.reason == before:
            return
        if work.reason:
            self.reception.recheck_paused()
        else:
            self.reception.recheck_all()

    def commit_refused(self, tx: TxBuffer, *, brings: bool = False) -> str:
        """Why ``tx`` may not commit now, "" if it may; with ``brings`` it is about to publish more."""
        if self.state.registry.refusing and (overflow := self.moving.overflow_of(tx)):
            return overflow
        if tx.ids and (conflict := self.deduplicating.conflict(tx)):
            return conflict
        if brings or not self.work.reason or any(message is not None for _, message, _ in tx.events):
            return self.work.reason
        return self.work.that_taking_does_not_end()

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Time passes. ``now_ms`` is monotonic and drives every time-out; ``wall_ms`` is what records and pages show."""
        clock = self.clock
        clock.tick(now_ms, wall_ms)
        self.pauses.ticked(now_ms)
        self.reception.tick(now_ms)
        self.unstable.permit.tick(clock.running_ms)
        if self.leading and self.answering:
            self.expiry.tick(now_ms)
            self.delays.look()
            self.dtx.tick(clock.running_ms)
            self.transactions.coordinator.tick()
            self.consumer_timeouts.tick(clock.running_ms)

    # -- the turn -------------------------------------------------------------------------------------------------

    def note_open_bytes(self, size_bytes: int) -> None:
        """A message of an open transaction is about to be appended: nobody waits for it, but it takes memory."""
        self._totals["published"] += 1
        self._open_bytes += size_bytes
        if self._dequeues:
            self.close_dequeues()

    def note_part(self) -> None:
        """A part of a body is about to be appended: the parts behind it wait for it to become stable."""
        self._eager = True
        self.close_dequeues()

    def append_record(self, raw: bytes) -> int:
        """Append a rare record, after the dequeues that were settled before it."""
        self.close_dequeues()
        self._eager = True
        return self.state.append_record(raw)

    def end_turn(self, flush: bool = False) -> bool:
        """Apply and answer what has become stable, order the turn's commits, close the turn's batch if anybody waits for it.

        Records that nobody waits for (the events of open transactions, COMMIT, settlements) stay in the open batch and go
        with the next one that somebody does: a commit then costs one sync, not two. ``flush`` sends them anyway, and orders
        the commits that ``hold_commits`` holds back.

        Returns:
            Whether something is left: the driver ends another turn with ``flush`` within ``LAZY_MS``.
        """
        if self.leading:
            self.advance()
        return self.gather(flush)

    @property
    def urgent(self) -> bool:
        """True if the turn has gathered something that is waited for."""
        return self._eager or self.transactions.coordinator.fresh() > 0 or self._waited_for()

    def _waited_for(self) -> bool:
        return bool(self._completions) and self._completions[-1][0] > self.log.closed_end

    def gather(self, flush: bool = False) -> bool:
        """The second half of :meth:`end_turn`: order the turn's commits and close its batch."""
        if not self.leading or self.frozen:
            return False
        order = self.transactions.coordinator
        if not self._hold_commits:
            order.run_group(Trigger.TURN, flush)
        elif flush:
            order.run_group(Trigger.MIN_WAIT, flush)
        elif order.fresh() >= self._group_count:
            order.run_group(Trigger.COUNT)
        held = order.waiting() > 0 or self.moving.due or self.delays.due
        if self.returning.gathered:
            self.returning.write()
        log = self.log
        if self._dequeues:
            self.close_dequeues()
        if log.end == log.closed_end:
            if self.publishers:  # to queues outside the log
                self._close_batch()
            return held
        if not (self._waited_for() or flush or self._eager or self._open_bytes >= OPEN_BYTES):
            return True
        self._close_batch()
        return held

    def note_large(self, size_bytes: int) -> None:
        """A message of `MANY_READS_BYTES` or more has been appended."""
        self._large_bytes += size_bytes
        if size_bytes >= LARGE_BYTES:
            self.log.holds_large = True
        if self._large_bytes >= LARGE_BATCH_BYTES and not self.frozen:
            self._close_batch()

    def _close_batch(self) -> None:
        """Hand on what has been appended, if anything; what was published is outstanding until it is stable."""
        log = self.log
        for connection in self.publishers:
            connection.turn_ended(log.end)
        self.publishers.clear()
        self._eager = False
        self._open_bytes = self._large_bytes = 0
        batch = log.close_batch()
        if batch is None:  # it all went to queues outside the log
            return
        self.gate.append_batch(journal_form(batch), batch.last)
        log.kept.trim(log.applied)
        self.stability.batch_closed(batch)

    def durable(self, offset: int) -> None:
        """The journal has fsynced up to ``offset``; what follows from it happens at the end of the turn."""
        self.log.note_durable(offset)

    def advance(self) -> None:
        """Apply what has become stable, serve consumers, release what clients wait for."""
        self.log.apply_up_to(self.stability.stable_offset())
        if self.parted_bodies.waiting:
            self.parted_bodies.go_on()
        if not self.answering:
            return
        self.moving.go_on()
        if self.delays.any:
            self.delays.look()
        applied = self.log.applied
        completions = self._completions
        while completions and completions[0][0] <= applied:
            _, release, argument = completions.popleft()
            release(argument)
        if self.state.scheduled:
            self._dispatch()
        if self.state.arrived or self.expiry.messages.fresh:
            self.expiry.messages.drop_fresh()
        if self.state.overfull:
            self.moving.drop_overfull()
        if self.after_release:
            for flush in self.after_release:
                flush()
            self.after_release.clear()

    def complete(self, offset: int, release: Callable[[Any], None], argument: Any) -> None:
        """Call ``release(argument)`` when the log is applied up to ``offset``. Calls must come with ascending offsets."""
        assert not self._completions or offset >= self._completions[-1][0]
        self._completions.append((offset, release, argument))

    def barrier(self) -> int:
        """The log's end, behind a barrier that is still to be sent: when stable, every listed member has acknowledged since.

        One barrier serves a whole turn. Its own offset is no good for :meth:`complete`: later records of the turn may be awaited.
        """
        if self._barrier <= self.log.closed_end:
            self._barrier = self.append_record(record.BARRIER_RECORD)
        return self.log.end

    def provable(self) -> int:
        """The offset at which an answer may be told for which nothing may have been appended; the log's end.

        What is known here may rest on records that are not stable, or be history: a primary that was replaced must not tell it. Any
        record that is still to be sent proves that it was not. A broker alone needs no proof.
        """
        log = self.log
        if log.end == log.closed_end and not isinstance(self.stability, AloneStability):
            self.barrier()
        return log.end

    def bar_name(self, name: str) -> int:
        """Make "rolled back" the outcome of ``name``, under which no transaction commits then; returns the record's offset."""
        raw = record.encode_outcome(name, Outcome.ROLLED_BACK, self.clock.wall_ms)
        offset = self.barred_names[name] = self.append_record(raw)
        return offset

    def bars(self, name: str) -> bool:
        """True if an unapplied record bars ``name``: once it is applied the outcomes say so, as long as they are kept."""
        return self.barred_names.get(name, 0) > self.log.applied

    # -- messages -------------------------------------------------------------------------------------------------

    def deadline(self, queue: Queue, expiration_ms: int | None, message: Message | None = None) -> int:
        """``expiry_ms`` at which ``message``, published now, has expired in ``queue``; 0 for never."""
        ttl = queue.time_to_live(expiration_ms, message)
        return 0 if ttl is None else max(1, self.clock.expiry_now() + ttl)

    def publish(self, queues: list[Queue], message: Message, expiration_ms: int | None) -> int:
        """Enqueue outside any transaction; returns the offset at which it is stable."""
        self._totals["published"] += 1
        log = self.log
        if self._dequeues:
            self.close_dequeues()
        self._eager = True
        if message.__class__ is DelayedMessage:
            message.due_ms = record.deadline_at(message.due_ms, self.clock.expiry_now())
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
            message.shared = True
        return self._publish_to_several(queues, message, expiration_ms, offset)

    def _publish_to_several(self, queues: list[Queue], message: Message, expiration_ms: int | None, offset: int) -> int:
        """As :meth:`publish`: any number of queues, of any kind. A record stands at ``offset``, which is the next."""
        log = self.log
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
                log.pending.append((offset, ENQUEUE_NOTED, (message, targets, self.expiry.messages.subscriptions)))
            else:
                log.pending.append((offset, ENQUEUE, (message, targets)))
        for queue in local:
            self.publish_local(queue, message, expiration_ms)
        return log.end

    def publish_local(self, queue: Queue, message: Message, expiration_ms: int | None) -> None:
        """Enqueue in a queue that is not in the log, behind what has been appended."""
        log = self.log
        entry = (queue, message, self.deadline(queue, expiration_ms, message), self.expiry.messages.subscriptions)
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
        state.apply_enqueue((message, targets))
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
            entry_id = queue.next_id()
            queue.enqueue(entry_id, message, deadline)
            if queue.window is not None:
                self.state.id_windows.note(self.state.queues, 0, [(queue.id, entry_id, 0)], message)
            if queue.limits is not None:
                queue.limits.applied(message.size)
            if deadline:
                self.state.arrived.append((queue, entry_id, subscriptions))
            self.schedule(queue)

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

    def comes(self, queue: Queue) -> bool:
        """True if a message for ``queue`` was published, or is being committed, and is not applied yet.

        What has been committed in this turn is ordered now: its client has said so before. What a coordinator withholds all the
        same counts, too. A commit that a member refuses counts until its place is reached.
        """
        order = self.transactions.coordinator
        order.run_group(Trigger.BLOCKED)
        return queue.brought_at > self.log.applied or order.brings(queue.id)

    def expired(self, queue: Queue, entry: Entry) -> None:
        """Let go of a message that was taken and whose time has passed."""
        self._totals["expired"] += 1
        self.moving.leave(queue, entry, record.EXPIRED)

    def close_dequeues(self) -> None:
        """Append what was dequeued since the last record: whatever is appended next comes after it."""
        if self._dequeues:
            groups = groups_of(self._dequeues)
            self._dequeues = []
            offset = self.log.append(record.encode_dequeue(self._dequeue_reason, groups))
            self.log.pending.append((offset, DEQUEUE, groups))

    def purge(self, queue: Queue) -> int:
        """Dequeue all that may be handed out, now or later; what is handed out or embargoed stays. Returns how many."""
        entries = queue.unheld_entries()
        for entry in entries:
            self.dequeue(queue, entry, record.PURGED)
        queue.forget_taken()
        return len(entries)

    def requeue(self, queue: Queue, entry: Entry, failed: bool = False) -> None:
        """Put a handed-out message back at its place, or send it away if it has failed too often.

        Args:
            queue: where it is.
            entry: was handed out.
            failed: so has what its consumer did with it (docs/amqp.md, *Messages that come back*).
        """
        rule = queue.return_rule
        if rule is None or self.leaving or (queue.logged and not self.log.may_hold(record.RETURN)):
            queue.put_back(entry)
        elif not self.returning.come_back(queue, entry, rule, failed):
            return
        if entry.state == READY:  # else that is told when the message is at its place
            for told in self.state.on_requeued:
                told(queue, entry)
        self.schedule(queue)

    def schedule(self, queue: Queue) -> None:
        """``queue`` may have something for its consumers."""
        if queue.consumers and not queue.scheduled:
            queue.scheduled = True
            self.state.scheduled.append(queue)

    def _dispatch(self) -> None:
        scheduled = self.state.scheduled
        if scheduled:
            self.pauses.look()
        if self.state.arrived:
            self.expiry.messages.note_arrivals()
        while scheduled:
            batch = scheduled[:]
            scheduled.clear()
            for queue in batch:
                queue.scheduled = False
                if queue.order is None:
                    self._serve(queue, queue.consumers)
                else:
                    self._serve_in_order(queue, queue.order)

    def look_into(self, queue: Queue) -> None:
        """Before a method takes from ``queue``, or counts: waiting consumers get what is due to them.

        Then messages leave that have expired, or are too many.
        """
        if not self.answering:
            return
        if self.state.arrived:
            self.expiry.messages.note_arrivals()
        if queue.scheduled:
            self.pauses.look()
            if queue.order is None:
                self._serve(queue, queue.consumers)
            else:
                self._serve_in_order(queue, queue.order)
        if self.delays.any:
            self.delays.look()
        self.expiry.messages.drop(queue)
        if queue.limits is not None:
            self.moving.drop_head(queue)

    def _serve_in_order(self, queue: Queue, order: ConsumerOrder) -> None:
        if queue.waits_for_order:
            return
        for line in order.lines():
            self._serve(queue, line)

    def _serve(self, queue: Queue, consumers: deque[Consumer]) -> None:
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            consuming = consumer.consuming
            if not consumer.can_take() or (
                consuming.shared_limit and not consumer.no_ack and consuming.gives_way(consumer)
            ):
                consumers.rotate(-1)
                idle += 1
                continue
            entry = self.take(queue, consumer)
            if entry is None:
                return
            idle = 0
            consumer.deliver(entry)
            consumers.rotate(-1)

    def take(self, queue: Queue, consumer: Consumer | None = None) -> Entry | None:
        """The next message of ``queue`` that has not expired, marked as handed out.

        A ``consumer`` that waits may have a fresh one nevertheless (`MessageExpiry`).
        """
        while True:
            entry = queue.take()
            if entry is None or not entry.deadline_ms or self.expiry.messages.spares(queue, entry, consumer):
                return entry
            self.expired(queue, entry)

    # -- topology -------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        vhost: str,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        level: ReplicationLevel,
        owner: Any,
    ) -> Queue:
        """Declare a new queue. With an ``owner`` (a connection) it is exclusive, and of level NONE."""
        if not level.declared_in_log:
            queue = queue_class(arguments)(
                self.next_local_id(),
                vhost,
                name,
                durable=durable,
                auto_delete=auto_delete,
                arguments=arguments,
                live=LiveOffsets(),  # none of it is read from the journal again: it keeps no segment of it
                level=level,
                owner=owner,
                overfull=self.state.overfull.append,
                withholds=self.state.withhold.append,
            )
            self.state.queues[queue.id] = queue
            self.state.deduplicates = self.state.deduplicates or queue.window is not None
            self.state.registry.add_queue(queue)
        else:
            flags = (record.DURABLE if durable else 0) | (record.AUTO_DELETE if auto_delete else 0)
            if not level.messages_in_log:
                flags |= record.DEFINITION_ONLY
            queue_id = self.next_queue_id()
            self.append_record(record.encode_queue_declare(queue_id, vhost, name, flags, encode_table(arguments)))
            queue = self.state.queues[queue_id]
            queue.activate(0, self.epoch << ID_EPOCH_SHIFT)
        queue.used_ms = self.clock.running_ms
        return queue

    def delete_queue(self, queue: Queue) -> int:
        """Delete. Returns how many messages could have been handed out.

        Consumers get nothing more. Their clients are told when the deletion is stable, after whatever else is answered then: a
        client that deletes the queue on the same channel waits for ``queue.delete-ok``.
        """
        depth = queue.depth
        consumers = list(queue.consumers)
        for consumer in consumers:
            consumer.cancelled_by_broker()
        bound = self.state.registry.exchanges_of(queue)
        if queue.level.declared_in_log:
            self.append_record(record.encode_queue_delete(queue.id, queue.durable))
        else:
            queue.deleted = True
            self.state.registry.remove_queue(queue)
            self.state.queues.pop(queue.id, None)
            queue.clear()
        if queue.owner is not None:
            queue.owner.exclusive_queues.remove(queue)
        delete_unbound(self, bound)
        if consumers:
            self.complete(self.log.end, self.after_release.extend, [each.tell_cancelled for each in consumers])
        return depth

    # -- leaving --------------------------------------------------------------------------------------------------

    def close_clients(self, name: str, text: str) -> None:
        """Turn every client away with connection.close 320. This core takes no others."""
        self.leaving = True
        self.reception.close_all(name, text)
