"""Arrival: a message with a deadline that has come into its queue, until the consumers were asked (`MessageExpiry`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from understudy.broker.core.queues.queue import Queue

Arrival = tuple["Queue", int, int]
"""(queue, id there, newest subscription that may have the message though it has expired)."""
ANY_CONSUMER: Final = 1 << 62
"""Subscription of an arrival that every consumer may have."""
