"""Reply: where the answer to a message that a client sent to a reserved exchange goes.

An answer is a transient message in the queue that ``reply-to`` names, with the request's correlation id. Its headers say which
broker answers (``x-understudy-broker``) and in which epoch (``x-understudy-epoch``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from understudy.broker.amqp.properties import correlation_id, encode_properties, reply_to
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.message import Message

if TYPE_CHECKING:
    from understudy.broker.core.broker_port import BrokerPort

BROKER_HEADER: Final = "x-understudy-broker"
EPOCH_HEADER: Final = "x-understudy-epoch"


class Reply:
    """Answers one request, once. If the queue is gone by then, or this core's clients are, nothing is sent."""

    __slots__ = ("_broker", "_correlation", "_queue", "_vhost")

    def __init__(self, broker: BrokerPort, vhost: str, exchange: str, properties: bytes) -> None:
        """``properties``: of the request, which came to ``exchange``.

        Raises:
            PreconditionFailedError: they have no reply-to.
        """
        queue = reply_to(properties)
        if not queue:
            raise PreconditionFailedError(f"a message to exchange '{exchange}' needs reply-to")
        self._broker = broker
        self._vhost = vhost
        self._queue = queue
        self._correlation = correlation_id(properties)

    def send(self, text: str, **fields: Any) -> bool:
        """Answer with ``text`` and these properties. Returns whether the answer was published to the reply queue."""
        broker = self._broker
        queue = broker.state.topology.registry.vhost(self._vhost).queues.get(self._queue)
        if queue is None or broker.role.leaving:
            return False
        fields["headers"] = {BROKER_HEADER: broker.role.name, EPOCH_HEADER: broker.role.epoch}
        if self._correlation is not None:
            fields["correlation_id"] = self._correlation
        broker.batch.publish([queue], Message("", self._queue, encode_properties(**fields), text.encode(), False), None)
        broker.state.schedule(queue)
        return True

    def send_json(self, answer: Mapping[str, Any]) -> bool:
        """Answer with an object; returns as :meth:`send`."""
        return self.send(json.dumps(answer), content_type="application/json")
