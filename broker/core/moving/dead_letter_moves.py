"""Moving: what the broker that leads does with messages that may not stay: it dead-letters them, or lets them go.

A message leaves its queue and enters others by one record (``log/move_record.py``), so no crash leaves it in both, or in
neither. It is routed by the newest registry, when the record is written; the queues change when that is stable.

At most `MOVES_AT_ONCE` messages, or `BYTES_AT_ONCE`, move before these moves are stable, and one more for each record that comes
meanwhile: so messages move as fast as they are published. Others wait, in order: nobody gets or counts them meanwhile. A million of
them that expire together would else stop the broker for a minute, and make one batch.

A message that goes nowhere (the exchange is not there, it has no queue for it, or each of these queues would end a cycle) leaves by
a DEQUEUE, as it does from a queue without a dead-letter exchange. So does RabbitMQ drop it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from understudy.broker.core.limits import TX_SIZE
from understudy.broker.core.moving.purging import Purging
from understudy.broker.core.queues.dead_letters import DeadLetterRule, dead_letter, deaths_of, is_cycle
from understudy.broker.core.queues.entry import GONE, Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.topology.copies import route_all
from understudy.broker.errors import ResourceErrorSoft
from understudy.broker.log import record
from understudy.broker.log.body_place import AT_OFFSET
from understudy.broker.log.move_record import Move, encode_move
from understudy.broker.log.pending import Change
from understudy.broker.log.record import MAX_TARGETS, REASON_NAMES
from understudy.broker.message import MESSAGE_BYTES, Message, MovedMessage
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort

MOVES_AT_ONCE: Final = 512
BYTES_AT_ONCE: Final = 1 << 20
OUTSIDE = 0
"""Stands in a MOVE for a queue that is not in the log, and for the id of a message there."""


class Moving:
    """One per broker; works only where the broker leads.

    Attributes:
        waiting: messages that were taken out of their queue, and have still to leave it, in order: message and reason.
        moved_at: offset of the newest MOVE.
        purging: purges.
    """

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._batch = broker.batch
        self._applying = broker.state.applying
        self._topology = broker.state.topology
        self._role = broker.role
        self._totals = broker.counters.totals
        self.waiting: dict[Queue, deque[tuple[Entry, int]]] = {}
        self._moves = self._bytes = self.moved_at = 0
        self._appended = self._others = 0
        self.purging = Purging(broker)

    @property
    def due(self) -> bool:
        """True if something waits that the next turn may move."""
        broker = self._broker
        return (
            bool(self.waiting)
            and self._role.answering
            and broker.log.applied >= self.moved_at
            and broker.log.may_hold(record.MOVE)
            and not self._batch.frozen
        )

    def begin(self) -> None:
        """This broker begins to serve: what its log got before allows no moves."""
        self._others = self._broker.log.end - self._appended

    def go_on(self) -> None:
        """Move what has waited, if that is due."""
        self._look_again()
        while self.waiting and self._may_move():
            queue, entries = next(iter(self.waiting.items()))
            while entries and self._may_move():
                entry, reason = entries.popleft()
                if not queue.deleted:  # else it is gone with its queue
                    self._leave_now(queue, entry, reason)
            if not entries:
                del self.waiting[queue]

    def _look_again(self) -> None:
        """Find out how many more may move: those of `MOVES_AT_ONCE` that are stable, and one for each record of others."""
        log = self._broker.log
        if log.applied >= self.moved_at:
            self._moves = self._bytes = 0
        others = log.end - self._appended
        self._moves = max(self._moves, 0) - others + self._others
        self._others = others

    def _may_move(self) -> bool:
        """True if one more message may move now; False also while a broker has not said on its link that it reads a MOVE."""
        broker = self._broker
        return (
            (self._moves < 0 or (self._moves < MOVES_AT_ONCE and self._bytes < BYTES_AT_ONCE))
            and not self._batch.frozen
            and broker.log.may_hold(record.MOVE)
        )

    def leave(self, queue: Queue, entry: Entry, reason: int) -> None:
        """Take a message out of ``queue`` for ``reason``: it goes where the queue's dead letters go."""
        if queue.dead_letters is None or entry.state == GONE:
            self._batch.dequeue(queue, entry, reason)
        elif queue in self.waiting or not self._may_move():
            self.waiting.setdefault(queue, deque()).append((entry, reason))
        else:
            self._leave_now(queue, entry, reason)

    def _leave_now(self, queue: Queue, entry: Entry, reason: int) -> None:
        broker = self._broker
        rule = queue.dead_letters
        if rule is None or entry.state == GONE:
            self._batch.dequeue(queue, entry, reason)
            return
        message = entry.message
        self._moves += 1
        targets = self._targets(queue, message, rule, reason)
        if not targets:
            self._batch.dequeue(queue, entry, reason)
            return
        dead = dead_letter(message, queue.name, reason, rule, self._clock.wall_ms)
        dead.share_body(message)
        self._batch.close_dequeues()
        self._count(reason)
        if queue.logged:
            queue.mark_dequeuing(entry)
            body_bytes = self._append(queue, entry, reason, targets, dead)
        else:
            body_bytes = self._append(None, None, reason, targets, dead)
            queue.remove(entry.id)
        if self._moves > 0:
            self._bytes += len(dead.properties) + body_bytes
        self._appended += 1
        self.moved_at = broker.log.end

    def reject_within(self, tx: TxBuffer, queue: Queue, entry: Entry, named: str) -> int:
        """A consumer rejects a message within ``tx``: when that commits, the message leaves ``queue`` and is a dead letter.

        The events of a transaction say this already: a dequeue, and an enqueue with the body.

        Args:
            tx: is open.
            queue: has a dead-letter exchange.
            entry: of ``queue``, handed out.
            named: ``tx``, for people.

        Returns:
            How many octets the log has for the dead letter; 0 if it goes nowhere.

        Raises:
            ResourceErrorSoft: ``tx`` holds as much as it may already, or the group cannot read a dead letter yet.
        """
        broker = self._broker
        rule = queue.dead_letters
        assert rule is not None, f"queue {queue.name} has no dead-letter exchange"
        if tx.held_bytes > broker.limits.tx_bytes:
            broker.work.count_limit(TX_SIZE)
            raise ResourceErrorSoft(f"{named} holds {tx.held_bytes} bytes, the limit is {broker.limits.tx_bytes}")
        if not self._reads_moves:
            raise ResourceErrorSoft(
                f"a dead letter of queue '{queue.name}' in vhost '{queue.vhost}' takes format {record.MOVES_VERSION} of the log, "
                "which not all brokers of the group read yet: upgrade them first"
            )
        broker.transactions.accept(tx, [(queue, entry)])
        targets = self._targets(queue, entry.message, rule, record.REJECTED)
        if not targets or entry.state == GONE:
            return 0
        dead = dead_letter(entry.message, queue.name, record.REJECTED, rule, self._clock.wall_ms)
        dead.give_body(entry.message.content(), 0)
        dead.put_at(AT_OFFSET)  # its own record will carry it
        if not self._applying.has_moved:
            self._applying.note_moved()
        broker.transactions.publish(tx, targets, dead, None)
        self._count(record.REJECTED)
        return MESSAGE_BYTES + len(dead.properties) + dead.size

    def overflow_of(self, tx: TxBuffer) -> str:
        """Why ``tx`` may not commit: a queue that refuses what is too much would hold more than it may. "" if none would."""
        brings: dict[int, list[int]] = {}
        for _, message, content in tx.events:
            if message is not None and not message.moved:  # a dead letter is never refused
                for target in content:
                    brings.setdefault(target[0], []).append(message.size)
        for queue_id, sizes in brings.items():
            queue = self._broker.state.queues.get(queue_id)
            if queue is not None and queue.limits is not None and not queue.limits.takes(queue, len(sizes), sum(sizes)):
                return (
                    f"queue '{queue.name}' in vhost '{queue.vhost}' is full: it holds {queue.depth} messages and the transaction "
                    f"brings {len(sizes)}, {queue.limits}"
                )
        return ""

    def refused(self, queue: Queue, message: Message) -> None:
        """``queue`` is full and does not take ``message``, which is not in any queue: its dead-letter exchange gets it.

        A broker that begins to lead does that when it answers: before, it does not know if its group reads a MOVE.
        """
        rule, broker = queue.dead_letters, self._broker
        if rule is None:
            return
        if not broker.log.may_hold(record.MOVE):
            if not self._role.answering:
                broker.completions.complete(broker.log.end, lambda refused: self.refused(queue, refused), message)
            return
        targets = self._targets(queue, message, rule, record.MAXLEN)
        if targets:
            dead = dead_letter(message, queue.name, record.MAXLEN, rule, self._clock.wall_ms)
            dead.share_body(message)
            self._batch.close_dequeues()
            self._count(record.MAXLEN)
            self._append(None, None, record.MAXLEN, targets, dead)

    def drop_overfull(self) -> None:
        """Let go of the oldest messages of queues that hold more than they may."""
        overfull = self._broker.state.overfull
        if not self._reads_moves:
            overfull[:] = dict.fromkeys(overfull)  # they wait, each once
            return
        while overfull:
            queues = dict.fromkeys(overfull)
            overfull.clear()
            for queue in queues:
                self.drop_head(queue)

    def drop_head(self, queue: Queue) -> None:
        """Let go of the oldest messages of ``queue``, if it holds more than it may."""
        limits = queue.limits
        if not self._reads_moves:
            return
        while limits is not None and not queue.deleted and limits.drops and limits.exceeded(queue):
            entry = queue.take() or queue.take_withheld()
            if entry is None:
                return
            self.leave(queue, entry, record.MAXLEN)

    @property
    def _reads_moves(self) -> bool:
        """False while a broker of the group may not read what moves, and no queue was declared that needs it: a policy waits."""
        return self._broker.log.may_hold(record.MOVE) or self._broker.state.record_format >= record.MOVES_VERSION

    def _count(self, reason: int) -> None:
        self._totals["dead_lettered_" + REASON_NAMES[reason]] += 1

    def _targets(self, queue: Queue, message: Message, rule: DeadLetterRule, reason: int) -> list[Queue]:
        """The queues that a message which dies in ``queue`` goes to."""
        vhost = self._topology.registry.vhost(queue.vhost)
        if rule.exchange not in vhost.exchanges:
            return []
        targets = route_all(vhost, rule.exchange, rule.routing_keys(message), message.properties)[:MAX_TARGETS]
        if reason == record.REJECTED or not targets:
            return targets
        deaths = [{"queue": queue.name, "reason": REASON_NAMES[reason]}, *deaths_of(message)]
        return [target for target in targets if not is_cycle(deaths, target.name)]

    def _append(
        self, queue: Queue | None, entry: Entry | None, reason: int, targets: list[Queue], message: MovedMessage
    ) -> int:
        """Write the MOVE of ``entry`` of ``queue``; both are None for a message that is not in the log.

        Those of ``targets`` that are not in the log get it beside the record. Returns how many octets of a body were written.
        """
        broker = self._broker
        log = broker.log
        offset = log.end + 1
        body_bytes = 0
        placed = []
        for target in targets:
            if target.logged:
                entry_id = target.next_id()
                target.brought_at = offset
                placed.append((target.id, entry_id, self._batch.deadline(target, None)))
        if not placed and queue is not None and entry is not None:
            log.append(raw := record.encode_dequeue(reason, [(queue.id, (entry.id,))]))
            log.pending.append((offset, Change.DEQUEUE, record.decode_dequeue(raw, 5)[1]))
        elif placed:
            in_journal = queue is not None and queue.durable and message.persistent
            has_body = queue is None or (message.persistent and self._needs_body(targets, message.size, in_journal))
            self._append_move(queue, entry, reason, placed, message, has_body)
            body_bytes = message.size * has_body
        local = [target for target in targets if not target.logged]
        if local and (body_bytes or not placed):
            message.stay()  # its record may be gone when this one is stable; a MOVE without a body takes the place that is then
        for target in local:
            self._batch.publish_local(target, message, None)
        return body_bytes

    def _needs_body(self, targets: list[Queue], size_bytes: int, in_journal: bool) -> bool:
        """True if the record of a persistent message that enters ``targets`` carries its body.

        ``in_journal``: each journal has the body already, so only an outlet needs it.
        """
        bodies = self._broker.limits.moved_bodies
        return any(
            target.durable
            and target.logged
            and (not in_journal or bodies.repeats(target.vhost, target.name, size_bytes))
            for target in targets
        )

    def _append_move(
        self,
        queue: Queue | None,
        entry: Entry | None,
        reason: int,
        placed: list[record.Target],
        message: MovedMessage,
        has_body: bool,
    ) -> None:
        broker = self._broker
        source = (OUTSIDE, OUTSIDE) if queue is None or entry is None else (queue.id, entry.id)
        head = encode_move(*source, reason, placed, message, has_body)
        if has_body:
            copy = MovedMessage(message.exchange, message.routing_key, message.properties, b"", message.persistent)
            copy.carry_body(message, broker.log.end + 1)  # it may be in a file, and stays there
            offset = broker.log.append(head, copy.properties, message.content())
            self._batch.note_large(copy.size)
        else:
            copy = message
            offset = broker.log.append(head, copy.properties)
        move = Move(*source, reason, placed, copy, has_body, copy.size)
        broker.log.pending.append((offset, Change.MOVE, move))
