"""RefusedArguments: lines of the log about arguments that clients have asked for and were refused (406).

A client that is moved from RabbitMQ may ask for something that this broker lacks, and may not show its error to anybody. Its
operator finds the client and the argument in the log. A client that tries again and again costs ten lines a minute
(``stranger_log``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from understudy.broker.amqp.methods import method_name
from understudy.broker.server.stranger_log import StrangerLog

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.connection import Connection

_log = structlog.get_logger()


class RefusedArguments:
    """One per process; hears of each core."""

    def __init__(self) -> None:
        self._lines = StrangerLog(_log)

    def listen(self, broker: Broker) -> None:
        """Hear of what ``broker`` refuses from now on."""
        broker.on_argument_refused.append(self._refused)

    def _refused(self, connection: Connection, method: int, reason: str) -> None:
        user = connection.user.name if connection.user is not None else ""
        self._lines.warning(
            "an argument of a client was refused",
            client=connection.name,
            user=user,
            vhost=connection.vhost,
            method=method_name(method),
            reason=reason,
        )
