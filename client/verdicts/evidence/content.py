"""The content of brokers: read by a client, stated as digests, or derived from the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from understudy.client.verdicts.evidence.client_log import Message


@attrs.frozen(kw_only=True)
class QueueContent:
    """One queue of one broker.

    Attributes:
        count: of the messages, as the broker states it.
        messages: in queue order; None if only a digest is known.
        digest: "" if the broker stated none.
        fresh: ids of the messages that this reading was given with redelivered=0.
    """

    count: int
    messages: tuple[Message, ...] | None = None
    digest: str = ""
    fresh: Collection[str] = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> QueueContent:
        """Those messages."""
        return cls(count=len(messages), messages=tuple(messages))


@attrs.frozen(kw_only=True)
class BrokerContent:
    """The content of one broker when the load has ended.

    Attributes:
        broker: its name, or who read it.
        queues: by name. Of these queues alone is judged what must be in them: durable queues for persistent messages without
            expiry, which nobody deletes or purges.
    """

    broker: str
    queues: Mapping[str, QueueContent]

    @classmethod
    def of(cls, broker: str, queues: Mapping[str, Sequence[Message]]) -> BrokerContent:
        """Those messages in those queues."""
        return cls(broker=broker, queues={name: QueueContent.of(messages) for name, messages in queues.items()})

    def messages(self) -> list[tuple[str, Message]]:
        """(queue, message) of everything that is known to lie in a queue, in queue order."""
        return [(name, message) for name, queue in self.queues.items() for message in queue.messages or ()]


@attrs.frozen(kw_only=True)
class Departure:
    """How a message left a queue.

    Attributes:
        offset: of the record of the log that took it.
        reason: ``acknowledged`` or ``rejected``, outside of transactions; ``transaction``; ``restart``, of what no journal keeps;
            or another word, for what no client does: ``expired``, ``purged``, ``deleted``.
    """

    queue: str
    offset: int
    reason: str


BY_CLIENTS = ("acknowledged", "rejected")
BY_ITSELF = ("transaction", "restart")


@attrs.frozen(kw_only=True)
class LogContent:
    """The content of the log: of a feed, a journal's dump, or the simulator's reference.

    Attributes:
        came: ids of messages that have ever become visible in any queue.
        left: by id, how it left the judged queues.
        outcomes: by :attr:`Transaction.question`, ``committed`` or ``rolled back``; a name that is not there has no outcome.
    """

    came: Collection[str]
    left: Mapping[str, Sequence[Departure]]
    outcomes: Mapping[str, str]
