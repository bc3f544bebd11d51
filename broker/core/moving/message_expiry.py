"""MessageExpiry: messages whose time to live has ended leave their queue; no client gets or counts them.

A time to live is the time in a queue, as in RabbitMQ. A message that comes into its queue goes to a consumer that waits there,
however short the message lives. 0 means: to such a consumer or to nobody. So a message is *fresh* from the moment in which the log
brings it until the consumers were served in the same turn. A consumer that subscribes after the publish waits for later ones.

Every method that takes from a queue, or counts its messages, drops first what has expired at the head (`Broker.look_into`). What
nobody asks for goes at a tick. A message behind one that lives expires when it is reached: it counts until then, as in RabbitMQ.

Source: rabbitmq-server, ``rabbit_amqqueue_process:attempt_delivery`` and ``drop_expired_msgs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.core.queues.consumer import Consumer
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue


class MessageExpiry:
    """One per broker; works only where the broker leads and answers.

    Attributes:
        fresh: what has come and no consumer was asked to take, by queue: id to newest subscription that may have it.

    ``_timed`` are the queues that may hold messages with a deadline.
    """

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self.fresh: dict[Queue, dict[int, int]] = {}
        self._timed: dict[Queue, None] = {}

    def begin(self) -> None:
        """The broker begins to answer: every queue may hold messages with a deadline, and none of them is fresh."""
        state = self._broker.state
        state.arrived.clear()
        self._timed = {queue: None for queue in state.queues.values() if queue.entries}

    def tick(self) -> None:
        """Time passes: drop what has expired at the head of a queue."""
        for queue in list(self._timed):
            if queue.deleted or not queue.entries:
                del self._timed[queue]
            else:
                self._drop_expired(queue)

    def note_arrivals(self) -> None:
        """Take what has come from `BrokerState.arrived`."""
        for queue, entry_id, subscription in self._broker.state.arrived:
            self.fresh.setdefault(queue, {})[entry_id] = subscription
            self._timed[queue] = None
        self._broker.state.arrived.clear()

    def drop_fresh(self) -> None:
        """The consumers have been served: what was fresh is as anything else."""
        self.note_arrivals()
        for queue in list(self.fresh):
            self.drop(queue)

    def drop(self, queue: Queue) -> None:
        """Let go of what has expired at the head of ``queue``, fresh or not."""
        self.fresh.pop(queue, None)
        if queue in self._timed and not queue.deleted:
            self._drop_expired(queue)

    def _drop_expired(self, queue: Queue) -> None:
        broker = self._broker
        for entry in queue.take_expired(self._clock.expiry_now):
            broker.expired(queue, entry)
            if queue.deleted:
                return

    def spares(self, queue: Queue, entry: Entry, consumer: Consumer | None) -> bool:
        """True if ``entry``, which has a deadline, may be handed out: it lives, or is fresh and ``consumer`` has waited for it."""
        if entry.deadline_ms > self._clock.expiry_now():
            return True
        if consumer is None:
            return False
        arrivals = self.fresh.get(queue)
        return arrivals is not None and consumer.number <= arrivals.get(entry.id, 0)
