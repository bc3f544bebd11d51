"""JudgedPublishes: publishes outside of transactions that a queue or an exchange may refuse, or drop as duplicates.

A broker without such queues and exchanges has none of them (`Registry.judging`), and so no cost.

A duplicate is dropped before anything else is asked: a full queue refuses no message that it has taken before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from understudy.broker.amqp.methods import BASIC_PUBLISH
from understudy.broker.amqp.properties import has_headers
from understudy.broker.core.deduplicating import MessageId
from understudy.broker.core.id_window import Claim
from understudy.broker.core.queue import Queue
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.message import MESSAGE_BYTES, Message

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.channel import Channel


class JudgedPublishes:
    """One per broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def done(
        self,
        channel: Channel,
        queues: list[Queue],
        message: Message,
        expiration_ms: int | None,
        mandatory: bool,
        immediate: bool,
    ) -> bool:
        """Judge a publish that was routed to ``queues``; True if it is done then, False if it is to go on as any other.

        A transaction is judged as a whole, when it is to commit (``Broker.commit_refused``).

        Raises:
            PreconditionFailedError: its id is none, or a branch in doubt brings that id.
        """
        broker, publishing = self._broker, channel.publishing
        fresh, whole = queues, False
        ids: Sequence[MessageId] = ()
        if broker.state.deduplicates and queues and has_headers(message.properties):
            if publishing.demarcation.active:
                broker.deduplicating.check(queues, message, channel.connection.vhost)
                return False
            fresh, ids, claim, whole = broker.deduplicating.judge(queues, message, channel.connection.vhost)
            if claim is not None:
                self._wait(channel, claim, (queues, message, expiration_ms, mandatory, immediate))
                return True
            if len(fresh) < len(queues):
                broker.counters["deduplicated"] += 1
            if not fresh:
                publishing.confirm(broker.provable(), 0)
                return True
        elif publishing.demarcation.active:
            return False
        if broker.state.registry.refusing and not self._taken(channel, fresh, ids, message, expiration_ms, whole):
            return True
        if ids or fresh is not queues:
            self._publish(channel, fresh, ids, message, expiration_ms, mandatory, immediate)
            return True
        return False

    def _publish(
        self,
        channel: Channel,
        queues: list[Queue],
        ids: Sequence[MessageId],
        message: Message,
        expiration_ms: int | None,
        mandatory: bool,
        immediate: bool,
    ) -> None:
        publishing = channel.publishing
        if not queues or immediate:
            queues = publishing.returned(message, queues, mandatory, immediate)
        if queues:
            if publishing.published_own_in_parts(queues, message, expiration_ms, ids):
                return
            self._enqueue(channel, queues, ids, message, expiration_ms)
        publishing.confirm(self._broker.log.end, message.offset)

    def _enqueue(
        self,
        channel: Channel,
        queues: list[Queue],
        ids: Sequence[MessageId],
        message: Message,
        expiration_ms: int | None,
    ) -> None:
        broker, connection = self._broker, channel.connection
        deduplicating = broker.deduplicating
        deduplicating.state_time(ids)
        connection.published_to = broker.publish(queues, message, expiration_ms)
        deduplicating.published(ids, queues, broker.log.end)
        if not channel.publishing.confirming:
            connection.published_plainly = True
        connection.published(_size(message))

    def _taken(
        self,
        channel: Channel,
        queues: list[Queue],
        ids: Sequence[MessageId],
        message: Message,
        expiration_ms: int | None,
        whole: bool,
    ) -> bool:
        """False if one of ``queues`` is full and refuses ``message``; the others have it then, and the publisher is told no.

        With ``whole`` no other has it: its client publishes it again, and the exchange would take it for a duplicate.
        """
        full = [
            queue for queue in queues if queue.limits is not None and not queue.limits.takes(queue, 1, message.size)
        ]
        if not full:
            return True
        broker = self._broker
        others = [] if whole else [queue for queue in queues if queue not in full]
        if others:
            self._enqueue(channel, others, ids, message, expiration_ms)
        else:
            channel.connection.published(_size(message))
        for queue in full:
            if queue.limits is not None and queue.limits.dead_letters:
                broker.moving.refused(queue, message)
        broker.counters["refused_maxlen"] += 1
        channel.publishing.refuse()
        return False

    def _wait(
        self, channel: Channel, claim: Claim, publish: tuple[list[Queue], Message, int | None, bool, bool]
    ) -> None:
        """A transaction brings that id that is being committed: publish when it is decided; until then the channel waits.

        Raises:
            PreconditionFailedError: it is a branch in doubt, which may take days.
        """
        queues, message, *rest = publish
        if claim.tx.branch is not None:
            if channel.publishing.confirming:
                channel.publishing.refuse()
                return
            raise PreconditionFailedError(
                f"a branch in doubt, transaction {claim.tx.tx_id}, holds a message with the id of one to exchange "
                f"'{message.exchange}' with routing key '{message.routing_key}'"
            )
        connection = channel.connection
        awaited = channel.hold(BASIC_PUBLISH)
        size = _size(message)
        connection.keeps(size)

        def publish_now() -> None:
            living = [queue for queue in queues if not queue.deleted]
            if not self.done(channel, living, message, *rest):  # type: ignore[arg-type]
                self._publish(channel, living, (), message, *rest)  # type: ignore[arg-type]

        def go_on() -> None:
            connection.keeps(-size)
            channel.answered(publish_now, awaited)

        claim.waiting.append(go_on)


def _size(message: Message) -> int:
    return MESSAGE_BYTES + len(message.routing_key) + message.size + len(message.properties)
