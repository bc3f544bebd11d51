"""Arguments of basic.consume: which there are, and what they may be.

``x-priority`` says which consumer is served first (`consumer_order`). ``x-consumer-timeout`` is how long the consumer may hold a
message (`consumer_timeouts`), instead of what its queue or the broker says. ``x-cancel-on-ha-failover`` asks to be cancelled when
the queue's primary changes. A consumer never outlives its primary here, since its connection ends, so there is nothing to do.

Any other argument that begins with ``x-`` is refused, as those of a queue are.

Source: RabbitMQ 4.3, ``rabbit_amqqueue:consume_args``.
"""

from __future__ import annotations

from typing import Any, Final

from understudy.broker.core.queue import Queue
from understudy.broker.errors import PreconditionFailedError

PRIORITY: Final = "x-priority"
TIMEOUT: Final = "x-consumer-timeout"
CANCEL_ON_FAILOVER: Final = "x-cancel-on-ha-failover"
MOST: Final = (1 << 63) - 1


def _integer(least: int, value: Any) -> str:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST
    return "" if good else f"is not a whole number from {least} to {MOST}"


def _fault(argument: str, value: Any) -> str:
    if argument == PRIORITY:
        return _integer(-MOST - 1, value)
    if argument == TIMEOUT:
        return _integer(0, value)
    return "" if isinstance(value, bool) else "is neither true nor false"


def check_consumer_arguments(queue: Queue, arguments: dict[str, Any]) -> None:
    """Check those of a consumer that subscribes to ``queue``.

    Raises:
        PreconditionFailedError: one is not known, or has a value that it may not have.
    """
    for argument, value in arguments.items():
        if not argument.startswith("x-"):
            continue
        if argument not in (PRIORITY, TIMEOUT, CANCEL_ON_FAILOVER):
            raise PreconditionFailedError(f"consumer argument '{argument}' is not supported")
        wrong = _fault(argument, value)
        if wrong:
            raise PreconditionFailedError(
                f"invalid arg '{argument}' of a consumer for queue '{queue.name}' in vhost '{queue.vhost}': {value!r} {wrong}"
            )
