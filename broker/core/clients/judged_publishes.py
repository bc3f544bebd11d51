"""JudgedPublishes: publishes outside of transactions that a queue or an exchange may refuse, or drop as duplicates.

A broker without such queues and exchanges has none of them (`Registry.judging`), and so no cost.

A duplicate is dropped before anything else is asked: a full queue refuses no message that it has taken before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from understudy.broker.amqp.methods import BASIC_PUBLISH
from understudy.broker.amqp.properties import has_headers
from understudy.broker.core.moving.deduplicating import MessageId
from understudy.broker.core.queues.id_window import Claim
from understudy.broker.core.queues.queue import Queue
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.message import Message

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.core.clients.port import ClientsPort


class Publish(NamedTuple):
    """One basic.publish.

    Attributes:
        channel: of the client.
        message: all of it.
        expiration_ms: its own time to live; None for none.
        mandatory, immediate: as its client says.
    """

    channel: Channel
    message: Message
    expiration_ms: int | None
    mandatory: bool
    immediate: bool


class JudgedPublishes:
    """One per broker."""

    def __init__(self, broker: ClientsPort) -> None:
        self._broker = broker
        self._batch = broker.batch
        self._applying = broker.state.applying
        self._topology = broker.state.topology

    def done(self, publish: Publish, queues: list[Queue]) -> bool:
        """Judge a publish that was routed to ``queues``; True if it is done then, False if it is to go on as any other.

        A transaction is judged as a whole, when it is to commit (``Broker.commit_refused``).

        Raises:
            PreconditionFailedError: the id of its message is none, or a branch in doubt brings that id.
        """
        broker, channel, message = self._broker, publish.channel, publish.message
        publishing = channel.publishing
        fresh, whole = queues, False
        ids: Sequence[MessageId] = ()
        if self._applying.deduplicates and queues and has_headers(message.properties):
            if publishing.demarcation.active:
                broker.deduplicating.check(queues, message, channel.connection.vhost)
                return False
            fresh, ids, claim, whole = broker.deduplicating.judge(queues, message, channel.connection.vhost)
            if claim is not None:
                self._wait(publish, queues, claim)
                return True
            if len(fresh) < len(queues):
                broker.counters.count("deduplicated")
            if not fresh:
                publishing.confirm(self._batch.provable(), 0)
                return True
        elif publishing.demarcation.active:
            return False
        if self._topology.registry.refusing and not self._taken(publish, fresh, ids, whole):
            return True
        if ids or fresh is not queues:
            self._publish(publish, fresh, ids)
            return True
        return False

    def _publish(self, publish: Publish, queues: list[Queue], ids: Sequence[MessageId]) -> None:
        publishing, message = publish.channel.publishing, publish.message
        if not queues or publish.immediate:
            queues = publishing.returned(message, queues, publish.mandatory, publish.immediate)
        if queues:
            if publishing.published_own_in_parts(queues, message, publish.expiration_ms, ids):
                return
            self._enqueue(publish, queues, ids)
        publishing.confirm(self._broker.log.end, message.offset)

    def _enqueue(self, publish: Publish, queues: list[Queue], ids: Sequence[MessageId]) -> None:
        broker, connection = self._broker, publish.channel.connection
        deduplicating = broker.deduplicating
        deduplicating.state_time(ids)
        stable_at = self._batch.publish(queues, publish.message, publish.expiration_ms)
        deduplicating.published(ids, queues, broker.log.end)
        connection.published_outside(
            stable_at, publish.message.held_bytes, confirmed=publish.channel.publishing.confirming
        )

    def _taken(self, publish: Publish, queues: list[Queue], ids: Sequence[MessageId], whole: bool) -> bool:
        """False if one of ``queues`` is full and refuses the message; the others have it then, and the publisher is told no.

        With ``whole`` no other has it: its client publishes it again, and the exchange would take it for a duplicate.
        """
        broker, message = self._broker, publish.message
        full = [
            queue for queue in queues if queue.limits is not None and not queue.limits.takes(queue, 1, message.size)
        ]
        if not full:
            return True
        others = [] if whole else [queue for queue in queues if queue not in full]
        if others:
            self._enqueue(publish, others, ids)
        else:
            publish.channel.connection.published(message.held_bytes)
        for queue in full:
            if queue.limits is not None and queue.limits.dead_letters:
                broker.moving.refused(queue, message)
        broker.counters.count("refused_maxlen")
        publish.channel.publishing.refuse()
        return False

    def _wait(self, publish: Publish, queues: list[Queue], claim: Claim) -> None:
        """Publish when the transaction is decided that brings this id and is being committed; until then the channel waits.

        Raises:
            PreconditionFailedError: it is a branch in doubt, which may take days.
        """
        channel, message = publish.channel, publish.message
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
        size = message.held_bytes
        connection.keeps(size)

        def publish_now() -> None:
            living = [queue for queue in queues if not queue.deleted]
            if not self.done(publish, living):
                self._publish(publish, living, ())

        def go_on() -> None:
            connection.keeps(-size)
            channel.answered(publish_now, awaited)

        claim.waiting.append(go_on)
