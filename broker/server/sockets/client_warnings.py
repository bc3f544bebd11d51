"""ClientWarnings: lines of the log about clients that their operator has to look after.

*An argument that is refused* (406). A client that is moved from RabbitMQ may ask for something that this broker lacks, and may not
show its error to anybody. *A consumer that has held a message for too long* (``core/consumer_timeouts``). It shows nothing by
itself: its queue grows, or waits.

A client that does either again and again costs ten lines a minute (``stranger_log``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from understudy.broker.amqp.methods import method_name
from understudy.broker.server.sockets.stranger_log import StrangerLog

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.clients.connection import Connection

_log = structlog.get_logger()


class ClientWarnings:
    """One per process; hears of each core."""

    def __init__(self) -> None:
        self._lines = StrangerLog(_log)

    def listen(self, broker: Broker) -> None:
        """Hear of the clients of ``broker`` from now on."""
        broker.reception.on_argument_refused.append(self._refused)
        broker.consumer_timeouts.on_timed_out.append(self._timed_out)

    def _refused(self, connection: Connection, method: int, reason: str) -> None:
        self._say("an argument of a client was refused", connection, method=method_name(method), reason=reason)

    def _timed_out(self, connection: Connection, reason: str) -> None:
        self._say("a consumer has held a message for too long", connection, reason=reason)

    def _say(self, event: str, connection: Connection, **more: str) -> None:
        user = connection.user.name if connection.user is not None else ""
        self._lines.warning(event, client=connection.name, user=user, vhost=connection.vhost, **more)
