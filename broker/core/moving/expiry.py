"""Expiry: the broker that leads lets go of messages, unused queues and exchanges, and outcomes whose time has come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from understudy.broker.amqp.field_table import encode_table
from understudy.broker.core.moving.message_expiry import MessageExpiry
from understudy.broker.core.topology.exchange_deletion import delete_exchange
from understudy.broker.log import record

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.topology.exchanges import Exchange

EVERY_MS: Final = 250
MARK_EVERY_MS: Final = 60_000


class Expiry:
    """One per broker; works only where the broker leads and answers."""

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self.messages = MessageExpiry(broker)
        self._next_ms = 0
        self._trimmed_at = 0
        self._outcome_marks: deque[tuple[int, int]] = deque()
        self._adopted: dict[Exchange, None] = {}
        self._adopted_ms = 0

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        self.messages.tick()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + EVERY_MS
            self._expire_queues()
            self._expire_exchanges()
            self._trim_outcomes()

    def _expire_queues(self) -> None:
        """Delete queues that were unused for ``x-expires``, and auto-delete queues whose consumers went with an earlier epoch."""
        broker = self._broker
        for queue in list(broker.state.topology.registry.queues()):
            if queue.deleted or queue.consumers or queue in broker.moving.waiting:
                continue
            unused_ms = self._clock.running_ms - queue.used_ms
            expired = queue.expires_ms is not None and unused_ms >= queue.expires_ms
            abandoned = (
                queue.adopted
                and queue.auto_delete
                and queue.had_consumer
                and unused_ms >= broker.limits.auto_delete_grace_ms
            )
            if expired or abandoned:
                broker.delete_queue(queue)

    # -- auto-delete: what was never used is not deleted, whoever leads (AMQP 0-9-1, queue.declare and exchange.declare) ----

    def note_consumer(self, queue: Queue) -> None:
        """Record the first consumer of an auto-delete ``queue``: a later epoch cannot know of it otherwise."""
        if not queue.auto_delete or queue.had_consumer:
            return
        if not queue.level.declared_in_log:
            queue.note_consumer()
            return
        flags = record.USED | record.AUTO_DELETE
        flags |= record.DURABLE if queue.durable else 0
        flags |= 0 if queue.level.messages_in_log else record.DEFINITION_ONLY
        arguments = encode_table(queue.arguments)
        self._broker.batch.append_record(
            record.encode_queue_declare(queue.id, queue.vhost, queue.name, flags, arguments)
        )

    def note_binding(self, exchange: Exchange) -> None:
        """Record the first binding of an auto-delete ``exchange``, before that is appended or made.

        An exchange that has bindings was bound under a program that did not record it. An older program would drop them with the
        record, and the last of them says with its removal that the exchange was used.
        """
        if not exchange.auto_delete or exchange.had_binding or exchange.bindings:
            return
        flags = record.USED | record.AUTO_DELETE
        flags |= record.DURABLE if exchange.durable else 0
        flags |= record.INTERNAL if exchange.internal else 0
        arguments = encode_table(exchange.arguments)
        self._broker.batch.append_record(
            record.encode_exchange_declare(exchange.vhost, exchange.name, exchange.kind, flags, arguments)
        )

    def adopt_exchanges(self) -> None:
        """This broker begins to lead: note the auto-delete exchanges whose bindings went with an earlier epoch.

        They were of exclusive queues, say, which the log does not know. No client will unbind the last of them.
        """
        self._adopted = {
            exchange: None
            for vhost in self._broker.state.topology.registry.vhosts.values()
            for exchange in vhost.exchanges.values()
            if exchange.auto_delete and exchange.had_binding and not exchange.bindings
        }

    def begin_grace(self) -> None:
        """Begin the grace period: the broker begins to answer. Queues that clients declared since it leads are theirs."""
        self._adopted_ms = self._clock.running_ms

    def declared_anew(self, exchange: Exchange) -> None:
        """A client is about to use it: it goes as any other does."""
        self._adopted.pop(exchange, None)

    def _expire_exchanges(self) -> None:
        """As an adopted queue: it has some time for clients to come back and bind anew."""
        broker = self._broker
        if not self._adopted or self._clock.running_ms - self._adopted_ms < broker.limits.auto_delete_grace_ms:
            return
        for exchange in self._adopted:
            there = broker.state.topology.registry.vhost(exchange.vhost).exchanges.get(exchange.name) is exchange
            if there and not exchange.bindings:
                delete_exchange(broker.state.topology.registry, broker.batch.append_record, exchange)
        self._adopted = {}

    def _trim_outcomes(self) -> None:
        """Forget outcomes that are older than their time to live, by this broker's own monotonic clock."""
        broker = self._broker
        limits = broker.limits
        outcomes = broker.state.applying.outcomes
        applied = broker.log.applied
        marks = self._outcome_marks
        if not marks or self._clock.now_ms - marks[-1][0] >= MARK_EVERY_MS:
            marks.append((self._clock.now_ms, applied))
        old = 0
        while marks and self._clock.now_ms - marks[0][0] >= limits.outcome_ttl_ms:
            old = marks.popleft()[1]
        surplus = len(outcomes) > limits.outcome_limit and applied >= self._trimmed_at
        if old or surplus:
            due = outcomes.trim_point(old, limits.outcome_limit * 9 // 10)
            if due is not None:
                self._trimmed_at = broker.batch.append_record(record.encode_outcomes_trimmed(*due))
