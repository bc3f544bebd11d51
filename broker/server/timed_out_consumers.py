"""TimedOutConsumers: lines of the log about consumers that have held a message for too long (``core/consumer_timeouts``).

A consumer that hangs shows nothing by itself: its queue grows, or waits. A client that hangs again and again costs ten lines a
minute (``stranger_log``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from understudy.broker.server.stranger_log import StrangerLog

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.connection import Connection

_log = structlog.get_logger()


class TimedOutConsumers:
    """One per process; hears of each core."""

    def __init__(self) -> None:
        self._lines = StrangerLog(_log)

    def listen(self, broker: Broker) -> None:
        """Hear of the time-outs of ``broker`` from now on."""
        broker.consumer_timeouts.on_timed_out.append(self._timed_out)

    def _timed_out(self, connection: Connection, reason: str) -> None:
        user = connection.user.name if connection.user is not None else ""
        self._lines.warning(
            "a consumer has held a message for too long",
            client=connection.name,
            user=user,
            vhost=connection.vhost,
            reason=reason,
        )
