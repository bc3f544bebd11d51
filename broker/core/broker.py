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
from typing import TYPE_CHECKING, Final

from understudy.broker.coordinators import Trigger
from understudy.broker.core.branches.dtx_manager import DtxManager
from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
from understudy.broker.core.clients.judged_publishes import JudgedPublishes
from understudy.broker.core.commits.parted_bodies import PartedBodies
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.limits import Limits
from understudy.broker.core.moving.dead_letter_moves import Moving
from understudy.broker.core.moving.deduplicating import Deduplicating
from understudy.broker.core.moving.delays import Delays
from understudy.broker.core.moving.expiry import Expiry
from understudy.broker.core.moving.returning import Returning
from understudy.broker.core.owned import Owned
from understudy.broker.core.queues.consumer_order import ConsumerOrder
from understudy.broker.core.queues.entry import READY, Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.requests.admin import AdminCommands
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchange_deletion import delete_unbound
from understudy.broker.core.watching.pause_watch import PauseWatch
from understudy.broker.log import record
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.queues.consumer import Consumer


APPLIED_AT_ONCE: Final = 2_000
"""A turn applies so many changes at most, some ten milliseconds; others wait for the next one, which follows at once."""
LAZY_MS = 2
"""Records that nobody waits for stay in the open batch at most that long, unless ``group.max_wait_ms`` says otherwise."""


class Broker:
    """One broker process's core.

    Built by ``life/building.py``: the owners of its state first, then its parts, which may call it.

    Attributes:
        clock: the times that this core goes by.
        role: what it may do, and in whose epoch.
        work: why new work is refused.
        counters: what this core has counted.
        reception: connections, and what becomes of clients that come now.
        unstable: octets that are not stable, of all connections.
        hooks: listeners.
        completions: answers that wait for the log.
        batch: what has been appended and is not handed on yet.
        name_bars: names under which nothing may commit any more.
        declarations: of queues.
    """

    dtx: DtxManager
    admin: AdminCommands
    expiry: Expiry
    moving: Moving
    consumer_timeouts: ConsumerTimeouts
    returning: Returning
    delays: Delays
    deduplicating: Deduplicating
    judged: JudgedPublishes
    pauses: PauseWatch
    parted_bodies: PartedBodies
    transactions: Transactions

    def __init__(self, state: BrokerState, limits: Limits, random_bytes: Callable[[int], bytes], owned: Owned) -> None:
        self.state = state
        self.topology = state.topology
        self.log = state.log
        self.limits = limits
        self.random_bytes = random_bytes
        self.clock = owned.clock
        self.role = owned.role
        self.work = owned.work
        self.counters = owned.counters
        self.reception = owned.reception
        self.unstable = owned.unstable
        self.hooks = owned.hooks
        self.completions = owned.completions
        self.batch = owned.batch
        self.name_bars = owned.name_bars
        self.declarations = owned.declarations
        self._hold_commits = limits.hold_commits
        self._group_count = limits.group_count or sys.maxsize

    def take_parts(
        self,
        *,
        dtx: DtxManager,
        admin: AdminCommands,
        expiry: Expiry,
        moving: Moving,
        consumer_timeouts: ConsumerTimeouts,
        returning: Returning,
        delays: Delays,
        deduplicating: Deduplicating,
        judged: JudgedPublishes,
        pauses: PauseWatch,
        parted_bodies: PartedBodies,
    ) -> None:
        """Have the parts that call this broker."""
        self.dtx, self.admin, self.expiry, self.moving = dtx, admin, expiry, moving
        self.consumer_timeouts, self.returning, self.delays = consumer_timeouts, returning, delays
        self.deduplicating, self.judged = deduplicating, judged
        self.pauses, self.parted_bodies = pauses, parted_bodies

    def take_transactions(self, transactions: Transactions) -> None:
        """Have the transactions. The coordinator of a plugin may have asked for any other part while they were made."""
        self.transactions = transactions

    # -- leading --------------------------------------------------------------------------------------------------

    def lead(self, epoch: int, name: str, transients_lost: bool) -> int:
        """Begin ``epoch`` and lead it: append EPOCH, make every queue ready to serve. Returns EPOCH's offset.

        Nothing is answered before :meth:`serve`, which is called when the epoch is known to be acknowledged.
        """
        state = self.state
        log = self.log
        log.begin_epoch(epoch)
        self.role.lead(epoch, name)
        state.applying.lead()
        self.batch.note_awaited()
        known = state.handed_out_before(epoch)
        offset = state.taking.append_record(record.encode_epoch(epoch, name, transients_lost, self.clock.wall_ms))
        for tx_id, csn in state.applying.owed_commits():
            state.taking.append_record(record.encode_commit(tx_id, csn, self.clock.wall_ms))
        self.name_bars.adopt(state.applying.pending_bars())
        floor = epoch << ID_EPOCH_SHIFT
        for queue in state.queues.values():
            queue.activate(known.get(queue.id, floor), floor)
            queue.adopt(self.clock.running_ms)
        self.expiry.adopt_exchanges()
        return offset

    def serve(self) -> None:
        """Admit clients and answer from now on. This epoch's EPOCH record is stable."""
        self.log.apply_up_to(self.batch.stability.stable_offset())
        self.dtx.adopt()
        self.reception.admit()
        self.role.answer()
        self.moving.begin()
        self.name_bars.forget_applied()
        for queue in self.state.queues.values():
            queue.used(self.clock.running_ms)  # no client was answered before
            self.state.schedule(queue)
        self.expiry.begin_grace()
        self.expiry.messages.begin()

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
        if self.topology.registry.refusing and (overflow := self.moving.overflow_of(tx)):
            return overflow
        if tx.ids and (conflict := self.deduplicating.conflict(tx)):
            return conflict
        if brings or not self.work.reason or any(message is not None for _, message, _ in tx.events):
            return self.work.reason
        return self.work.lasting_reason()

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Time passes. ``now_ms`` is monotonic and drives every time-out; ``wall_ms`` is what records and pages show."""
        clock = self.clock
        clock.tick(now_ms, wall_ms)
        self.pauses.ticked(now_ms)
        self.reception.tick(now_ms)
        self.unstable.permit.tick(clock.running_ms)
        if self.role.leading and self.role.answering:
            self.expiry.tick(now_ms)
            self.delays.look()
            self.dtx.tick(clock.running_ms)
            self.transactions.coordinator.tick()
            self.consumer_timeouts.tick(clock.running_ms)

    # -- the turn -------------------------------------------------------------------------------------------------

    def end_turn(self, flush: bool = False) -> bool:
        """Apply and answer what has become stable, order the turn's commits, close the turn's batch if anybody waits for it.

        Records that nobody waits for (the events of open transactions, COMMIT, settlements) stay in the open batch and go
        with the next one that somebody does: a commit then costs one sync, not two. ``flush`` sends them anyway, and orders
        the commits that ``hold_commits`` holds back.

        Returns:
            Whether something is left: the driver ends another turn with ``flush`` within ``LAZY_MS``.
        """
        if self.role.leading:
            self.advance()
        return self.gather(flush)

    def gather(self, flush: bool = False) -> bool:
        """The second half of :meth:`end_turn`: order the turn's commits and close its batch."""
        batch = self.batch
        if not self.role.leading or batch.frozen:
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
        return batch.end_turn(flush, held)

    def durable(self, offset: int) -> None:
        """The journal has fsynced up to ``offset``; what follows from it happens at the end of the turn."""
        self.log.note_durable(offset)

    def advance(self) -> None:
        """Apply what has become stable, serve consumers, release what clients wait for."""
        log = self.log
        log.apply_up_to(self.batch.stability.stable_offset(), APPLIED_AT_ONCE)
        if self.parted_bodies.waiting:
            self.parted_bodies.go_on()
        if not self.role.answering:
            return
        self.moving.go_on()
        if self.delays.any:
            self.delays.look()
        applied = log.applied
        completions = self.completions
        waiting = completions.waiting
        while waiting and waiting[0][0] <= applied:  # hot: no call of the owner in each turn
            _, release, argument = waiting.popleft()
            release(argument)
        state = self.state
        if state.scheduled:
            self._dispatch()
        if state.arrived or self.expiry.messages.fresh:
            self.expiry.messages.drop_fresh()
        if state.overfull:
            self.moving.drop_overfull()
        if completions.after_release:
            for flush in completions.after_release:
                flush()
            completions.after_release.clear()

    # -- messages -------------------------------------------------------------------------------------------------

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
        self.counters.totals["expired"] += 1
        self.moving.leave(queue, entry, record.EXPIRED)

    def requeue(self, queue: Queue, entry: Entry, failed: bool = False) -> None:
        """Put a handed-out message back at its place, or send it away if it has failed too often.

        Args:
            queue: where it is.
            entry: was handed out.
            failed: so has what its consumer did with it (docs/amqp.md, *Messages that come back*).
        """
        rule = queue.return_rule
        if rule is None or self.role.leaving or (queue.logged and not self.log.may_hold(record.RETURN)):
            queue.put_back(entry)
        elif not self.returning.come_back(queue, entry, rule, failed):
            return
        if entry.state == READY:  # else that is told when the message is at its place
            for told in self.hooks.on_requeued:
                told(queue, entry)
        self.state.schedule(queue)

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
        if not self.role.answering:
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

        A ``consumer`` that waits may have a fresh one nevertheless (`MessageExpiry`), and gets one whose body is in memory: None
        may mean that it is being fetched.
        """
        while True:
            entry = queue.take()
            if entry is None:
                return None
            if not entry.deadline_ms or self.expiry.messages.spares(queue, entry, consumer):
                if entry.message.body.__class__ is PagedBodies:
                    if consumer is not None:
                        self.state.paging.wait_for(queue, entry)
                        return None
                    self.state.paging.fetch(queue)
                return entry
            self.expired(queue, entry)

    # -- topology -------------------------------------------------------------------------------------------------

    def delete_queue(self, queue: Queue) -> int:
        """Delete. Returns how many messages could have been handed out.

        Consumers get nothing more. Their clients are told when the deletion is stable, after whatever else is answered then: a
        client that deletes the queue on the same channel waits for ``queue.delete-ok``.
        """
        depth = queue.depth
        consumers = list(queue.consumers)
        for consumer in consumers:
            consumer.cancelled_by_broker()
        bound = self.topology.registry.exchanges_of(queue)
        if queue.level.declared_in_log:
            self.batch.append_record(record.encode_queue_delete(queue.id, queue.durable))
        else:
            self.state.topology.remove_local(queue)
        if queue.owner is not None:
            queue.owner.exclusive_queues.remove(queue)
        delete_unbound(self.topology.registry, self.batch.append_record, bound)
        if consumers:
            completions = self.completions
            telling = [each.tell_cancelled for each in consumers]
            completions.complete(self.log.end, completions.after_release.extend, telling)
        return depth

    # -- leaving --------------------------------------------------------------------------------------------------

    def close_clients(self, name: str, text: str) -> None:
        """Turn every client away with connection.close 320. This core takes no others."""
        self.role.leave()
        self.reception.close_all(name, text)
