"""Arguments of queue.declare: which there are, what they may be, which make a queue another one.

``COMPARED`` ones are the queue's: a declaration of the same name with another value, or without it, is refused. ``IGNORED`` ones
say how RabbitMQ stores and mirrors a queue. They are accepted with any value, since clients that send them to RabbitMQ send them
here too, and they make no queue another one. ``x-queue-type`` is checked and then ignored in the same way: there is one kind of
queue. ``x-ha-replicate`` belongs to ``replication_level``. Any other argument that begins with ``x-`` is refused (RabbitMQ ignores
it): a client that asks for a dead letter exchange, say, must not believe that it has one.
"""

from __future__ import annotations

from typing import Any, Final

from understudy.broker.core.replication_level import REPLICATE
from understudy.broker.errors import PreconditionFailedError

MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
COMPARED: Final = (MESSAGE_TTL, EXPIRES)
QUEUE_TYPE: Final = "x-queue-type"
QUEUE_TYPES: Final = ("classic", "quorum")
IGNORED: Final = ("x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-ha-policy")
KNOWN: Final = frozenset((*COMPARED, REPLICATE, QUEUE_TYPE, *IGNORED))
LEAST_MS: Final = {MESSAGE_TTL: 0, EXPIRES: 1}
MAX_MS: Final = (1 << 32) - 1


def check_arguments(name: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check those of a queue that is to be declared.

    Raises:
        PreconditionFailedError: one is not known, or a value is not one that it may have.
    """
    check_type(name, vhost, arguments)
    for argument, value in arguments.items():
        if argument.startswith("x-") and argument not in KNOWN:
            raise PreconditionFailedError(
                f"argument '{argument}' of queue '{name}' in vhost '{vhost}' is not supported"
            )
        least = LEAST_MS.get(argument)
        if least is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_MS
        ):
            raise PreconditionFailedError(
                f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {value!r} is not a number "
                f"of milliseconds from {least} to {MAX_MS}"
            )


def check_type(name: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check ``x-queue-type``, also of a queue that is there: a client that asks for a stream must not take it for one.

    Raises:
        PreconditionFailedError: it is not a type whose clients a queue of this broker serves.
    """
    kind = arguments.get(QUEUE_TYPE, QUEUE_TYPES[0])
    if kind in QUEUE_TYPES:
        return
    why = "there are no streams" if kind == "stream" else "no such type"
    raise PreconditionFailedError(
        f"invalid arg '{QUEUE_TYPE}' for queue '{name}' in vhost '{vhost}': {kind!r}: {why}; classic and quorum are accepted"
    )
