"""Expiry: what a primary lets go of because its time has come: messages, queues that nobody uses, outcomes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from understudy.broker.log import record

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.exchanges import Exchange

EVERY_MS: Final = 250
MARK_EVERY_MS: Final = 60_000


class Expiry:
    """One per broker; works only where the broker leads and answers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next_ms = 0
        self._trimmed_at = 0
        self._outcome_marks: deque[tuple[int, int]] = deque()
        self._adopted: dict[Exchange, None] = {}
        self._adopted_ms = 0

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + EVERY_MS
            self._expire_messages()
            self._expire_queues()
            self._expire_exchanges()
            self._trim_outcomes()

    def _expire_messages(self) -> None:
        """What stands at the head of a queue: what stands behind it expires when it is reached."""
        broker = self._broker
        for queue in list(broker.state.queues.values()):
            while not queue.deleted:
                entry = queue.peek()
                if entry is None or not entry.deadline_ms or entry.deadline_ms >= broker.expiry_ms:
                    break
                taken = queue.take()
                assert taken is entry
                broker.expired(queue, entry)

    def _expire_queues(self) -> None:
        broker = self._broker
        for queue in list(broker.state.registry.queues()):
            if queue.deleted or queue.consumers:
                continue
            unused_ms = broker.running_ms - queue.used_ms
            expired = queue.expires_ms is not None and unused_ms >= queue.expires_ms
            abandoned = queue.adopted and queue.auto_delete and unused_ms >= broker.limits.auto_delete_grace_ms
            if expired or abandoned:
                broker.delete_queue(queue)

    def adopt_exchanges(self) -> None:
        """This broker begins to lead: an auto-delete exchange without bindings may have lost them with an earlier primary.

        They were of exclusive queues, say, which the log does not know. Nobody will unbind the last of them. One with an alternate
        exchange may never have had any, and be of use: that is kept, as if it had not.
        """
        self._adopted = {
            exchange: None
            for vhost in self._broker.state.registry.vhosts.values()
            for exchange in vhost.exchanges.values()
            if exchange.auto_delete and not exchange.bindings and exchange.alternate is None
        }

    def begin_grace(self) -> None:
        """It begins to answer. What clients have declared since it leads is theirs."""
        self._adopted_ms = self._broker.running_ms

    def declared_anew(self, exchange: Exchange) -> None:
        """A client is about to use it: it goes as any other does."""
        self._adopted.pop(exchange, None)

    def _expire_exchanges(self) -> None:
        """As an adopted queue: it has some time for clients to come back and bind anew."""
        broker = self._broker
        if not self._adopted or broker.running_ms - self._adopted_ms < broker.limits.auto_delete_grace_ms:
            return
        for exchange in self._adopted:
            there = broker.state.registry.vhost(exchange.vhost).exchanges.get(exchange.name) is exchange
            if there and not exchange.bindings:
                broker.append_record(record.encode_exchange_delete(exchange.vhost, exchange.name, exchange.durable))
        self._adopted = {}

    def _trim_outcomes(self) -> None:
        """Forget outcomes that are older than their time to live, by this primary's own monotonic clock."""
        broker = self._broker
        limits = broker.limits
        outcomes = broker.state.outcomes
        applied = broker.log.applied
        marks = self._outcome_marks
        if not marks or broker.now_ms - marks[-1][0] >= MARK_EVERY_MS:
            marks.append((broker.now_ms, applied))
        old = 0
        while marks and broker.now_ms - marks[0][0] >= limits.outcome_ttl_ms:
            old = marks.popleft()[1]
        surplus = len(outcomes) > limits.outcome_limit and applied >= self._trimmed_at
        if old or surplus:
            due = outcomes.trim_point(old, limits.outcome_limit * 9 // 10)
            if due is not None:
                self._trimmed_at = broker.append_record(record.encode_outcomes_trimmed(*due))
