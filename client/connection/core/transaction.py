"""Transaction: what a program wants to be done, all or nothing. Nothing is sent before its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from understudy.client.connection.core.messages import Message, Outgoing
from understudy.client.connection.core.outcome import checked_name
from understudy.client.connection.errors import ClientError


@attrs.frozen
class Settled:
    """A delivery that the transaction settles: acknowledged, or rejected with or without requeueing."""

    message: Message
    acknowledged: bool = True
    requeue: bool = False


class Transaction:
    """Publishes and acknowledgements that are committed together when the ``with`` block ends.

    Attributes:
        name: by which its outcome can be asked for; "": the connection names it.
        published, settled: in the order of the calls.
        outcome_wanted: its outcome can be asked for, also if it publishes nothing.
        closed: the transaction has ended; nothing can be added.
    """

    def __init__(self, name: str | None, *, outcome_wanted: bool = True) -> None:
        self.name = checked_name(name) if name is not None else ""
        self.published: list[Outgoing] = []
        self.settled: list[Settled] = []
        self.outcome_wanted = outcome_wanted
        self.closed = False

    def end(self) -> None:
        """Refuse each further publish and settlement; its connection calls this when the ``with`` block ends."""
        self.closed = True

    def named(self, draw: Callable[[], str]) -> str:
        """The name of the transaction; ``draw`` makes one if the program gave none, and the transaction keeps it."""
        self.name = self.name or draw()
        return self.name

    def publish(
        self,
        body: bytes,
        routing_key: str,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        message_id: str = "",
        correlation_id: str = "",
        reply_to: str = "",
        content_type: str = "",
        expiration_ms: int | None = None,
        persistent: bool = True,
        mandatory: bool = True,
    ) -> None:
        """Publish a message with the commit; the arguments are `Outgoing`'s attributes."""
        self._check_open()
        made = Outgoing(
            body=body, routing_key=routing_key, exchange=exchange, headers=dict(headers or {}), message_id=message_id,
            correlation_id=correlation_id, reply_to=reply_to, content_type=content_type, expiration_ms=expiration_ms,
            persistent=persistent, mandatory=mandatory,
        )  # fmt: skip
        self.published.append(made)

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a delivery with the commit.

        Raises:
            ClientError: the transaction has deliveries of another consumer.
        """
        self._settle(Settled(message))

    def reject(self, message: Message, *, requeue: bool = False) -> None:
        """Reject a delivery with the commit: without ``requeue`` it is dropped, or goes to its dead-letter exchange.

        Raises:
            ClientError: the transaction has deliveries of another consumer.
        """
        self._settle(Settled(message, acknowledged=False, requeue=requeue))

    def _settle(self, settled: Settled) -> None:
        self._check_open()
        if self.settled and self.settled[0].message.channel is not settled.message.channel:
            raise ClientError("a transaction settles deliveries of one consumer, and of one connection to a broker")
        self.settled.append(settled)

    def _check_open(self) -> None:
        if self.closed:
            raise ClientError(f"transaction {self.name!r} has ended")
