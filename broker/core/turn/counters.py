"""Counters: what a core has counted since it began, and how many clients it has now."""

from __future__ import annotations


class Counters:
    """One per core.

    Attributes:
        totals: since this core began, by name. What each message adds to is bound by those that count it.
        delivered_before: messages delivered on channels that have ended. What an open channel has delivered it knows itself
            (``Consuming.delivered``), so that a delivery counts nothing here.
        subscriptions: of consumers.
        clients: how many connections are open: they have got through the handshake.
    """

    def __init__(self) -> None:
        self.totals = {
            "published": 0,
            "confirmed": 0,
            "committed": 0,
            "rolled_back": 0,
            "expired": 0,
            "unroutable": 0,
            "consumers_timed_out": 0,
            "dead_lettered_expired": 0,
            "dead_lettered_maxlen": 0,
            "dead_lettered_rejected": 0,
            "dead_lettered_delivery_limit": 0,
            "refused_maxlen": 0,
            "deduplicated": 0,
        }
        self.delivered_before = 0
        self.subscriptions = 0
        self.clients = 0

    def count(self, counter: str, number: int = 1) -> None:
        """Add to one of `totals`."""
        self.totals[counter] += number

    def subscribed(self) -> int:
        """Count a consumer that subscribes now; returns its number."""
        self.subscriptions += 1
        return self.subscriptions

    def client_came(self) -> None:
        """A connection has got through its handshake."""
        self.clients += 1

    def client_left(self) -> None:
        """Such a connection has ended."""
        self.clients -= 1

    def channel_ended(self, delivered: int) -> None:
        """A channel has ended, on which ``delivered`` messages were delivered."""
        self.delivered_before += delivered
