"""Returning: what the broker that leads does with messages that come back to a queue that counts (``core/queues/return_rule.py``).

A message that has failed too often leaves its queue. Any other is written in a RETURN (``log/return_record.py``), and is handed out
again when that is stable. Else a client would be told of a failure that is forgotten with this broker.

What *failed* is: a consumer rejects the message, or its channel ends while it has the message. Docs/amqp.md has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from understudy.broker.amqp.field_table import Long
from understudy.broker.amqp.properties import with_header
from understudy.broker.core.queues.entry import ACQUIRED, Entry
from understudy.broker.log import record
from understudy.broker.log.return_record import MOST, MOST_COUNTED, NEVER, Returned, encode_return

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.queues.return_rule import ReturnRule

FAILURES: Final = "x-delivery-count"
HAND_OUTS: Final = "x-acquired-count"
CHANCES: Final = 1 << 16


def with_counts(queue: Queue, entry: Entry) -> bytes:
    """The properties of ``entry`` as they are handed out: those of a message that came back have its counts as headers.

    A count of 0 is no header, as in RabbitMQ.
    """
    properties = entry.message.properties
    returned = queue.returns.of(entry.id) if queue.returns is not None else NEVER
    if returned.hand_outs:
        properties = with_header(properties, HAND_OUTS, Long(returned.hand_outs))
    if returned.failures:
        properties = with_header(properties, FAILURES, Long(returned.failures))
    return properties


class Publisher(Protocol):
    """A client's connection (``Connection``), as far as returns go."""

    def answer_after(self, offset: int) -> None:
        """Answer what the client asks for next when the log is applied up to ``offset``."""


class Returning:
    """One per broker; works only where the broker leads.

    Attributes:
        gathered: messages that come back and stand in no record yet.
    """

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self.gathered: dict[Queue, list[tuple[int, Returned]]] = {}

    def come_back(self, queue: Queue, entry: Entry, rule: ReturnRule, failed: bool) -> bool:
        """``entry``, which was handed out, comes back to ``queue``, whose rule is ``rule``. False if it may not stay there."""
        if entry.state != ACQUIRED:
            return True
        broker = self._broker
        known = queue.returns.of(entry.id) if queue.returns is not None else NEVER
        failures = min(known.failures + failed, MOST_COUNTED)
        if failed and rule.exceeded(failures):
            broker.moving.leave(queue, entry, record.DELIVERY_LIMIT)
            return False
        due_ms = 0
        if rule.delays(failed):
            due_ms = self._clock.expiry_now() + rule.delay_ms(failures, self._chance(rule))
        returned = Returned(failures, min(known.hand_outs + 1, MOST_COUNTED), due_ms)
        queue.begin_return(entry)
        if queue.logged:
            self.gathered.setdefault(queue, []).append((entry.id, returned))
        else:
            queue.come_back(entry.id, returned)
        return True

    def _chance(self, rule: ReturnRule) -> float:
        return int.from_bytes(self._broker.random_bytes(2), "big") / CHANCES if rule.jitter else 0

    def write_for(self, connection: Publisher) -> None:
        """Append what has gathered, of a client's one method: what the client asks for next is answered when that is applied."""
        if self.gathered:
            self.write()
            connection.answer_after(self._broker.log.end)

    def write(self) -> None:
        """Append what has gathered."""
        broker = self._broker
        gathered, self.gathered = self.gathered, {}
        for queue, entries in gathered.items():
            if queue.deleted:
                continue
            for at in range(0, len(entries), MOST):
                broker.batch.append_record(encode_return([(queue.id, entries[at : at + MOST])], not queue.durable))
