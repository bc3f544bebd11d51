"""Bugs of messages that leave one queue for others: dead letters and limits."""

from __future__ import annotations

from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.amqp import properties
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.judged_publishes import JudgedPublishes, Publish
from understudy.broker.core.moving import dead_letter_moves as moving
from understudy.broker.core.moving.dead_letter_moves import Moving
from understudy.broker.core.queues import dead_letters
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state.applying import Applying
from understudy.broker.log import record
from understudy.broker.log.move_record import Move
from understudy.broker.message import Message, MovedMessage
from understudy.replicator.sending.catch_up import CatchUp


@mutation("G1", "G2", "G7")
def a_backup_keeps_what_has_moved(bug: Bug) -> None:
    """A backup puts a moved message into its new queue, and leaves it in the old one."""
    real = Applying.apply_move

    def apply_move(self: Applying, move: Move) -> None:
        source = self.queues.get(move.queue_id)
        entry = source.entries.get(move.entry_id) if source is not None else None
        real(self, move)
        if not self.deciding and entry is not None and source is not None:
            bug.strike()
            source.enqueue(move.entry_id, entry.message, entry.deadline_ms)

    bug.replace(Applying, "apply_move", apply_move)


@mutation("G1", "G2", "G7")
def a_backup_loses_what_has_moved(bug: Bug) -> None:
    """A backup takes a moved message out of its old queue alone."""
    real = Applying.apply_move

    def apply_move(self: Applying, move: Move) -> None:
        if self.deciding:
            real(self, move)
            return
        bug.strike()
        self.apply_dequeue([(move.queue_id, (move.entry_id,))])

    bug.replace(Applying, "apply_move", apply_move)


@mutation("G1", "G4", "G5")
def a_move_is_two_steps(bug: Bug) -> None:
    """A dead letter leaves its queue by one record, and is published by another one behind it."""

    def append(
        self: Moving, queue: Queue | None, entry: Entry | None, reason: int, targets: list[Queue], message: MovedMessage
    ) -> int:
        broker = self._broker
        bug.strike()
        if queue is not None and entry is not None:
            broker.batch.dequeue(queue, entry, reason)
            broker.batch.close_dequeues()
            assert isinstance(broker, Broker)
            broker.batch.close()
        copy = Message(message.exchange, message.routing_key, message.properties, message.content(), message.persistent)
        broker.batch.publish(targets, copy, None)
        return copy.size

    bug.replace(Moving, "_append", append)


@mutation("G1", "G2", "G7")
def a_catch_up_forgets_what_moves(bug: Bug) -> None:
    """A message that moves before a catch-up has sent it is sent neither in its old queue nor in its new one."""

    def moved(self: CatchUp, move: Move) -> None:
        source = self._unsent.get(move.queue_id)
        if source is not None and source.is_left(move.entry_id):
            bug.strike()

    bug.replace(CatchUp, "moved", moved)


@mutation("G1", "G2", "G5")
def the_floor_forgets_the_body_of_what_moved(bug: Bug) -> None:
    """A moved message keeps the segment of its MOVE, and not that of its body."""
    real = Applying.apply_move

    def apply_move(self: Applying, move: Move) -> None:
        offset = move.message.offset
        source = self.queues.get(move.queue_id)
        entry = source.entries.get(move.entry_id) if source is not None else None
        real(self, move)
        if entry is None or move.has_body or not offset:
            return
        for queue_id, entry_id, _ in move.targets:
            queue = self.queues.get(queue_id)
            moved = queue.entries.get(entry_id) if queue is not None else None
            if queue is not None and moved is not None and moved.message is move.message:
                bug.strike()
                queue.live.release(moved.message.offset, moved.message.size)
                queue.live.add(offset, moved.message.size)
        if any(queue_id in self.queues for queue_id, _, _ in move.targets):
            move.message.offset = offset

    bug.replace(Applying, "apply_move", apply_move)


@mutation("G1", "G4")
def a_full_queue_drops_without_dead_letters(bug: Bug) -> None:
    """Messages that are too many for a queue leave it for nowhere."""
    real = Moving.leave

    def leave(self: Moving, queue: Queue, entry: Entry, reason: int) -> None:
        if reason == record.MAXLEN and queue.dead_letters is not None:
            bug.strike()
            self._broker.batch.dequeue(queue, entry, reason)
        else:
            real(self, queue, entry, reason)

    bug.replace(Moving, "leave", leave)


@mutation("G4")
def a_refused_message_is_confirmed(bug: Bug) -> None:
    """A full queue refuses a message, and its publisher is told that it is safe."""
    real = JudgedPublishes._taken

    def taken(self: JudgedPublishes, publish: Publish, queues: list[Queue], ids: Any, whole: bool) -> bool:
        size, publishing = publish.message.size, publish.channel.publishing
        full = any(queue.limits is not None and not queue.limits.takes(queue, 1, size) for queue in queues)
        if not full or not publishing.confirming:
            return real(self, publish, queues, ids, whole)
        bug.strike()
        publishing.confirm(self._broker.batch.provable(), 0)
        return False

    bug.replace(JudgedPublishes, "_taken", taken)


@mutation("G1", "expiry", "G9")
def a_dead_letter_keeps_its_time_to_live(bug: Bug) -> None:
    """A message that has expired takes its expiration along, and expires again where it arrives."""
    real = properties.without_expiration

    def without_expiration(raw: bytes) -> bytes:
        if real(raw) != raw:
            bug.strike()
        return raw

    bug.replace(dead_letters, "without_expiration", without_expiration)


@mutation("G1")
def a_death_names_another_reason(bug: Bug) -> None:
    """A dead letter says of what is too much that it was rejected."""
    real = dead_letters.dead_letter

    def dead_letter(message: Message, queue: str, reason: int, *args: Any) -> MovedMessage:
        if reason == record.MAXLEN:
            bug.strike()
            reason = record.REJECTED
        return real(message, queue, reason, *args)

    bug.replace(moving, "dead_letter", dead_letter)


@mutation("limits")
def a_full_queue_keeps_all(bug: Bug) -> None:
    """A queue that holds more than it may drops nothing."""

    def drop_head(self: Moving, queue: Queue) -> None:
        if queue.limits is not None and queue.limits.drops and queue.limits.exceeded(queue):
            bug.strike()

    bug.replace(Moving, "drop_head", drop_head)
