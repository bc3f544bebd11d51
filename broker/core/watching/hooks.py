"""Hooks: the listeners of a core. An empty list is what a message costs while nobody listens."""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.watching.told import Confirmed, Told, ToldChannel


class Hooks:
    """One per core. Each list is told in its order, and stays the same object.

    Attributes:
        on_delivered: are told of each message that is handed to a client.
        on_requeued: those of the state: are told of each message that is at its place in a queue again.
        on_confirmed: are told which publishes of a channel one basic.ack confirms. A channel looks for listeners when it is opened.
        on_told: are told when a client is told what became of a transaction.
    """

    def __init__(self, on_requeued: list[Callable[[Queue, Entry], None]]) -> None:
        self.on_delivered: list[Callable[[Queue, Entry, bool], None]] = []
        self.on_requeued = on_requeued
        self.on_confirmed: list[Callable[[ToldChannel, list[Confirmed]], None]] = []
        self.on_told: list[Callable[[Told], None]] = []

    def tell_outcome(self, told: Told) -> None:
        """Tell the listeners; called only if there is one."""
        for listener in self.on_told:
            listener(told)

    def tell_delivered(self, queue: Queue, entry: Entry) -> None:
        """Tell the listeners; called only if there is one."""
        for told in self.on_delivered:
            told(queue, entry, entry.redelivered)
