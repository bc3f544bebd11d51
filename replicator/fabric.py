"""Fabric: the port that carries replication messages between brokers."""

from __future__ import annotations

from typing import Protocol


class Link(Protocol):
    """One established, authenticated, ordered channel of messages to another broker."""

    @property
    def peer(self) -> str:
        """The other broker's id."""

    @property
    def wire_version(self) -> int:
        """The newest that both ends speak."""

    @property
    def newest_record_format(self) -> int:
        """The newest format of log records that the other end reads."""

    def send(self, message: bytes) -> None:
        """Queue a message; it goes out when the turn ends, in order, or never."""

    def close(self, reason: str) -> None:
        """End the link; the peer is told ``reason`` if it can be. No message of it is delivered after this."""


class Fabric(Protocol):
    """Makes links. The outcome comes as ``dialed`` or ``dial_failed`` to whoever owns the fabric."""

    def dial(self, broker: str, address: str) -> None:
        """Connect to ``broker`` at ``address`` (host:port)."""
