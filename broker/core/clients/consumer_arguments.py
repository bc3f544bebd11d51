"""Arguments of basic.consume: which there are, and what they may be.

``x-priority`` says which consumer is served first (`consumer_order`). ``x-consumer-timeout`` is how long the consumer may hold a
message (`consumer_timeouts`), instead of what its queue or the broker says. ``x-cancel-on-ha-failover`` asks to be cancelled when
another broker leads. A consumer never outlives the leading of its broker, since its connection ends: nothing is to be done.

Any other argument is passed over.

Source: RabbitMQ 4.3, ``rabbit_amqqueue:consume_args``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from understudy.broker.core.queues.queue import CONSUMER_TIMEOUT
from understudy.broker.core.queues.queue_arguments import CHECKS as OF_QUEUE
from understudy.broker.core.queues.queue_arguments import MAX_COUNT, is_truth, number
from understudy.broker.errors import PreconditionFailedError

PRIORITY: Final = "x-priority"
TIMEOUT: Final = CONSUMER_TIMEOUT
CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    PRIORITY: number(-MAX_COUNT - 1, MAX_COUNT),
    TIMEOUT: OF_QUEUE[CONSUMER_TIMEOUT],
    "x-cancel-on-ha-failover": is_truth,
}
"""Argument to a check of its value: the fault, "" if there is none."""


def check_consumer_arguments(queue: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check those of a consumer that subscribes to the queue named ``queue``.

    Raises:
        PreconditionFailedError: one has a value that it may not have.
    """
    for argument, value in arguments.items():
        if argument not in CHECKS:
            continue
        wrong = CHECKS[argument](value)
        if wrong:
            raise PreconditionFailedError(
                f"invalid arg '{argument}' of a consumer for queue '{queue}' in vhost '{vhost}': {value!r} {wrong}"
            )
