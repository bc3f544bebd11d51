"""Bugs of messages that come back, or come late: counts, limits and due times."""

from __future__ import annotations

from heapq import heappush
from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients import publishing
from understudy.broker.core.moving import delayed_publish
from understudy.broker.core.moving.returning import Returning
from understudy.broker.core.queues.entry import RETURNING, WITHHELD, Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.queue_returns import QueueReturns
from understudy.broker.core.queues.return_rule import ReturnRule
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.topology.registry import VirtualHost
from understudy.broker.log.record import FROM_COMMIT
from understudy.broker.log.return_record import Returned, ReturnGroup
from understudy.broker.message import DelayedMessage, Message
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator import snapshot
from understudy.replicator.id_set import IdSet, IdsLeft
from understudy.replicator.sending.replicating_subscription import ReplicatingSubscription


@mutation("G1", "returns")
def a_backup_counts_nothing(bug: Bug) -> None:
    """Only a primary knows how often a message has failed."""
    real = Applying.apply_return

    def apply_return(self: Applying, groups: list[ReturnGroup]) -> None:
        if self.deciding:
            real(self, groups)
        else:
            bug.strike()

    bug.replace(Applying, "apply_return", apply_return)


@mutation("returns", "G1")
def a_failure_is_told_before_it_is_stable(bug: Bug) -> None:
    """A message is handed out with its new count while the record of that may still be lost with the primary."""
    real = Returning.come_back

    def come_back(self: Returning, queue: Queue, entry: Entry, rule: ReturnRule, failed: bool) -> bool:
        stays = real(self, queue, entry, rule, failed)
        if stays and entry.state == RETURNING and queue.logged and not rule.delays(failed):
            bug.strike()
            queue.come_back(*self.gathered[queue][-1])
            self._broker.state.schedule(queue)
        return stays

    bug.replace(Returning, "come_back", come_back)


@mutation("G1", "returns", "due")
def a_catch_up_forgets_counts(bug: Bug) -> None:
    """Messages that a catch-up has brought have never failed."""
    real = snapshot.encode_queue_piece

    def encode_queue_piece(
        kind: int, queue_id: int, transient: bool, entries: list[Entry], returns: QueueReturns | None = None
    ) -> bytes:
        bug.strikes += returns is not None and any(entry.id in returns.known for entry in entries)
        return real(kind, queue_id, transient, entries)

    bug.replace(snapshot, "encode_queue_piece", encode_queue_piece)


@mutation("G1", "returns", "due")
def a_joiner_keeps_its_old_counts(bug: Bug) -> None:
    """A catch-up sends nothing of messages that the joiner holds: how often they have failed since it does not hear."""
    real = ReplicatingSubscription.__init__

    def init(self: ReplicatingSubscription, queue: Queue, skip: Any, *args: Any, **options: Any) -> None:
        real(self, queue, skip, *args, **options)
        kept = [entry_id for entry_id in self._ids if entry_id not in skip]
        bug.strikes += self._ids.count - len(kept)
        self._ids = IdsLeft(IdSet(kept))

    bug.replace(ReplicatingSubscription, "__init__", init)


@mutation("due")
def what_comes_back_is_handed_out_at_once(bug: Bug) -> None:
    """A message that is to be withheld is ready."""

    def withhold(self: Queue, entry: Entry) -> None:
        bug.strike()
        heappush(self.returned, (entry.id, entry))

    bug.replace(Queue, "_withhold", withhold)


@mutation("due")
def a_new_primary_hands_out_what_is_withheld(bug: Bug) -> None:
    """A broker that begins to lead takes every message for ready."""

    def activate(self: QueueReturns, queue: Queue) -> None:
        self.withheld = 0
        self._heap = []
        bug.strikes += any(returned.due_ms for returned in self.known.values())

    bug.replace(QueueReturns, "activate", activate)


@mutation("due")
def a_later_due_time_is_overlooked(bug: Bug) -> None:
    """The log gives a message that is withheld another due time: nobody wakes it."""
    real = Queue.release

    def release(self: Queue, entry: Entry) -> None:
        returned = self.returns.of(entry.id) if self.returns is not None else None
        told = {place[2].id: place[0] for place in self.returns._heap} if self.returns is not None else {}
        if returned is not None and told.get(entry.id, returned.due_ms) not in (returned.due_ms, entry.deadline_ms):
            bug.strike()
            return
        real(self, entry)

    bug.replace(Queue, "release", release)


@mutation("returns")
def a_message_leaves_one_failure_early(bug: Bug) -> None:
    """A message that may fail twice is dead after the second time."""
    real = ReturnRule.exceeded

    def exceeded(self: ReturnRule, failures: int) -> bool:
        early = self.limit is not None and failures == self.limit
        bug.strikes += early
        return early or real(self, failures)

    bug.replace(ReturnRule, "exceeded", exceeded)


@mutation("returns")
def a_poisonous_message_stays(bug: Bug) -> None:
    """A message that has failed too often comes back once more."""

    def exceeded(self: ReturnRule, failures: int) -> bool:
        bug.strikes += self.limit is not None and failures > self.limit
        return False

    bug.replace(ReturnRule, "exceeded", exceeded)


@mutation("returns")
def a_nack_counts_as_a_failure(bug: Bug) -> None:
    """A consumer that gives a message back has failed."""
    real = Broker.requeue

    def requeue(self: Broker, queue: Queue, entry: Entry, failed: bool = False) -> None:
        bug.strikes += queue.return_rule is not None and not failed
        real(self, queue, entry, True)

    bug.replace(Broker, "requeue", requeue)


@mutation("returns")
def a_count_begins_anew(bug: Bug) -> None:
    """A message that has failed twice has failed once."""
    real = Returning.come_back

    def come_back(self: Returning, queue: Queue, entry: Entry, rule: ReturnRule, failed: bool) -> bool:
        known = queue.returns.of(entry.id) if queue.returns is not None else None
        if queue.returns is not None and known is not None and known.failures:
            bug.strike()
            queue.returns.known[entry.id] = Returned(0, known.hand_outs, known.due_ms)
        return real(self, queue, entry, rule, failed)

    bug.replace(Returning, "come_back", come_back)


@mutation("G1", "due")
def a_backup_takes_a_late_message_for_any(bug: Bug) -> None:
    """Only a primary knows that a message comes late."""
    real = Queue._comes_late

    def comes_late(self: Queue, entry: Entry) -> bool:
        if self.active:
            return real(self, entry)
        bug.strike()
        return False

    bug.replace(Queue, "_comes_late", comes_late)


@mutation("due")
def a_late_message_is_due_at_once(bug: Bug) -> None:
    """The delay of a publish is read, and is over."""
    real = delayed_publish.delayed

    def delayed(vhost: VirtualHost, queues: list[Queue], message: Message) -> Message:
        late = real(vhost, queues, message)
        if isinstance(late, DelayedMessage):
            bug.strike()
            late.due_ms = FROM_COMMIT | 1
        return late

    bug.replace(publishing, "delayed", delayed)


@mutation("G1", "due")
def a_commit_forgets_that_a_message_comes_late(bug: Bug) -> None:
    """A delayed message of a transaction is ready when that commits."""
    real = Applying._commit

    def commit(self: Applying, tx: TxBuffer) -> None:
        real(self, tx)
        for _, message, content in tx.events:
            if not isinstance(message, DelayedMessage):
                continue
            for queue_id, place, _ in content:
                queue = self.queues.get(queue_id)
                first = tx.prepare.first_ids.get(queue_id) if tx.prepare is not None else None
                if queue is None or first is None or queue.returns is None:
                    continue
                entry = queue.entries.get(first[0] + place)
                if entry is not None and entry.state == WITHHELD:
                    bug.strike()
                    queue.release(entry)

    bug.replace(Applying, "_commit", commit)
